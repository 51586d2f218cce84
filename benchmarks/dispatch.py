"""What a task costs when it computes almost nothing: our step beside a hand-written loop, and what the machine gives.

    python benchmarks/dispatch.py [--stages 4] [--microbatches 32] [--width 32] [--repeat 60]

Both run one training step of the same tanh MLP, one device per stage, in the same 1F1B order, on the same data, in
turns in one process. The time is that of a whole step with `block_until_ready` at its end, over its tasks (2 x stages
x microbatches): start, transfers, updates and Python included. The hand-written loop is what a careful user writes
with public JAX: jitted stage functions with donated accumulators, dispatched from one thread, `jax.device_put` in
between.

Measured in the same turns: a jitted call with its inputs ready (the mean of a stage's forward and backward), and a copy
to another device, the cheapest that the backend has; bursts of each, until all are done. Their sum is one call for each
task and one copy for each value that is sent. The last table says which calls and copies of our step were done when
their launch returned: XLA ran them at once, or a thread of its own had run them by then. The others were queued.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp
import numpy as np

import jaxpp
from jaxpp import schedules
from jaxpp.runtime import Call
from jaxpp.runtime.processes.arrays import batch_copy
from jaxpp.schedules.engine.merged_order import merged_order

RATE = 0.01
BURST = 64
"""How many calls, or copies, are timed together."""


def loss(weights: list[Any], x: Any) -> Any:
    """Half the squared norm of a tanh MLP's output, with a stage per layer."""
    for weight in weights:
        x = jaxpp.mark_stage_end(jnp.tanh(x @ weight))
    return 0.5 * jnp.sum(x * x)


class Ours:
    """One training step through `mpmd_jit_with_loop`."""

    def __init__(self, stages: int, weights: list[Any], batch: Any) -> None:
        mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:stages]), ("mpmd",)), "mpmd")

        @partial(jaxpp.mpmd_jit_with_loop, mpmd_mesh=mesh, donate_argnums=0)
        def step(weights: list[Any], batch: Any) -> Any:
            gradient = partial(jax.value_and_grad(loss), weights)
            operation = (jaxpp.Add, jaxpp.Add)
            total, grads = jaxpp.treduce(gradient, batch, schedule=jaxpp.Std1F1B(stages), operation=operation)
            return [w - RATE * g for w, g in zip(weights, grads, strict=True)], total

        self.step, self.state = step, [jnp.array(weight) for weight in weights]
        self.compiled = step.compile(self.state, batch)
        self.state, _ = self.compiled(self.state, batch)
        self.batch = jax.device_put(batch, self.state[0].sharding)  # where the first stage takes it

    def __call__(self) -> Any:
        self.state, total = self.step(self.state, self.batch)
        return self.state, total

    def at_once(self) -> Counter[tuple[str, bool]]:
        """Run one step; of what kind each launch was, and whether all that it makes was there when it returned."""
        found: Counter[tuple[str, bool]] = Counter()

        def look(label: Any, made: Sequence[Any], _: object) -> None:
            kinds = [each.kind if isinstance(each, Call) else "copy" for _, each in label]
            found.update((kind, all(array.is_ready() for array in made)) for kind in kinds)

        executable: Any = self.compiled.executable
        *self.state, _ = executable.run([*self.state, self.batch], look, one_by_one=False)
        return found


@jax.jit
def forward(w: Any, x: Any) -> Any:
    """What a stage does."""
    return jnp.tanh(x @ w)


@partial(jax.jit, donate_argnums=4)
def backward(w: Any, x: Any, y: Any, g: Any, total: Any) -> Any:
    """The gradient of a stage's input, and the sum of those of its weights."""
    gradient = g * (1 - y * y)
    return gradient @ w.T, total + x.T @ gradient


