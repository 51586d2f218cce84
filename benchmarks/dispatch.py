"""Measures what a task costs that computes almost nothing: jaxpp, a hand-written loop, and JAX's own calls and copies.

    python benchmarks/dispatch.py [--stages 4] [--microbatches 32] [--width 32] [--repeat 60]

Both run a training step of the same tanh MLP in the same 1F1B order, one device per stage, by turns in one process. The
time is that of a whole step over its tasks (2 x stages x microbatches), with start, transfers, updates and Python. The
loop is what a careful user writes with public JAX: jitted stage functions with donated accumulators, dispatched from
one thread, and `jax.device_put` in between.

`Their sum` is measured in the same turns: a jitted call for each task with its inputs ready (the mean of forward and
backward), and a copy to another device for each value that is sent, the cheapest that the backend has.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp
import numpy as np
from shared import by_turns, parser, ratios, show, timed

import jaxpp
from jaxpp import schedules
from jaxpp.runtime.processes.arrays import batch_copy
from jaxpp.schedules.engine.merged_order import merged_order

RATE = 0.01
BURST = 64
"""How many calls, or copies, are timed together."""


def loss(weights: list[Any], x: Any) -> Any:
    """Returns half the squared norm of a tanh MLP's output, with a stage per layer."""
    for weight in weights:
        x = jaxpp.mark_stage_end(jnp.tanh(x @ weight))
    return 0.5 * jnp.sum(x * x)


def make_ours(stages: int, weights: list[Any], batch: Any) -> Callable[[], Any]:
    """Returns one training step through `mpmd_jit_with_loop`."""
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:stages]), ("mpmd",)), "mpmd")

    @partial(jaxpp.mpmd_jit_with_loop, mpmd_mesh=mesh, donate_argnums=0)
    def step(weights: list[Any], batch: Any) -> Any:
        gradient = partial(jax.value_and_grad(loss), weights)
        operation = (jaxpp.Add, jaxpp.Add)
        total, grads = jaxpp.treduce(gradient, batch, schedule=jaxpp.schedules.Std1F1B(stages), operation=operation)
        return [w - RATE * g for w, g in zip(weights, grads, strict=True)], total

    state: Any = step([jnp.array(weight) for weight in weights], batch)[0]
    batch = jax.device_put(batch, state[0].sharding)  # where the first stage takes it

    def run() -> Any:
        nonlocal state
        state, total = step(state, batch)
        return state, total

    return run


@jax.jit
def forward(w: Any, x: Any) -> Any:
    """Runs a stage."""
    return jnp.tanh(x @ w)


@partial(jax.jit, donate_argnums=4)
def backward(w: Any, x: Any, y: Any, g: Any, total: Any) -> Any:
    """Returns the gradient of a stage's input, and the sum of those of its weights."""
    gradient = g * (1 - y * y)
    return gradient @ w.T, total + x.T @ gradient


def make_by_hand(stages: int, weights: list[Any], batch: Any) -> Callable[[], Any]:
    """Returns the same step as a loop over jitted stage functions."""
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


def make_calls(weights: list[Any], batch: Any) -> Callable[[], Any]:
    """Returns a burst of jitted calls, half of them forwards and half backwards."""
    w, x = jnp.array(weights[0]), jnp.array(batch[0])
    y, total = forward(w, x), jnp.zeros_like(w)

    def run() -> list[Any]:
        nonlocal total
        made = [forward(w, x) for _ in range(BURST)]
        for _ in range(BURST):
            gradient, total = backward(w, x, y, y, total)
            made.append(gradient)
        return made

    return run


def make_copies(batch: Any) -> Callable[[], Any]:
    """Returns a burst of copies to another device."""
    x = jnp.array(batch[0])
    copy = batch_copy([jax.sharding.SingleDeviceSharding(jax.devices()[1])])
    return lambda: [copy([x]) for _ in range(BURST)]


def main() -> None:
    """Measures in turns and prints."""
    args = parser(__doc__, stages=4, microbatches=32, width=32, repeat=60).parse_args()
    tasks = 2 * args.stages * args.microbatches
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, args.width**-0.5, (args.width, args.width)).astype(np.float32) for _ in range(args.stages)]
    batch = rng.normal(size=(args.microbatches, 8, args.width)).astype(np.float32)
    ours, by_hand = make_ours(args.stages, weights, batch), make_by_hand(args.stages, weights, batch)
    for a, b in zip(jax.tree.leaves(ours()), jax.tree.leaves([by_hand(), by_hand()][1]), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)
    runs = {
        "jaxpp": (ours, tasks),
        "by hand": (by_hand, tasks),
        "a jitted call": (make_calls(weights, batch), 2 * BURST),
        "a copy": (make_copies(batch), BURST),
    }
    seconds = by_turns({name: partial(timed, run) for name, (run, _) in runs.items()}, args.repeat)
    times = {name: np.array(found) * 1e6 / runs[name][1] for name, found in seconds.items()}
    times["their sum"] = times["a jitted call"] + times["a copy"] * (1 - 1 / args.stages)
    cells = {name: [f"{each:.1f}" for each in np.percentile(found, (0, 50, 90))] for name, found in times.items()}
    show(("µs per task", "minimum", "median", "90 %"), [(name, *row) for name, row in cells.items()])
    for other in ("by hand", "their sum"):
        median, least = np.median(ratios(times["jaxpp"], times[other])), times["jaxpp"].min() / times[other].min()
        print(f"jaxpp / {other}: {median:.2f} in the median of all turns, {least:.2f} of the minima")


if __name__ == "__main__":
    main()
