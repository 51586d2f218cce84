"""One seed: its passes are validated, or its step runs beside plain `jax.jit`, or both; and what came of it."""

# pyright: reportUnknownLambdaType=false

import contextlib
import itertools
import os
import random
import re
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from operator import le
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fuzz.case import Case, mesh_of, owners_of, step_of
from fuzz.features import make, moved_plan
from fuzz.oracle import EXACT, Reference, host
from jax.experimental.layout import Format, Layout
from jaxlib.mlir import ir
from unit.activations import peak_activations
from unit.end_to_end.compare import step_keywords

import jaxpp.api as jaxpp
from jaxpp import checkpoint, schedules
from jaxpp.healing.state import described, placed, taken
from jaxpp.hlo_passes import base
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.pipelines import VerifyPhases
from jaxpp.hlo_passes.whole_sums import WholeSumsOfProgram
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import nested
from jaxpp.runtime import load
from jaxpp.schedules.engine.activations import activations
from jaxpp.validation import Validate, ValidationError

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = (PassError, schedules.ScheduleError, checkpoint.DamagedError)
"""What a step may be refused with, besides what JAX says of what it refuses too."""
NO_BACKWARD = "frozen: the program has no backward"
"""What `jaxpp.frozen` says of a stage to which no gradient comes back."""
LARGE = 1500
"""The operations of a module of which only every sixth pass is validated: each takes XLA seconds."""


CALLS = 5
"""The optimizer steps in which a generated step is compared, unless it diverges before."""


class WrongError(AssertionError):
    """Results differ from those of plain `jax.jit`, or a promise about them is broken."""


@dataclass
class Outcome:
    """What came of a seed: `steps` were compared; `refused` has the words of a refusal, `wrong` of a fault."""

    seed: int
    words: list[str] = field(default_factory=list[str])
    validated: bool = False
    ran: bool = False
    steps: int = 0
    refused: str = ""
    wrong: str = ""
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """The seed in a line."""
        done = " and ".join(["validated"] * self.validated + ["ran"] * self.ran)
        text = (self.wrong and f"WRONG: {self.wrong}") or (self.refused and f"refused: {self.refused}") or done
        return f"{self.seed:>6} {self.seconds:>5.1f} s  {', '.join(self.words)}: {text}"

    @property
    def fields(self) -> dict[str, Any]:
        """All of it, to be sent."""
        return asdict(self)


def serve(connection: Connection) -> None:
    """Try each seed that arrives: the process of a worker."""
    base.STANDING.extend((VerifyPhases(), WholeSumsOfProgram()))
    warnings.filterwarnings("error")
    warnings.filterwarnings("default", "Error reading persistent compilation cache entry")
    while True:
        connection.send(run(connection.recv()).fields)


def run(seed: int) -> Outcome:
    """Try a seed."""
    outcome, began = Outcome(seed), time.monotonic()
    try:
        case = make(seed)
        outcome.words = case.words
        with jax.enable_x64(case.x64):
            _try(seed, case, outcome)
    except Exception as error:  # the boundary of a trial
        _judge(error, outcome)
    outcome.seconds = time.monotonic() - began
    return outcome


def _judge(error: Exception, outcome: Outcome) -> None:
    """Write down whether an error is a refusal or a fault."""
    text, frames = str(error).strip(), traceback.extract_tb(error.__traceback__)
    first = text.partition("\n")[0][:400]
    breaks_promise = any(
        frame.name == "after" and frame.filename.endswith(("pipelines.py", "whole_sums.py")) for frame in frames
    )
    if isinstance(error, WrongError | ValidationError) or breaks_promise:
        outcome.wrong = first
    elif isinstance(error, ALLOWED) or text.startswith(NO_BACKWARD):
        place = re.match(r"(\S+\.py):\d+", text)
        is_ours = place is not None and Path(place[1]).resolve().is_relative_to(ROOT) and "/tests/" not in place[1]
        kind = type(error).__name__
        outcome.refused, outcome.wrong = f"{kind}: {first}", f"{kind} at our own {first}" if is_ours else ""
    else:
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        outcome.wrong = f"{type(error).__name__} ({place}): {text[:600]}"


