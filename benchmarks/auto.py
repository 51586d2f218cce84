"""`schedule="auto"` on the GPT with a large vocabulary, against the library's schedules with equal stages.

    python benchmarks/auto.py [--layers 12] [--width 256] [--vocabulary 32768] [--microbatches 8] [--repeat 7] [--tasks]

Two processes of one core each (see processes.py), a mesh each. The head takes as long as several blocks, and the
library's schedules have as many blocks in each stage. Each step is compiled and warmed up, the automatic one until it
is tuned; then all take turns. Printed are the least and the median time of a step, what auto chose and why, and its
speed-up over the best of the others: the median and the range of the ratios, round by round. A machine that is busy
with other work shows none: what one process leaves idle, the other work takes.

`--tasks` also prints what the tasks of each stage take alone, as the prediction has them, and beside the other mesh, in
a traced step of what auto chose: what both share (caches, the way to the memory) is in no prediction.
"""

import argparse
import functools
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from processes import join, start

import jaxpp
from jaxpp.runtime.processes.job import gather
from jaxpp.schedules import Costs

sys.path.append(str(Path(__file__).parents[1] / "examples"))
gpt_model: Any = importlib.import_module("gpt_model")

LIBRARY = ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v")


def main() -> None:
    """Start two processes with a core each, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 12, "width": 256, "vocabulary": 32768, "microbatches": 8, "sequence": 64, "repeat": 7}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", nargs="+", default=LIBRARY, help="schedules of the library")
    parser.add_argument("--tasks", action="store_true", help="what tasks take alone, and beside the other mesh")
    parser.add_argument("--picture", help="of what was there before and what auto chose: .svg, .png or .html")
    parser.add_argument("--join", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.join is None:
        sys.exit(start())
    join(options.join[0], 2, int(options.join[1]))
    runs = {name: make(name, options)[1] for name in options.only}
    step, runs["auto"], trace = make("auto", options)
    while step.tuned is None:
        runs["auto"]()
    times = measure(runs, options.repeat)
    beside = trace() if options.tasks else None
    if jax.process_index() == 0:
        print(step.tuned)
        report(times)
        if beside:
            compare_tasks(step.tuned.costs, beside)
        if options.picture:
            step.tuned.draw(options.picture)
    gather("")


def make(name: str, options: argparse.Namespace) -> tuple[Any, Callable[[], None], Callable[[], Costs]]:
    """The step in a schedule, and functions that run it, or trace it for its costs, with the state that it left."""
    chunks = 1 if name in ("auto", "1f1b", "zb-h1", "gpipe") else 2
    stages = None if name == "auto" else 2 * chunks
    model = gpt_model.Config(stages, options.layers, options.width, 8, options.sequence, vocabulary=options.vocabulary)
    loss_and_gradients = jax.value_and_grad(functools.partial(gpt_model.loss, model))

    def train_step(parameters: Any, batch: Any) -> Any:
        losses, gradients = jaxpp.treduce(functools.partial(loss_and_gradients, parameters), batch, schedule=name)
        rate = 0.01 / options.microbatches
        return jax.tree.map(lambda w, g: w - rate * g, parameters, gradients), jnp.mean(losses)  # pyright: ignore[reportUnknownLambdaType]  # of arrays

    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()), ("mpmd",)), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(train_step, mesh, donate_argnums=0)
    state: Any = gpt_model.init(model, 0)
    shape = (options.microbatches, 1, options.sequence + 1)
    batch = np.random.default_rng(0).integers(256, size=shape).astype(np.int32)

    def run() -> None:
        nonlocal state
        state, loss = step(state, batch)
        jax.block_until_ready((state, loss))

    def trace() -> Costs:
        nonlocal state
        compiled, steps = step.lower(state, batch).compile(), list[Any]()
        for _ in range(options.repeat):
            (state, _), events = compiled.trace(state, batch)
            steps.append(events)
        return compiled.costs(*steps)

    run()
    return step, run, trace


def measure(runs: Mapping[str, Callable[[], None]], repeat: int) -> dict[str, list[float]]:
    """The seconds of each step, run in turns, until the last process is done."""
    found: list[dict[str, tuple[float, float]]] = []
    for _ in range(repeat):
        found.append({})
        for name, run in runs.items():
            gather("")
            begin = time.perf_counter()  # of the machine, not of the process
            run()
            found[-1][name] = begin, time.perf_counter()
    every = [json.loads(each) for each in gather(json.dumps(found))]
    turns = list(zip(*every, strict=True))
    return {
        name: [max(each[name][1] for each in turn) - min(each[name][0] for each in turn) for turn in turns]
        for name in runs
    }


def compare_tasks(alone: Costs, beside: Costs) -> None:
    """Print a line for each stage and kind of task."""
    for kind in ("forward", "input_grad", "weight_grad"):
        both: Any = zip(getattr(alone, kind), getattr(beside, kind), strict=True)
        for stage, (one, other) in enumerate(both):
            if one and other:
                print(f"{kind} of stage {stage}: {one:.2f} ms alone, {other:.2f} beside ({other / one:.2f} times)")


def report(times: Mapping[str, list[float]]) -> None:
    """Print a line for each step, and how much faster the automatic one is than the best of the others."""
    for name, found in times.items():
        print(f"{name:17} {1e3 * min(found):8.1f} ms, median {1e3 * statistics.median(found):8.1f} ms")
    best = min((name for name in times if name != "auto"), key=lambda name: statistics.median(times[name]))
    ratios = sorted(one / other for one, other in zip(times[best], times["auto"], strict=True))
    middle = statistics.median(ratios)
    print(f"auto over {best}: {middle:.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f}; asked: 1.15)")


if __name__ == "__main__":
    main()
