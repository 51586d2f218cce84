"""Trains on pairs of pictures and texts: an encoder for each, side by side on meshes of their own, and what joins them.

    python examples/two_towers.py                        # stages: picture, picture, text, both
    python examples/two_towers.py --spread               # picture, picture, text, text; and both on all four meshes
    python examples/two_towers.py --check                # and the same steps with plain jax.jit
    python examples/two_towers.py --picture towers.html  # the schedule, above it the one of a chain

What makes it a graph of stages: `after`. It says of each stage which others it reads; the text is encoded without
waiting for the picture. The order is searched for: no published schedule is one of a graph. The first form is the
multimodal case of FlexPipe (arXiv 2510.05112); the second is the K of Tessel (arXiv 2311.15269): every mesh has a shard
of what joins them.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpp
from jaxpp import schedules

MESHES, MICROBATCHES, ROWS, WIDTH, STEPS, RATE = 4, 8, 16, 32, 20, 0.4

Parameters = dict[str, list[list[jax.Array]]]


@dataclass(frozen=True)
class Form:
    """The stages: two of the picture's encoder, those of the text's, and of what joins them.

    Attributes:
        layers: of each stage of the text's encoder; a stage of the picture's has two.
        placement: the mesh of each stage, and which stages it reads.
        times: of a forward of each stage; a backward takes twice as long.
        shards: of what joins them.
    """

    layers: tuple[int, ...]
    placement: schedules.Placement
    times: tuple[float, ...]
    shards: int = 1


JOINED = Form((4,), schedules.Placement.of(0, 1, 2, 3, after=[[], [0], [], [1, 2]]), (1.0, 1.0, 2.0, 1.0))
SPREAD = Form(
    (2, 2),
    schedules.Placement.of(0, 1, 2, 3, *range(MESHES), 3, after=[[], [0], [], [2], *[[1, 3]] * MESHES, [4, 5, 6, 7]]),
    (*[1.0] * 4, *[0.25] * MESHES, 0.01),  # the last one adds up what the shards make
    MESHES,
)


def init(form: Form) -> Parameters:
    """The matrices of each stage: two or four of an encoder's, two of a shard."""
    keys = iter(jax.random.split(jax.random.key(0), 8 + 2 * form.shards))

    def matrix(rows: int, columns: int) -> jax.Array:
        return jax.random.normal(next(keys), (rows, columns)) * WIDTH**-0.5

    part = WIDTH // form.shards
    encoders = {"picture": (2, 2), "text": form.layers}
    both = [[matrix(WIDTH, part), matrix(part, WIDTH)] for _ in range(form.shards)]
    return {"both": both} | {
        tower: [[matrix(WIDTH, WIDTH) for _ in range(count)] for count in layers] for tower, layers in encoders.items()
    }


def loss(parameters: Parameters, microbatch: Any) -> jax.Array:
    """Mean squared error of what both towers say together."""
    picture, text = (_encoded(parameters[tower], microbatch[tower]) for tower in ("picture", "text"))
    shards = [jnp.tanh((picture * text) @ into) @ back for into, back in parameters["both"]]
    if len(shards) > 1:
        shards = list(map(jaxpp.mark_stage_end, shards))
    return jaxpp.mark_stage_end(jnp.mean((sum(shards) - microbatch["target"]) ** 2))


def _encoded(stages: list[list[jax.Array]], x: jax.Array) -> jax.Array:
    for weights in stages:
        for weight in weights:
            x = x + jnp.tanh(x @ weight)
        x = jaxpp.mark_stage_end(x)
    return x


def train_step(parameters: Parameters, batch: Any, *, schedule: schedules.Schedule) -> tuple[Parameters, jax.Array]:
    """(new parameters, mean loss)."""
    gradient = partial(jax.value_and_grad(loss), parameters)
    mean_loss, gradients = jaxpp.treduce(gradient, batch, schedule=schedule, operation=jaxpp.Mean)
    return jax.tree.map(_updated, parameters, gradients), mean_loss


