"""Trains on pairs of pictures and texts: an encoder for each, side by side on meshes of their own, and what joins them.

    python examples/two_towers.py                        # stages: picture, picture, text, both
    python examples/two_towers.py --check                # and the same steps with plain jax.jit
    python examples/two_towers.py --picture towers.html  # the schedule, above it the one of a chain

What makes it a graph of stages: `AFTER`. It says of each stage which others it reads; the text is encoded without
waiting for the picture. The order is searched for: no published schedule is one of a graph.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import jaxpp
from jaxpp import schedules

STAGES = ("lower layers of the picture", "upper layers of the picture", "text", "both")
AFTER = [[], [0], [], [1, 2]]
TIMES = [1.0, 1.0, 2.0, 1.0]  # the text's encoder is one stage, as long as two of the others
MICROBATCHES, ROWS, WIDTH, STEPS, RATE = 8, 16, 32, 20, 0.02

Parameters = list[list[jax.Array]]


def init() -> Parameters:
    """Two matrices for each stage, four for the text's."""
    counts = [2, 2, 4, 2]
    keys = iter(jax.random.split(jax.random.key(0), sum(counts)))
    return [[jax.random.normal(next(keys), (WIDTH, WIDTH)) * WIDTH**-0.5 for _ in range(count)] for count in counts]


def loss(parameters: Parameters, microbatch: Any) -> jax.Array:
    """Mean squared error of what both towers say together."""
    lower, upper, words, joined = (partial(_layers, weights) for weights in parameters)
    picture = jaxpp.mark_stage_end(lower(microbatch["picture"]))
    picture = jaxpp.mark_stage_end(upper(picture))
    text = jaxpp.mark_stage_end(words(microbatch["text"]))
    return jaxpp.mark_stage_end(jnp.mean((joined(picture * text) - microbatch["target"]) ** 2))


def _layers(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        x = x + jnp.tanh(x @ weight)
    return x


def train_step(parameters: Parameters, batch: Any, *, schedule: schedules.Schedule) -> tuple[Parameters, jax.Array]:
    """(new parameters, mean loss)."""
    gradient = partial(jax.value_and_grad(loss), parameters)
    losses, gradients = jaxpp.treduce(gradient, batch, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))
    return jax.tree.map(_updated, parameters, gradients), losses.mean()


def _updated(weight: jax.Array, gradient: jax.Array) -> jax.Array:
    return weight - RATE / MICROBATCHES * gradient


def make_schedules() -> tuple[schedules.Schedule, schedules.Schedule, schedules.Costs]:
    """The best that is found for the graph, and for a chain of the same stages, with their costs."""
    costs = schedules.Costs(forward=TIMES, input_grad=TIMES, weight_grad=TIMES)
    graph = schedules.Placement.of(0, 1, 2, 3, after=AFTER)
    chain = schedules.Placement.linear(len(STAGES))
    found = [schedules.search(4, MICROBATCHES, costs, placement=each, seconds=1) for each in (graph, chain)]
    return replace(found[0], name="a graph"), replace(found[1], name="a chain"), costs


def make_batch() -> dict[str, jax.Array]:
    """Pairs of a picture and a text, and what is to be said of them."""
    keys = jax.random.split(jax.random.key(1), 2)
    shape = (MICROBATCHES, ROWS, WIDTH)
    batch = {"picture": jax.random.normal(keys[0], shape), "text": jax.random.normal(keys[1], shape)}
    return batch | {"target": jnp.sin(batch["picture"] + batch["text"])}


def train(step: Any) -> list[float]:
    """The losses of all steps."""
    parameters, batch, losses = init(), make_batch(), list[float]()
    for _ in range(STEPS):
        parameters, value = step(parameters, batch)
        losses.append(float(value))
    return losses


def side_by_side(events: Sequence[Any]) -> tuple[float, float]:
    """Of a traced step the time that the text's encoder takes, and how much of it the picture's runs too."""
    tasks = [event for event in events if event.kind in ("forward", "backward", "input_grad", "weight_grad")]
    edges = sorted({each for event in tasks for each in (event.start, event.end)})
    total = both = 0.0
    for start, end in pairwise(edges):
        running = {event.stage for event in tasks if event.start <= start and end <= event.end}
        total += (end - start) * (2 in running)
        both += (end - start) * (2 in running and bool(running & {0, 1}))
    return total, both


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 1 when --check finds too large a difference."""
    parser = argparse.ArgumentParser(description="two encoders, side by side")
    parser.add_argument("--check", action="store_true", help="compare with plain jax.jit")
    parser.add_argument("--picture", metavar="FILE", help="draw the schedules: .svg, .png or .html")
    options = parser.parse_args(arguments)
    schedule, chain, costs = make_schedules()
    reports = [schedules.simulate(each, costs) for each in (chain, schedule)]
    print(schedule)
    for report in reports:
        kept = max(report.peak_activations())
        print(f"as {report.schedule.name} of stages, simulated: {report.makespan:g}, and {kept:g} microbatches kept")
    if options.picture:
        schedules.draw(reports, options.picture)
    mesh = jaxpp.MpmdMesh(Mesh(np.array(jax.devices()[: schedule.meshes]), ("mpmd",)), "mpmd")
    step = partial(train_step, schedule=schedule)
    compiled = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh).compile(init(), make_batch())
    losses = train(compiled)
    text, both = side_by_side(compiled.trace(init(), make_batch())[1])
    print(f"as traced, the text's encoder runs {text * 1e3:.2f} ms, {both / text:.0%} of them beside the picture's")
    print(f"loss {losses[0]:.4f} after the first step, {losses[-1]:.4f} after {STEPS}")
    if not options.check:
        return 0
    difference = float(np.max(np.abs(np.array(losses) / np.array(train(jax.jit(step))) - 1)))
    print(f"largest relative difference from plain jax.jit: {difference:.1e}")
    return int(not difference < 1e-5)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # virtual devices; leave these two lines out where there are real ones
    jax.config.update("jax_num_cpu_devices", len(STAGES))
    raise SystemExit(main())
