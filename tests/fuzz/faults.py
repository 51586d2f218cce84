"""Plants faults between the passes of generated steps, and lets `jaxpp-bisect` find them: `make faults`.

A seed is a step and one fault of each kind, at a random place in the pipeline. Whether a fault changes anything is
decided without the search: the modules right before and after it run on other inputs. Each fourth seed is narrowed to
bfloat16 or float16. The step without a fault has to be sound.
"""

# pyright: reportUnknownLambdaType=false

import argparse
import itertools
import math
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import conftest  # sets the flags of the tests, which make XLA compile fast, before JAX starts
import jax
import jax.numpy as jnp
import numpy as np
from fuzz import trial
from fuzz.case import mesh_of, step_of
from fuzz.features import FAMILIES, make
from fuzz.planted import KINDS, Fault
from jaxlib.mlir import ir

from jaxpp import debug
from jaxpp._compat import make_context, own_copy
from jaxpp.hlo_passes.base import Pass, run_passes
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import bytecode, nested
from jaxpp.ir.locations import source_of
from jaxpp.ir.tasks import task_of
from jaxpp.validation.apart import Apart
from jaxpp.validation.bisection import Bisection, WrongResult
from jaxpp.validation.compare import enlarged, is_inexact, random_inputs
from jaxpp.validation.cpu import Runner, partitions_of, shape_and_dtype
from jaxpp.validation.signature import Signature
from jaxpp.validation.steps import step_function
from jaxpp.validation.validator import Validator

assert conftest
LARGE = 700
"""The most operations of a step: each run of a larger one takes XLA many seconds."""
WITHOUT = {"effects", "processes", "in memory", "left out", "saved", "moved", "x64"}
"""The families that can't be validated, take too long, or have the same passes as others."""


@dataclass
class Planted:
    """A fault, and what became of the search.

    Attributes:
        index: the number of passes before it.
        passes: the number of all passes, with the broken one.
        effect: how the results change: "none", "small" (perhaps not at all), "large", or "refused" for a module that
            does not run.
        stage: the stage of the faulty operation, if it is known; otherwise None.
        line: the user's line of the faulty operation.
        cause, task, value, at: what the search found.
        runs: the number of runs of the search.
    """

    seed: int
    kind: str
    index: int = 0
    passes: int = 0
    effect: str = "none"
    stage: int | None = None
    line: str = ""
    cause: str = ""
    task: str = ""
    value: str = ""
    at: str = ""
    error: str = ""
    runs: int = 0
    seconds: float = 0.0

    @property
    def wrong(self) -> str:
        """The error of the search; "" for none."""
        right = f"after pass 'fault', {self.index + 1} of {self.passes}"
        if self.error.startswith("search"):
            return self.error
        # Numbers that agree tell nothing; the proof of the program may find such a fault later.
        is_proof = self.effect in ("none", "small") and self.value.startswith("does not run")
        if self.effect == "none" and self.cause and not is_proof:
            return f"a false alarm: {self.cause}"
        if self.effect in ("large", "refused") and self.cause != right:
            return f"found {self.cause or 'nothing'}, expected {right}"
        if self.cause and self.cause != right and not is_proof:
            return f"found {self.cause}, expected {right} or nothing"
        if self.runs > math.ceil(math.log2(self.passes)) + 2:
            return f"{self.runs} runs"
        return ""

    @property
    def is_located(self) -> bool:
        """Whether the search names the line of the fault, or a task of its stage."""
        return self.at == self.line or (self.stage is not None and f"of stage {self.stage}," in self.task)


class Near(Apart):
    """A validator in this process: it keeps what XLA compiled for the other faults of a step."""

    def __init__(self, seed: int) -> None:
        self._validator, self._context = Validator(seed), make_context()

    def _ask(self, method: str, cannot: str, *arguments: Any) -> Any:
        with self._context, ir.Location.unknown():
            modules = [
                ir.Module.parse(bytecode(each.operation)) if isinstance(each, ir.Module) else each for each in arguments
            ]
            return getattr(self._validator, method)(*modules)


@dataclass
class Outcome:
    """The outcome of a seed: its faults, or the reason why it was left out; `alarm` is a finding without a fault."""

    seed: int
    words: str = ""
    left_out: str = ""
    alarm: str = ""
    faults: list[Planted] = field(default_factory=list[Planted])