def make_by_hand(stages: int, weights: list[Any], batch: Any) -> Callable[[], Any]:
    """The same step as a loop over jitted stage functions."""
    devices = jax.devices()[:stages]
    microbatches = batch.shape[0]

    @jax.jit
    def first(w: Any, xs: Any, i: Any) -> Any:
        x = jax.lax.dynamic_index_in_dim(xs, i, keepdims=False)
        return x, jnp.tanh(x @ w)

    @partial(jax.jit, donate_argnums=1)
    def add_loss(y: Any, total: Any) -> Any:
        return total + 0.5 * jnp.sum(y * y)

    update = jax.jit(lambda w, g: w - RATE * g, donate_argnums=0)  # pyright: ignore[reportUnknownLambdaType]  # w: array
    zeros = [jax.device_put(np.zeros(w.shape, w.dtype), d) for w, d in zip(weights, devices, strict=True)]
    fresh = jax.jit(jnp.copy)
    index = [jax.device_put(np.int32(i), devices[0]) for i in range(microbatches)]
    order = merged_order(schedules.make("1f1b", meshes=stages, microbatches=microbatches))
    state = [jax.device_put(w, d) for w, d in zip(weights, devices, strict=True)]
    batch = jax.device_put(batch, devices[0])
    no_loss = jax.device_put(np.float32(0), devices[-1])

    def run() -> Any:
        nonlocal state
        inputs: list[dict[int, Any]] = [{} for _ in range(stages)]
        outputs: list[dict[int, Any]] = [{} for _ in range(stages)]
        incoming: list[dict[int, Any]] = [{} for _ in range(stages)]
        totals = [fresh(zero) for zero in zeros]
        value = fresh(no_loss)
        for s, task in order:
            m = task.microbatch
            if task.kind == "forward":
                if s == 0:
                    inputs[0][m], outputs[0][m] = first(state[0], batch, index[m])
                else:
                    outputs[s][m] = forward(state[s], inputs[s][m])
                if s + 1 < stages:
                    inputs[s + 1][m] = jax.device_put(outputs[s][m], devices[s + 1])
                else:
                    value = add_loss(outputs[s][m], value)
            else:
                y = outputs[s].pop(m)
                g = y if s + 1 == stages else incoming[s].pop(m)
                g, totals[s] = backward(state[s], inputs[s].pop(m), y, g, totals[s])
                if s:
                    incoming[s - 1][m] = jax.device_put(g, devices[s - 1])
        state = [update(w, g) for w, g in zip(state, totals, strict=True)]
        return state, value

    return run


def make_call(weights: list[Any], batch: Any) -> Callable[[], float]:
    """A function that returns the microseconds of a jitted call, forwards and backwards by halves."""
    w, x = jnp.array(weights[0]), jnp.array(batch[0])
    y, total = forward(w, x), jnp.zeros_like(w)

    def run() -> float:
        nonlocal total
        start = time.perf_counter()
        made = [forward(w, x) for _ in range(BURST)]
        for _ in range(BURST):
            gradient, total = backward(w, x, y, y, total)
            made.append(gradient)
        jax.block_until_ready(made)
        return (time.perf_counter() - start) * 1e6 / len(made)

    return run


def make_copy(batch: Any) -> Callable[[], float]:
    """A function that returns the microseconds of a copy to another device."""
    x = jnp.array(batch[0])
    copy = batch_copy([jax.sharding.SingleDeviceSharding(jax.devices()[1])])

    def run() -> float:
        start = time.perf_counter()
        jax.block_until_ready([copy([x]) for _ in range(BURST)])
        return (time.perf_counter() - start) * 1e6 / BURST

    return run


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=60)
    args = parser.parse_args()
    tasks = 2 * args.stages * args.microbatches
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, args.width**-0.5, (args.width, args.width)).astype(np.float32) for _ in range(args.stages)]
    batch = rng.normal(size=(args.microbatches, 8, args.width)).astype(np.float32)
    ours, by_hand = Ours(args.stages, weights, batch), make_by_hand(args.stages, weights, batch)
    for a, b in zip(jax.tree.leaves(ours()), jax.tree.leaves([by_hand(), by_hand()][1]), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)
    rows: dict[str, Callable[[], float]] = {
        "jaxpp": partial(per_task, ours, tasks),
        "by hand": partial(per_task, by_hand, tasks),
        "a jitted call": make_call(weights, batch),
        "a copy": make_copy(batch),
    }
    times = {name: np.array(found) for name, found in zip(rows, measure(rows.values(), args.repeat), strict=True)}
    times["their sum"] = times["a jitted call"] + times["a copy"] * (1 - 1 / args.stages)
    report(times)
    launches = sum((ours.at_once() for _ in range(args.repeat)), Counter[tuple[str, bool]]())
    print("\n| launches per step | done at once | queued |\n|---|---:|---:|")
    for kind in dict.fromkeys(kind for kind, _ in launches):
        print(f"| {kind} | {launches[kind, True] / args.repeat:.0f} | {launches[kind, False] / args.repeat:.0f} |")


def per_task(step: Callable[[], Any], tasks: int) -> float:
    """The microseconds of a step for each of its tasks."""
    start = time.perf_counter()
    jax.block_until_ready(step())
    return (time.perf_counter() - start) * 1e6 / tasks


def measure(rows: Collection[Callable[[], float]], repeat: int) -> list[list[float]]:
    """What these return, called in turns, without the first turn."""
    turns = [[row() for row in rows] for _ in range(repeat + 1)]
    return [list(each) for each in zip(*turns[1:], strict=True)]


def report(times: dict[str, Any]) -> None:
    """Print microseconds, and the ratios turn by turn and of the least times."""
    print("| µs per task | minimum | median | 90 % |\n|---|---:|---:|---:|")
    for name, found in times.items():
        print(f"| {name} | " + " | ".join(f"{each:.1f}" for each in np.percentile(found, (0, 50, 90))) + " |")
    print()
    for other in ("by hand", "their sum"):
        ratio, least = np.median(times["jaxpp"] / times[other]), times["jaxpp"].min() / times[other].min()
        print(f"jaxpp / {other}: {ratio:.2f} in the median of all turns, {least:.2f} of the minima")


if __name__ == "__main__":
    main()
