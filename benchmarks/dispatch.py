"""What a task costs when it computes almost nothing: our step beside a hand-written loop.

    python benchmarks/dispatch.py [--stages 4] [--microbatches 32] [--width 32] [--repeat 60]

Both run one training step of the same tanh MLP, one device per stage, in the same 1F1B order, on the same data, in
turns in one process. The time is that of a whole step with `block_until_ready` at its end, over its tasks (2 x stages
x microbatches): start, transfers, updates and Python included. The hand-written loop is what a careful user writes
with public JAX: jitted stage functions with donated accumulators, dispatched from one thread, `jax.device_put` in
between.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp
import numpy as np

import jaxpp
from jaxpp import schedules

RATE = 0.01


def loss(weights: list[Any], x: Any) -> Any:
    """Half the squared norm of a tanh MLP's output, with a stage per layer."""
    for weight in weights:
        x = jaxpp.mark_stage_end(jnp.tanh(x @ weight))
    return 0.5 * jnp.sum(x * x)


def make_ours(stages: int, weights: list[Any], batch: Any) -> Callable[[], Any]:
    """One training step through `mpmd_jit_with_loop`."""
    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:stages]), ("mpmd",)), "mpmd")

    @partial(jaxpp.mpmd_jit_with_loop, mpmd_mesh=mesh, donate_argnums=0)
    def step(weights: list[Any], batch: Any) -> Any:
        gradient = partial(jax.value_and_grad(loss), weights)
        operation = (jaxpp.Add, jaxpp.Add)
        total, grads = jaxpp.treduce(gradient, batch, schedule=jaxpp.Std1F1B(stages), operation=operation)
        return [w - RATE * g for w, g in zip(weights, grads, strict=True)], total

    state = [jnp.array(weight) for weight in weights]

    def run() -> Any:
        nonlocal state, batch
        state, total = step(state, batch)
        return state, total

    run()
    batch = jax.device_put(batch, state[0].sharding)  # where the first stage takes it
    return run


def make_by_hand(stages: int, weights: list[Any], batch: Any) -> Callable[[], Any]:
    """The same step as a loop over jitted stage functions."""
    devices = jax.devices()[:stages]
    microbatches = batch.shape[0]

    @jax.jit
    def first(w: Any, xs: Any, i: Any) -> Any:
        x = jax.lax.dynamic_index_in_dim(xs, i, keepdims=False)
        return x, jnp.tanh(x @ w)

    @jax.jit
    def forward(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    @partial(jax.jit, donate_argnums=4)
    def backward(w: Any, x: Any, y: Any, g: Any, total: Any) -> Any:
        gradient = g * (1 - y * y)
        return gradient @ w.T, total + x.T @ gradient

    @partial(jax.jit, donate_argnums=1)
    def add_loss(y: Any, total: Any) -> Any:
        return total + 0.5 * jnp.sum(y * y)

    update = jax.jit(lambda w, g: w - RATE * g, donate_argnums=0)  # pyright: ignore[reportUnknownLambdaType]  # w: array
    zeros = [jax.device_put(np.zeros(w.shape, w.dtype), d) for w, d in zip(weights, devices, strict=True)]
    fresh = jax.jit(jnp.copy)
    index = [jax.device_put(np.int32(i), devices[0]) for i in range(microbatches)]
    order = schedules.merged_order(schedules.make("1f1b", meshes=stages, microbatches=microbatches))
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


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=60)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, args.width**-0.5, (args.width, args.width)).astype(np.float32) for _ in range(args.stages)]
    batch = rng.normal(size=(args.microbatches, 8, args.width)).astype(np.float32)
    runs = {
        "jaxpp": make_ours(args.stages, weights, batch),
        "by hand": make_by_hand(args.stages, weights, batch),
    }
    states = {name: run() for name, run in runs.items()}
    states["by hand"] = runs["by hand"]()  # ours ran once more, to be compiled
    for a, b in zip(jax.tree.leaves(states["jaxpp"]), jax.tree.leaves(states["by hand"]), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.repeat):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append((time.perf_counter() - start) * 1e6 / (2 * args.stages * args.microbatches))
    print("| µs per task | minimum | median | 90 % |\n|---|---:|---:|---:|")
    for name, found in times.items():
        low, middle, high = np.percentile(found, (0, 50, 90))
        print(f"| {name} | {low:.1f} | {middle:.1f} | {high:.1f} |")
    ratios = [ours / hand for ours, hand in zip(times["jaxpp"], times["by hand"], strict=True)]
    print(f"\njaxpp / by hand, step by step: median {np.median(ratios):.2f}")


if __name__ == "__main__":
    main()