def _updated(weight: jax.Array, gradient: jax.Array) -> jax.Array:
    return weight - RATE * gradient


def make_schedules(form: Form) -> tuple[schedules.Schedule, schedules.Schedule, schedules.Costs]:
    """The best that is found for the graph, and for a chain of the same stages, with their costs."""
    costs = schedules.Costs(forward=form.times, input_grad=form.times, weight_grad=form.times)
    homes = [form.placement[stage] for stage in range(form.placement.stages)]
    placements = form.placement, schedules.Placement.of(*homes)
    found = [schedules.search(MESHES, MICROBATCHES, costs, placement=each, seconds=1) for each in placements]
    return replace(found[0], name="a graph"), replace(found[1], name="a chain"), costs


def make_batch() -> dict[str, jax.Array]:
    """Pairs of a picture and a text, and what is to be said of them."""
    keys = jax.random.split(jax.random.key(1), 2)
    shape = (MICROBATCHES, ROWS, WIDTH)
    batch = {"picture": jax.random.normal(keys[0], shape), "text": jax.random.normal(keys[1], shape)}
    return batch | {"target": jnp.sin(batch["picture"] + batch["text"])}


def train(step: Any, parameters: Parameters) -> list[float]:
    """The losses of all steps."""
    batch, losses = make_batch(), list[float]()
    for _ in range(STEPS):
        parameters, value = step(parameters, batch)
        losses.append(float(value))
    return losses


def side_by_side(events: Sequence[Any], text: set[int]) -> tuple[float, float]:
    """Of a traced step the time that the text's encoder takes, and how much of it the picture's runs too."""
    tasks = [event for event in events if event.kind in ("forward", "backward", "input_grad", "weight_grad")]
    edges = sorted({each for event in tasks for each in (event.start, event.end)})
    total = both = 0.0
    for start, end in pairwise(edges):
        running = {event.stage for event in tasks if event.start <= start and end <= event.end}
        if running & text:
            total += end - start
            both += (end - start) * bool(running & {0, 1})
    return total, both


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 1 when --check finds too large a difference."""
    parser = argparse.ArgumentParser(description="two encoders, side by side")
    parser.add_argument("--check", action="store_true", help="compare with plain jax.jit")
    parser.add_argument("--spread", action="store_true", help="what joins them on all meshes")
    parser.add_argument("--picture", metavar="FILE", help="draw the schedules: .svg, .png or .html")
    options = parser.parse_args(arguments)
    form = SPREAD if options.spread else JOINED
    schedule, chain, costs = make_schedules(form)
    reports = [schedules.simulate(each, costs) for each in (chain, schedule)]
    print(schedule)
    for report in reports:
        kept = max(report.peak_activations())
        print(f"as {report.schedule.name} of stages, simulated: {report.makespan:g}, and {kept:g} microbatches kept")
    if options.picture:
        schedules.draw(reports, options.picture)
    mesh = jaxpp.MpmdMesh.make(mpmd=schedule.meshes)
    step = partial(train_step, schedule=schedule)
    compiled = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh).compile(init(form), make_batch())
    losses = train(compiled, init(form))
    _, events = compiled.trace(init(form), make_batch())
    text, both = side_by_side(events, {*range(2, 2 + len(form.layers))})
    print(f"as traced, the text's encoder runs {text * 1e3:.2f} ms, {both / text:.0%} of them beside the picture's")
    print(f"loss {losses[0]:.4f} after the first step, {losses[-1]:.4f} after {STEPS}")
    if not options.check:
        return 0
    difference = float(np.max(np.abs(np.array(losses) / np.array(train(jax.jit(step), init(form))) - 1)))
    print(f"largest relative difference from plain jax.jit: {difference:.1e}")
    return int(not difference < 1e-5)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # virtual devices; leave these two lines out where there are real ones
    jax.config.update("jax_num_cpu_devices", MESHES)
    raise SystemExit(main())