def _try(seed: int, case: Case, outcome: Outcome) -> None:
    draw = random.Random(f"{seed} tiers")
    tier = draw.random()
    runs = bool(case.way or case.limit or case.frozen) or case.words[0] == "effects" or tier > 0.05
    if case.way == "processes":
        outcome.steps = _in_processes(seed, case)
        outcome.ran = True
        return
    mesh, (step, given) = mesh_of(case), step_of(case)
    given = jax.tree.map(jnp.array, given)
    pipelined = pipelined_step(case, step, mesh)
    lowered = _lowered(pipelined, step, given)
    outcome.validated = not (runs and tier > 0.1) and case.words[0] != "effects"  # callbacks aren't validated
    try:
        with _validated(seed) if outcome.validated else contextlib.nullcontext():
            program = lowered.program()
    except ValidationError as error:
        # The pass only says how values are divided: where plain `jax.jit` of divided values agrees, XLA is wrong.
        if "pass 'propagate-shardings'" not in str(error):
            raise
        outcome.validated, runs = False, True
        program = lowered.program()
    if case.options.get("recompute") is None and case.loop is None and case.step is None:
        _check_peaks(case, program)
    if runs:
        compiled, between = _compiled(case, step, mesh, given, lowered)
        outcome.steps = compare(case, Reference(case, step, mesh, pipelined), compiled, between, given)
        outcome.ran = True


def lowered_text(seed: int) -> str | None:
    """Returns the module of a seed's step; None for a step that is refused before."""
    try:
        case = make(seed)
        mesh, (step, given) = mesh_of(case), step_of(case)
        with jax.enable_x64(case.x64):
            return _lowered(pipelined_step(case, step, mesh), step, jax.tree.map(jnp.array, given)).as_text()
    except ALLOWED:
        return None


def pipelined_step(case: Case, step: Any, mesh: jaxpp.MpmdMesh, **options: Any) -> Any:
    """Returns the step of a case."""
    pipeline = jaxpp.mpmd_jit_by_yield if case.by_yield else jaxpp.mpmd_jit_with_loop
    return pipeline(step, mesh, compiler_options=EXACT, **step_keywords(case.options | options))


def _lowered(pipelined: Any, step: Any, given: Any) -> Any:
    """Returns the lowered step. What JAX refuses too is no fault."""
    try:
        return pipelined.lower(*given)
    except ALLOWED:
        raise
    except Exception as error:
        with contextlib.suppress(type(error)):
            jax.jit(step).lower(*given)
            raise
        raise schedules.ScheduleError(f"JAX refuses it too: {error}") from error


@contextlib.contextmanager
def _validated(seed: int) -> Generator[None]:
    """Every chain of passes in the block is validated, pass by pass."""
    base.STANDING.append(_Watch(seed))
    try:
        yield
    finally:
        base.STANDING.pop()


class _Watch(base.Observer):
    """An observer that validates one chain of passes after the other."""

    def __init__(self, seed: int) -> None:
        self._seed, self._module, self._validate, self._passes = seed, None, Validate(seed), 0

    def before(self, step: Pass, module: ir.Module) -> None:
        if module is not self._module:
            self._module, self._validate, self._passes = module, Validate(self._seed), 0
        self._validate.before(step, module)

    def after(self, step: Pass, module: ir.Module) -> None:
        self._passes += 1
        if self._passes % 6 == 0 or sum(1 for _ in nested(module.operation)) < LARGE:
            self._validate.after(step, module)


def _check_peaks(case: Case, program: Any) -> None:
    """Check that no mesh keeps more activations than the schedule says."""
    peaks, most = peak_activations(load(program.module)), activations(_as_run(case.plan, program.as_text()))
    if not all(map(le, peaks, most)):
        raise WrongError(f"peaks of activations are {peaks}, and {most} in the schedule")


def _as_run(plan: schedules.Schedule, program: str) -> schedules.Schedule:
    """Returns the schedule without recomputes that make nothing: their backward reads only what their stage takes.

    So it is under `jax.checkpoint`, and where a mesh lends. What the stage takes waits from its forward on.
    """
    kinds = re.findall(r'jaxpp\.kind = "([\w+]+)", jaxpp\.stage = (\d+)', program)
    stages = {int(stage) for kind, stage in kinds if "recompute" in kind.split("+")}
    rows = [
        [tuple(task for task in cell if task.kind != "recompute" or task.stage in stages) for cell in row]
        for row in plan.cells
    ]
    return schedules.Schedule.of(
        plan.name, plan.placement, [filter(None, row) for row in rows], plan.kinds, plan.skipped
    )


