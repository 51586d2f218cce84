"""Trains with delayed gradients: four stages that never wait between two optimizer steps (PipeDream-2BW).

    python examples/delayed.py                         # 5 calls of 8 steps, 4 microbatches each
    python examples/delayed.py --check                 # and the same steps with plain jax.jit
    python examples/delayed.py --picture delayed.html  # the schedule, above it the one with a barrier at each step

Each call of the step runs `STEPS` optimizer steps in one program. It computes gradients with the weights of one step
before. So the next step begins while this one still runs backward, and there is one bubble per call, not per step.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxpp
from jaxpp import schedules
from jaxpp.schedules.builders.steps import repeat

STAGES, CALLS, STEPS, MICROBATCHES, ROWS, WIDTH = 4, 5, 8, 4, 16, 32
OPTIMIZER = optax.adam(3e-3)


def loss(weights: list[jax.Array], microbatch: Any) -> jax.Array:
    """Mean squared error of residual layers, one per stage."""
    x, y = microbatch
    for weight in weights:
        x = jaxpp.mark_stage_end(x + jnp.tanh(x @ weight))
    return jnp.mean((x - y) ** 2)


def train_step(state: Any, batch: Any, older: list[jax.Array]) -> Any:
    """Returns (new state, mean loss). The gradients are computed with `older`, the weights of one step before."""
    weights, optimizer = state
    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), older), batch, schedule="pipedream-2bw")
    updates, optimizer = OPTIMIZER.update(gradients, optimizer, weights)
    return (optax.apply_updates(weights, updates), optimizer), losses.mean()


LOOP = jaxpp.train_loop(train_step, STEPS, delay=1)


def train(steps: Any) -> list[float]:
    """The losses of all steps of all calls."""
    keys = jax.random.split(jax.random.key(0), STAGES + 1)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) * WIDTH**-0.5 for key in keys[1:]]
    x = jax.random.normal(keys[0], (STEPS, MICROBATCHES, ROWS, WIDTH))
    carry, losses = LOOP.start((weights, OPTIMIZER.init(weights))), list[float]()
    for _ in range(CALLS):
        carry, values = steps(carry, (x, jnp.sin(x)))
        losses += values.tolist()
    return losses


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 1 when --check finds too large a difference."""
    parser = argparse.ArgumentParser(description="gradients that are one step old")
    parser.add_argument("--check", action="store_true", help="compare with plain jax.jit")
    parser.add_argument("--picture", metavar="FILE", help="draw the schedules: .svg, .png or .html")
    options = parser.parse_args(arguments)
    numbers = {"meshes": STAGES, "microbatches": MICROBATCHES}
    waiting = repeat(schedules.make("1f1b", **numbers), STEPS)
    delayed = schedules.make("pipedream-2bw", **numbers, steps=STEPS)
    reports = [schedules.simulate(each) for each in (waiting, delayed)]
    for report in reports:
        print(f"{report.schedule.name}, simulated: {STEPS} steps take {report.makespan:.0f}")
    if options.picture:
        schedules.draw(reports, options.picture)
    mesh = jaxpp.MpmdMesh.make(mpmd=STAGES)
    losses = train(jaxpp.mpmd_jit_with_loop(LOOP, mpmd_mesh=mesh, donate_argnums=0))
    print(f"loss {losses[0]:.4f} after the first step, {losses[-1]:.4f} after {CALLS * STEPS}")
    if not options.check:
        return 0
    difference = float(np.max(np.abs(np.array(losses) / np.array(train(jax.jit(LOOP))) - 1)))
    print(f"largest relative difference from plain jax.jit: {difference:.1e}")
    return int(not difference < 1e-5)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # virtual devices; leave these two lines out where there are real ones
    jax.config.update("jax_num_cpu_devices", STAGES)
    raise SystemExit(main())
