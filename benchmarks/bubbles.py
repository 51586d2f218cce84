"""Side work in the bubbles of a GPT's training step: the share of the bubbles that it fills, and what it delays.

    python benchmarks/bubbles.py [--schedule 1f1b] [--seconds 180]

The schedule is filled by the costs of traced steps. Traces take the time of each task alone, and put them together as
if every mesh had processors of its own. A row per length of the side work's tasks: how many there are, the share of the
bubbles that they filled, and the time of a step with them over that of one without. The first row is the step without
side work over itself: what the machine alone does. All steps go by turns, in another order each round.

- By turns: the median of the ratios of all rounds.
- By processor: the critical paths of the steps, put together of the least processor time that a task of each kind and
  stage took in all rounds and microbatches; those that stand right behind side work count apart, as it may slow them.
  What other programs do on the machine hardly shows: a task that they interrupt takes no processor meanwhile.

Both with the interval that holds 95 % of what rounds give that are drawn from these again (bootstrap).
Last the processor time that a task which does nothing takes of the thread that starts all tasks: what side work costs
besides itself.
"""

import argparse
import gc
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # processor time is then that of a task alone

import jax
import numpy as np

import jaxpp
from jaxpp import schedules
from jaxpp.runtime import bubble_use
from jaxpp.schedules.rewrites.fill import fill

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
    """Side work that takes so much of a processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def seconds(events: Any) -> float:
    """From the first task to the last."""
    return max(event.end for event in events) - min(event.start for event in events)


def starting(steps: Sequence[Any], arguments: Any, limit: float) -> list[float]:
    """The least processor time, in seconds, that starting all tasks of each of these steps took, by turns."""
    least = [float("inf")] * len(steps)
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        for number, step in enumerate(steps):
            start = time.thread_time()
            made = step(*arguments)
            least[number] = min(least[number], time.thread_time() - start)
            jax.block_until_ready(made)
    return least


def alike(events: Sequence[Any]) -> dict[tuple[Any, ...], list[int]]:
    """The numbers of events of one kind and stage on a mesh, by whether they stand right behind side work."""
    found: dict[tuple[Any, ...], list[int]] = {}
    before: dict[int, str] = {}
    for number, event in enumerate(events):
        key = event.mesh, event.target, event.kind, event.stage, before.get(event.mesh) == "side"
        found.setdefault(key, []).append(number)
        if event.target is None:
            before[event.mesh] = event.kind
    return found


class Rounds:
    """A step that was traced in every round."""

    def __init__(self, step: Any, plan: schedules.Schedule, rounds: Sequence[Sequence[Any]]) -> None:
        self._step, self._plan, self._events = step, plan, rounds[0]
        self.makespans = np.array([seconds(events) for events in rounds])
        self.times = np.array([[event.processor_seconds for event in events] for events in rounds])
        self._alike = alike(self._events)
        self.filled = float(np.median([bubble_use(events, ["side"]).share for events in rounds]))

    def costs(self, drawn: Any) -> schedules.Costs:
        """What the tasks cost if each takes the least processor time that one like it took in these rounds."""
        least = self.times[drawn].min(axis=0)
        times = {key: float(least[numbers].min()) for key, numbers in self._alike.items()}
        seconds = {number: times[key] for key, numbers in self._alike.items() for number in numbers}
        events = [replace(event, seconds=seconds[number]) for number, event in enumerate(self._events)]
        return self._step.costs(events)

    def length(self, drawn: Any) -> float:
        """How long the step takes then."""
        return schedules.simulate(self._plan, self.costs(drawn)).makespan

    def over(self, other: "Rounds") -> Iterator[str]:
        """The ratios to another step, with their intervals: by turns, and by processor."""
        ratios, every = self.makespans / other.makespans, np.arange(len(self.times))
        draws = np.random.default_rng(0).choice(every, (200, len(every)))
        lengths = [self.length(drawn) / other.length(drawn) for drawn in (every, *draws)]
        for value, again in ((np.median(ratios), np.median(ratios[draws], axis=1)), (lengths[0], lengths[1:])):
            low, high = np.percentile(again, (2.5, 97.5))
            yield f"{value:.4f} ({low:.4f}, {high:.4f})"


def by_turns(steps: Sequence[Any], arguments: Any, limit: float) -> list[list[Any]]:
    """The events of each of these steps, in every round that begins within so many seconds: three at least."""
    order, rounds = np.random.default_rng(0), list[list[Any]]()
    end = time.perf_counter() + limit
    gc.collect()
    gc.disable()
    while len(rounds) < 3 or time.perf_counter() < end:
        rounds.append([None] * len(steps))
        for number in order.permutation(len(steps)):
            rounds[-1][number] = steps[number].trace(*arguments)[1]
    gc.enable()
    return [list(events) for events in zip(*rounds, strict=True)]


def main() -> None:
    """Print a line for each length of the side work's tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180, help="for all rounds together")
    parser.add_argument("--schedule", default="1f1b")
    options = parser.parse_args()
    model = gpt_model.Config(4, 8, 128, 4, 128, "float32")
    text = np.random.default_rng(0).integers(0, 256, (8, 2, model.sequence + 1)).astype(np.int32)
    arguments = gpt_model.init(model, 0), text
    plan = schedules.make(options.schedule, meshes=4, microbatches=8)
    plain = compiled(model, plan, arguments)
    plain.trace(*arguments)
    costs = Rounds(plain, plan, by_turns([plain], arguments, options.seconds / 5)[0]).costs(slice(None))
    lengths = [share * float(np.mean(costs.forward)) for share in (0.25, 0.5, 1)]
    works = [schedules.Operation.parse(f"side:; time {length:.17g}") for length in lengths]
    plans = [fill(plan, work, costs, most=0.8) for work in works]
    steps = [plain, plain]
    for filled, length in zip(plans, lengths, strict=True):
        steps.append(compiled(model, filled, arguments, {"side": partial(spin, length / 1e3)}))
        steps[-1].trace(*arguments)
    traced = by_turns(steps, arguments, options.seconds)
    without, *others = map(Rounds, steps, (plan, plan, *plans), traced)
    print(f"{len(traced[0])} rounds; a step without side work takes {1e3 * np.median(without.makespans):.1f} ms\n")
    print("| task of the side work, ms | tasks | bubbles filled | by turns (95 %) | by processor (95 %) |")
    print("|---:|---:|---:|---|---|")
    for number, (rounds, filled) in enumerate(zip(others, (plan, *plans), strict=True)):
        count = sum(task.kind == "side" for task in filled)
        length = f"{lengths[number - 1]:.2f}" if number else "none"
        print(f"| {length} | {count} | {rounds.filled:.0%} | {' | '.join(rounds.over(without))} |", flush=True)
    filled = fill(plan, schedules.Operation.parse("side:; time 1"), most=0.8)
    count = sum(task.kind == "side" for task in filled)
    idle = compiled(model, filled, arguments, {"side": lambda: None})
    alone, together = starting((plain, idle), arguments, options.seconds / 20)
    each = (together - alone) / count
    print(f"\n{1e6 * each:.1f} us to start each of {count} tasks, {1e3 * alone:.2f} ms to start all others")


if __name__ == "__main__":
    main()