def material(seed: int) -> tuple[ir.Module, Sequence[Pass], str] | None:
    """Returns the lowered step of a seed, its passes and its families; None for a family that is left out."""
    case = make(seed)
    if not WITHOUT.isdisjoint(case.words):
        return None
    dtype = {1: jnp.bfloat16, 3: jnp.float16}.get(seed % 8)
    if dtype is not None:
        case.params, case.batch = jax.tree.map(partial(narrowed, dtype), (case.params, case.batch))
        case.words.append(dtype.__name__)
    mesh, (step, given) = mesh_of(case), step_of(case)
    lowered = trial.pipelined_step(case, step, mesh).lower(*jax.tree.map(jnp.array, given))
    seen = debug.PassesSeen()
    with debug.watching(seen):
        lowered.program()
    if sum(1 for _ in nested(seen.module.operation)) > LARGE:
        return None
    return seen.module, seen.steps, ", ".join(case.words)


def narrowed(dtype: Any, leaf: Any) -> Any:
    """Returns float32 numbers in a narrow type."""
    return np.asarray(leaf).astype(dtype) if np.asarray(leaf).dtype == np.float32 else leaf


def run(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Outcome:
    """Tries a seed: its step without a fault, then a fault of each kind."""
    outcome = Outcome(seed)
    try:
        found = material(seed)
    except Exception as error:  # what a step is refused with is for `make fuzz` to judge
        outcome.left_out = f"{type(error).__name__}: {str(error)[:100]}"
        return outcome
    if found is None:
        outcome.left_out = "its family is left out, or it is large"
        return outcome
    module, steps, outcome.words = found
    validator = Near(seed)
    try:
        validator.refer(module, "can't run")
    except PassError as error:
        outcome.left_out = str(error)
        return outcome
    alarm = Bisection(module, steps, lambda: validator).wrong_pass(lambda _: "")
    outcome.alarm = str(alarm or "")
    for kind in kinds if alarm is None else ():
        if fault := _plant(random.Random(f"{seed} {kind}"), seed, kind, module, steps):
            outcome.faults.append(_search(fault, module, steps, validator))
    return outcome


def _plant(
    draw: random.Random, seed: int, kind: str, module: ir.Module, steps: Sequence[Pass]
) -> tuple[Planted, Fault] | None:
    """Returns a fault at a random place among those where the module has a site for it; None if there is none."""
    for index in draw.sample(range(len(steps) + 1), len(steps) + 1):
        before = own_copy(module)
        run_passes(before, steps[:index])
        with before.context, ir.Location.unknown():
            sites = list(KINDS[kind](before))
            if not sites:
                continue
            number = draw.randrange(len(sites))
            op = sites[number][0]
            return Planted(seed, kind, index, len(steps) + 1, stage=_stage(op), line=source_of(op.location) or ""), (
                Fault(kind, number)
            )
    return None


def _stage(op: ir.Operation) -> int | None:
    """Returns the stage of an operation, by its own attribute or by its function; None where there are slices."""
    if op.name == "func.call":
        return at.integer(op, at.STAGE)
    if at.TASK in op.attributes:
        named = task_of(op)
        return None if named is None else named.stage
    while op.name != "func.func" and op.parent is not None:
        op = op.parent.operation
    return at.integer(op, at.STAGE)


def _search(fault: tuple[Planted, Fault], module: ir.Module, steps: Sequence[Pass], validator: Near) -> Planted:
    planted, step = fault
    began, lines = time.monotonic(), list[str]()
    planted.effect = _effect(planted, step, module, steps)
    chain = [*steps[: planted.index], step, *steps[planted.index :]]
    found: WrongResult | None = None
    try:
        search = Bisection(module, chain, lambda: validator, lines.append)
        found = search.wrong_pass(lambda _: "")
    except PassError as error:
        planted.error = f"refused: {error}"
        planted.cause = ""
    except Exception as error:
        planted.error = f"search: {type(error).__name__}: {str(error)[:300]}"
    if found is not None:
        planted.cause, planted.at = found.cause, found.line
        planted.task, planted.value = (found.value.task, str(found.value)) if found.value else ("", found.worst.problem)
    planted.runs = sum(line.startswith("the module") for line in lines)
    planted.seconds = time.monotonic() - began
    return planted


def _effect(planted: Planted, step: Pass, module: ir.Module, steps: Sequence[Pass]) -> str:
    """Runs modules with and without the fault on inputs of its own; returns how the results of the step differ.

    A later pass may repair a fault. If a later pass fails, the module right after the fault counts.
    """
    before, after, last = (own_copy(module) for _ in range(3))
    run_passes(before, steps[: planted.index])
    run_passes(after, [*steps[: planted.index], step])
    if _compared(before, after, planted.seed) == "none":
        return "none"
    try:
        run_passes(last, [*steps[: planted.index], step, *steps[planted.index :]])
    except Exception:
        return _compared(before, after, planted.seed)
    sound = own_copy(module)
    run_passes(sound, steps)
    return _compared(sound, last, planted.seed).replace("none", "small")


def _compared(before: ir.Module, after: ir.Module, seed: int) -> str:
    with make_context(), ir.Location.unknown():
        before, after = (ir.Module.parse(bytecode(each.operation)) for each in (before, after))
        signature, runner = Signature.of(before), Runner(partitions_of(before))
        types = {number: shape_and_dtype(type_) for number, type_ in signature.arguments.items()}
        most = 0.0
        try:
            one, other = (step_function(each, runner) for each in (before, after))
            for inputs in _inputs(types, seed):
                arrays = {number: runner.put(value) for number, value in inputs.items()}
                results = [{n: np.asarray(places[0][1]) for n, places in each(arrays).items()} for each in (one, other)]
                most = max(most, *(_difference(results[0][n], results[1][n]) for n in results[0]))
        except PassError:
            return "refused"
    return "none" if most == 0 else "large" if most > 0.1 else "small"


def _inputs(types: Any, seed: int) -> Iterator[dict[int, Any]]:
    normal = random_inputs(types, seed + 1000)
    yield normal
    yield enlarged(normal)
    yield random_inputs(types, seed + 1001, positive=True)


def _difference(one: Any, other: Any) -> float:
    """Returns how far two arrays are apart, relative to the larger numbers; infinite where only one is a number."""
    if one.tobytes() == other.tobytes():
        return 0.0
    if not is_inexact(one.dtype):
        return math.inf
    one, other = one.astype(np.complex128), other.astype(np.complex128)
    if (np.isfinite(one) != np.isfinite(other)).any():
        return math.inf
    finite = np.isfinite(one)
    return float(np.abs(one - other)[finite].max(initial=0) / (np.abs(one)[finite].max(initial=0) or 1))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="how many faults to plant")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one seed alone, in this process")
    parser.add_argument("--family", default="", help="a family that all steps are of")
    parser.add_argument("--kind", action="append", choices=KINDS, help="a kind of fault; repeatable (default: all)")
    parser.add_argument("--sound", type=int, default=0, help="try so many steps without faults instead")
    options = parser.parse_args()
    kinds = () if options.sound else tuple(options.kind or KINDS)
    if options.seed is not None:
        return _report([run(options.seed, kinds)])
    outcomes: list[Outcome] = []
    seeds = (n for n in itertools.count(options.first) if options.family in ("", FAMILIES[n % len(FAMILIES)]))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=12) as pool:
        while _count(outcomes, options) < (options.sound or options.faults):
            outcomes += _shown(pool.map(partial(run, kinds=kinds), itertools.islice(seeds, 8)))
    return _report(outcomes)


