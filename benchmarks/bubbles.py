"""Side work in the bubbles of a GPT's training step: the share of the bubbles that it fills, and what it delays.

    python benchmarks/bubbles.py [--schedule 1f1b] [--repeat 9]

The schedule is filled by the costs of traced steps. Traces take the time of each task alone, and put them together as
if every mesh had processors of its own. A row per length of the side work's tasks: how many there are, the share of the
bubbles that they filled, and the time of a step with them over that of one without: by turns, and by the costs of all
traced steps together, which a busy machine disturbs less. Last the processor time that a task which does nothing takes
of the thread that starts all tasks: what side work costs besides itself.
"""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import numpy as np

import jaxpp
from jaxpp import schedules
from jaxpp.runtime import bubble_use

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
gpt_model: Any = importlib.import_module("gpt_model")


def train_step(model: Any, plan: schedules.Schedule, parameters: Any, text: Any) -> Any:
    """(gradients, losses)"""
    one = partial(jax.value_and_grad(partial(gpt_model.loss, model)), parameters)
    losses, gradients = jaxpp.treduce(one, text, schedule=plan, operation=(jaxpp.Concat(), jaxpp.Add))
    return gradients, losses


def compiled(model: Any, plan: schedules.Schedule, arguments: Any, operations: Any = None) -> Any:
    """The step under a schedule, compiled."""
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[: plan.meshes]), ("mpmd",)), "mpmd")
    step = jaxpp.mpmd_jit_with_loop(partial(train_step, model, plan), mesh, operations=operations)
    return step.lower(*arguments).compile()


def spin(seconds: float) -> None:
    """Side work that takes so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def seconds(events: Any) -> float:
    """From the first task to the last."""
    return max(event.end for event in events) - min(event.start for event in events)


def starting(steps: Sequence[Any], arguments: Any, repeat: int) -> list[float]:
    """The least processor time, in seconds, that starting all tasks of each of these steps took, by turns."""
    least = [float("inf")] * len(steps)
    for _ in range(10 * repeat):
        for number, step in enumerate(steps):
            start = time.thread_time()
            made = step(*arguments)
            least[number] = min(least[number], time.thread_time() - start)
            jax.block_until_ready(made)
    return least


def main() -> None:
    """Print a line for each length of the side work's tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--schedule", default="1f1b")
    options = parser.parse_args()
    model = gpt_model.Config(4, 8, 128, 4, 128, "float32")
    text = np.random.default_rng(0).integers(0, 256, (8, 4, model.sequence + 1)).astype(np.int32)
    arguments = gpt_model.init(model, 0), text
    plan = schedules.make(options.schedule, meshes=4, microbatches=8)
    plain = compiled(model, plan, arguments)
    plain.trace(*arguments)
    costs = plain.costs(*(plain.trace(*arguments)[1] for _ in range(options.repeat)), unit="s")
    print("| task of the side work, ms | tasks | bubbles filled | by turns (quartiles) | by costs |")
    print("|---:|---:|---:|---|---:|")
    for share in (0.25, 0.5, 1, 2):
        length = share * float(np.mean(costs.forward))
        work = schedules.Operation.parse(f"side:; time {length:.17g}")
        filled = schedules.fill(plan, work, costs, most=0.8)
        step = compiled(model, filled, arguments, {"side": partial(spin, length)})
        step.trace(*arguments)
        turns = [(plain.trace(*arguments)[1], step.trace(*arguments)[1]) for _ in range(options.repeat)]
        low, middle, high = np.percentile([seconds(other) / seconds(one) for one, other in turns], (25, 50, 75))
        filled_share = np.median([bubble_use(other, ["side"]).share for _, other in turns])
        measured = step.costs(*(other for _, other in turns), unit="s")
        longer = schedules.simulate(filled, measured).makespan / schedules.simulate(plan, measured).makespan
        count = sum(task.kind == "side" for task in filled)
        row = f"| {1e3 * length:.2f} | {count} | {filled_share:.0%} | {middle:.3f} ({low:.3f}, {high:.3f})"
        print(f"{row} | {longer:.4f} |", flush=True)
    filled = schedules.fill(plan, schedules.Operation.parse("side:; time 1"), most=0.8)
    count = sum(task.kind == "side" for task in filled)
    idle = compiled(model, filled, arguments, {"side": lambda: None})
    without, with_them = starting((plain, idle), arguments, options.repeat)
    each = (with_them - without) / count
    print(f"\n{1e6 * each:.1f} us to start each of {count} tasks, {1e3 * without:.2f} ms to start all others")


if __name__ == "__main__":
    main()