Between = Callable[[Any], Any]
"""What happens to the state between two calls."""


def _compiled(case: Case, step: Any, mesh: Any, given: Any, lowered: Any) -> tuple[Any, Between]:
    """Returns the step as it runs, and what happens to its state between two calls."""
    if case.limit is not None:
        limit = int(case.limit * max(lowered.program().peak_bytes))
        lowered = _lowered(pipelined_step(case, step, mesh, memory_limit=limit), step, given)
        if max(lowered.program().peak_bytes) > limit:
            raise WrongError(f"the program takes {lowered.program().peak_bytes} within a memory limit of {limit}")
    compiled = lowered.compile()
    if case.way == "saved":
        with tempfile.TemporaryDirectory() as folder:
            compiled.save(folder)
            return jaxpp.load(folder, like=given), lambda state: state
    if case.way == "moved":
        case.plan = moved_plan(case.plan)
        other = mesh_of(case)
        options = {name: value for name, value in case.options.items() if name not in ("cuts", "operations")}
        keywords = step_keywords(options)
        moved = jaxpp.mpmd_jit_with_loop(step_of(case)[0], other, **keywords, compiler_options=EXACT).lower(*given)
        steps = itertools.cycle((compiled, moved.compile()))
        homes = itertools.cycle((moved.compile().in_shardings[0][0], compiled.in_shardings[0][0]))
        return lambda *arguments: next(steps)(*arguments), lambda state: _restored(state, next(homes))
    ways: dict[str, Between] = {
        "healed": partial(_healed, compiled),
        "restored": lambda state: _restored(state, compiled.in_shardings[0][0]),
        "laid out": partial(jax.tree.map, _turned),
    }
    return compiled, ways.get(case.way, lambda state: state)


def _healed(compiled: Any, state: Any) -> Any:
    """Returns a state that is taken apart and put together, as where processes have died."""
    held = [(shard, partial(bytes, data)) for shard, data in taken(state, True)]
    return placed(described(state), compiled.in_shardings[0][0], held)


def _restored(state: Any, shardings: Any) -> Any:
    """Returns a state that is saved, and restored to these shardings."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(folder, 0, state, keep=1)
        return checkpoint.restore(folder, shardings)


def _turned(leaf: jax.Array) -> jax.Array:
    """Returns an array whose last dimension is not the one that lies together."""
    layout = Layout(tuple(reversed(range(leaf.ndim))))
    return jax.jit(lambda x: x * 1, out_shardings=Format(layout, leaf.sharding))(leaf)


def compare(case: Case, reference: Reference, compiled: Any, between: Between, given: Any) -> int:
    """Compare some calls with plain `jax.jit`, each of what the product gave before; returns how many."""
    state, *rest = given
    state = between(state) if case.way == "laid out" else state
    for call in range(CALLS):
        before = host((state, *rest))
        case.calls.clear()
        with jaxpp.frozen(case.frozen) if case.frozen else contextlib.nullcontext():
            found = compiled(state, *rest)
        found_on_host = host(found)
        jax.effects_barrier()
        calls = sorted(case.calls)
        problem = reference.difference(before, found_on_host)
        if reference.diverged:
            return call
        if problem:
            raise WrongError(f"call {call}: {problem}")
        names, values = ([[each[k] for each in both] for both in (calls, case.calls)] for k in (0, 1))
        if names[0] != names[1] or not np.allclose(*values, rtol=1e-3, atol=1e-5):
            raise WrongError(
                f"call {call}: {len(calls)} callbacks {calls[:9]}, by jax.jit {len(case.calls)} {case.calls[:9]}"
            )
        state = between(found[0])
    return CALLS


def _in_processes(seed: int, case: Case) -> int:
    """Run a seed in its processes; returns the number of steps that were compared."""
    from fuzz import job
    from unit.runtime.processes import together

    os.environ[job.SEED] = str(seed)
    devices = max(Counter(itertools.chain.from_iterable(owners_of(case))).values())
    results = together.run([job.run], case.processes, devices, seconds=120)
    # Where one process fails, the others say only that it has ended.
    errors = [result[0] for result in results if isinstance(result[0], list)]
    for kind, text in sorted(errors, key=lambda error: error[0] in ("PeerError", "TransferError")):
        raise {"PassError": PassError, "LimitError": PassError}.get(kind, WrongError)(f"{kind}: {text}")
    return results[0][0]