def _count(outcomes: Sequence[Outcome], options: argparse.Namespace) -> int:
    if options.sound:
        return sum(not each.left_out for each in outcomes)
    return sum(len(each.faults) for each in outcomes)


def _shown(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    for each in outcomes:
        print(f"seed {each.seed} {each.words}: {each.left_out or each.alarm or 'sound'}", flush=True)
        for fault in each.faults:
            print(f"  {fault}\n  {'WRONG: ' + fault.wrong if fault.wrong else 'found'}", flush=True)
        yield each


def _report(outcomes: Sequence[Outcome]) -> int:
    """Prints a table; returns the exit code."""
    outcomes = list(_shown(iter(outcomes))) if len(outcomes) == 1 else outcomes
    faults = [each for outcome in outcomes for each in outcome.faults]
    print(f"\n{'kind':<32} planted  large  refused  small  none  found  task or line  wrong")
    for kind in KINDS:
        own = [each for each in faults if each.kind == kind]
        effects = Counter(each.effect for each in own)
        found = [each for each in own if each.cause]
        located, wrong = sum(each.is_located for each in found), sum(bool(each.wrong) for each in own)
        row = "".join(f"{effects[name]:>8}" for name in ("large", "refused", "small", "none"))
        print(f"{kind:<32} {len(own):>7}{row} {len(found):>6} {located:>13} {wrong:>6}")
    for each in faults:
        if each.wrong:
            print(f"WRONG: seed {each.seed}, {each.kind}: {each.wrong}")
    alarms = [each for each in outcomes if each.alarm]
    for each in alarms:
        print(f"FALSE ALARM: seed {each.seed}: {each.alarm}")
    sound = sum(not each.left_out and not each.alarm for each in outcomes)
    wrong = sum(bool(each.wrong) for each in faults)
    print(f"{len(faults)} faults, {wrong} wrong; {sound} sound steps, {len(alarms)} false alarms")
    return int(bool(wrong or alarms))


if __name__ == "__main__":
    raise SystemExit(main())
