"""Plants faults in the sums of gradients between the passes of generated steps: `make faults-in-sums`.

A fault of each kind comes at a random place behind `find-microbatch-loop`. The comparison of sums (`WholeSums`), or
another proof of the passes, has to refuse the module, before anything runs. The step without a fault has to pass.
"""

# pyright: reportUnknownLambdaType=false

import argparse
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import conftest  # sets the flags of the tests, which make XLA compile fast, before JAX starts
import jax
import jax.numpy as jnp
import numpy as np
from fuzz.faults import material
from fuzz.planted_sums import SUMS, SumFault
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from unit.end_to_end.compare import weights

import jaxpp.api as jaxpp
from jaxpp import debug
from jaxpp._compat import own_copy
from jaxpp.hlo_passes.base import Pass, run_passes
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.pipelines import VerifyPhases
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.hlo_passes.whole_sums import WholeSumsOfProgram
from jaxpp.ir.errors import PassError
from jaxpp.ir.train_loop import TrainLoopAttr

assert conftest
EXPERTS = -1
"""The seed of a step of which each device has an expert of its own."""
WITHOUT = {"read_sums"}
"""The families whose loops do not only add."""


@dataclass
class Outcome:
    """What came of a seed: for each fault its kind, the pass before it, and the refusal. An `alarm` needs no fault."""

    seed: int
    words: str = ""
    left_out: str = ""
    alarm: str = ""
    faults: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])


def experts() -> tuple[ir.Module, Sequence[Pass], str]:
    """Returns a step of two stages of two experts, one on each device, with weights that both share."""
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("mpmd", "expert")), "mpmd")

    @partial(jax.shard_map, mesh=mesh.jax_mesh, in_specs=(P("expert"), P(), P()), out_specs=P())
    def layer(expert: Any, shared: Any, x: Any) -> Any:
        return jax.lax.psum(jnp.tanh(x @ (expert[0] + shared)), "expert") / 2

    def loss(params: Any, x: Any) -> Any:
        for expert, shared in params:
            x = jaxpp.mark_stage_end(layer(expert, shared, x))
        return jnp.mean(x**2)

    def step(params: Any, batch: Any) -> Any:
        value, gradients = jaxpp.treduce(
            partial(jax.value_and_grad(loss), params), batch, schedule="1f1b", operation=jaxpp.Mean
        )
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value

    params = [(jnp.stack(weights(2)), weights(1)[0]) for _ in range(2)]
    lowered = jaxpp.mpmd_jit_with_loop(step, mesh).lower(params, jnp.ones((4, 6, 8)))
    seen = debug.PassesSeen()
    with debug.watching(seen):
        lowered.program()
    return seen.module, seen.steps, "experts"


def run(seed: int, kinds: Sequence[str] = tuple(SUMS)) -> Outcome:
    """Tries a seed: its step without a fault, then a fault of each kind."""
    outcome = Outcome(seed)
    try:
        found = experts() if seed == EXPERTS else material(seed)
    except Exception as error:  # what a step is refused with is for `make fuzz` to judge
        outcome.left_out = f"{type(error).__name__}: {str(error)[:100]}"
        return outcome
    if found is None or not WITHOUT.isdisjoint(found[2].split(", ")):
        outcome.left_out = "its family is left out, or it is large"
        return outcome
    module, steps, outcome.words = found
    outcome.alarm = refusal(module, steps)
    for kind in kinds if not outcome.alarm else ():
        draw = random.Random(f"{seed} {kind}")
        if (place := _place(draw, kind, module, steps)) is not None:
            index, fault = place
            chain = [*steps[:index], fault, *steps[index:]]
            outcome.faults.append((kind, steps[index - 1].name, refusal(module, chain)))
    return outcome


def refusal(module: ir.Module, steps: Sequence[Pass]) -> str:
    """Returns why the passes are refused, with the comparison of sums; "" where they are not."""
    try:
        run_passes(own_copy(module), steps, [VerifyPhases(), WholeSumsOfProgram()])
    except PassError as error:
        return str(error)
    return ""


def _place(draw: random.Random, kind: str, module: ir.Module, steps: Sequence[Pass]) -> tuple[int, SumFault] | None:
    """Returns a fault at a random place among those where the module has a site for it; None if there is none."""
    first = next(number for number, step in enumerate(steps, 1) if isinstance(step, FindMicrobatchLoop))
    with module.context:
        has_steps = TrainLoopAttr.of(module) is not None  # the sums of several steps are not compared
    last = next(n for n, step in enumerate(steps) if isinstance(step, ShareFunctions)) if has_steps else len(steps) - 1
    for index in draw.sample(range(first, last + 1), last + 1 - first):
        before = own_copy(module)
        run_passes(before, steps[:index])
        with before.context, ir.Location.unknown():
            count = len(list(SUMS[kind](before)))
        if count:
            return index, SumFault(kind, draw.randrange(count))
    return None


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make faults-in-sums", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="how many faults to plant")
    parser.add_argument("--first", type=int, default=EXPERTS, help="the first seed")
    parser.add_argument("--seed", type=int, help="one seed alone")
    parser.add_argument("--sound", type=int, default=0, help="try so many steps without faults instead")
    options = parser.parse_args()
    seeds = itertools.count(options.first) if options.seed is None else iter([options.seed])
    kinds, most = () if options.sound else tuple(SUMS), options.sound or options.faults
    outcomes = list[Outcome]()
    for seed in seeds:
        outcomes += _shown(run(seed, kinds))
        if sum(not each.left_out if options.sound else len(each.faults) for each in outcomes) >= most:
            break
    return _report(outcomes)


def _shown(outcome: Outcome) -> Iterator[Outcome]:
    print(f"seed {outcome.seed} {outcome.words}: {outcome.left_out or outcome.alarm or 'sound'}", flush=True)
    for kind, after, error in outcome.faults:
        print(f"  {kind}, after {after}: {error or 'NOT FOUND'}", flush=True)
    yield outcome


def _report(outcomes: Sequence[Outcome]) -> int:
    """Prints a table; returns the exit code."""
    faults = [each for outcome in outcomes for each in outcome.faults]
    print(f"\n{'kind':<32} planted  found")
    for kind in SUMS:
        own = [error for name, _, error in faults if name == kind]
        print(f"{kind:<32} {len(own):>7} {sum(map(bool, own)):>6}")
    alarms = [each for each in outcomes if each.alarm]
    for each in alarms:
        print(f"WRONG: seed {each.seed}: a false alarm: {each.alarm}")
    missed = sum(not error for *_, error in faults)
    tried = sum(not each.left_out for each in outcomes)
    print(f"{tried} steps, {len(faults)} faults, {missed} not found, {len(alarms)} false alarms")
    return int(bool(missed or alarms))


if __name__ == "__main__":
    raise SystemExit(main())
