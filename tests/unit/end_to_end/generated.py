"""Generated models and schedules for them: what `test_generated` combines with all else that a step may have."""

# pyright: reportUnknownLambdaType=false

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end import compare, decoder, test_branches, test_vocabulary
from unit.end_to_end.generated_stages import LAYERS, stage_of
from unit.end_to_end.test_scanned_layers import stack

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules.library import options_of
from jaxpp.schedules.steps import first_step

MICROBATCHES = 3
CHAINS = [name for name in schedules.names() if not name.startswith(("seq1f1b", "slimpipe", "vocab"))]


@dataclass
class Case:
    """A step, and what it is run with.

    Attributes:
        words: what was drawn, for messages and for refusals.
        spec: of the batch, where each mesh has several devices.
        sharded: of the weights, likewise, where they are sharded.
        mesh: what meshes have to be; None if they may be any.
        options: of `mpmd_jit_with_loop`.
        loop: of how many optimizer steps, with which delay, it is a step; None if it stands for itself.
        tolerance: of the comparison.
    """

    plan: schedules.Schedule
    loss: Callable[[Any, Any], Any]
    params: Any
    batch: Any
    spec: Any = field(default_factory=lambda: P(None, "data"))
    sharded: Any = field(default_factory=lambda: P("data"))
    words: list[str] = field(default_factory=list[str])
    mesh: str | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    loop: tuple[int, int] | None = None
    tolerance: float = compare.TOLERANCE


@cache
def plans(stages: int, microbatches: int) -> Sequence[schedules.Schedule]:
    """All schedules of the library for a chain of so many stages."""
    made = list[schedules.Schedule]()
    fused = ({"fused": name != "dualpipe"} if "fused" in options_of(name) else {} for name in CHAINS)
    ways = [(name, {}) for name in CHAINS] + [(name, each) for name, each in zip(CHAINS, fused, strict=True) if each]
    for (name, options), meshes in itertools.product(ways, {stages, stages // 2, stages // 4} - {0}):
        try:
            plan = schedules.make(name, meshes=meshes, microbatches=microbatches, **options)
        except schedules.ScheduleError:
            continue  # there is none for these numbers
        made += [plan] * (plan.stages == stages)
    return made


def scans(model: random.Random, draw: random.Random) -> Case:
    """Stages of operations at random, most of which scan over their layers."""
    count = model.choice([2, 2, 2, 4])
    names, stages = zip(*(stage_of(model) for _ in range(count)), strict=True)
    params = [stack(k, LAYERS) for k in range(count)]
    plan = draw.choice(plans(count, MICROBATCHES))
    case = Case(plan, partial(in_stages, stages), params, compare.batch(MICROBATCHES), sharded=P(None, "data"))
    case.tolerance = 1e-4
    case.words += sorted({*itertools.chain(*names)} & {"branch"})
    return case


def in_stages(stages: Sequence[Callable[[jax.Array, Any], jax.Array]], params: Any, microbatch: Any) -> jax.Array:
    x = microbatch["x"]
    for stage, weights in zip(stages, params, strict=True):
        x = jaxpp.mark_stage_end(stage(x, weights))
    return jnp.mean((x - microbatch["y"]) ** 2)


def chain(model: random.Random, draw: random.Random) -> Case:
    """One layer a stage; a weight that two stages share; a checkpoint; units."""
    stages, microbatches = model.choice([(2, 4), (4, 4), (4, 8)])
    ties, ends, units, again = (model.random() < share for share in (0.3, 0.5, 0.5, 0.3))
    loss = partial(in_layers, marks=stages - (not ends), ties=ties, units=units, again=again)
    case = Case(draw.choice(plans(stages, microbatches)), loss, compare.weights(stages), compare.batch(microbatches))
    case.words += ["units"] * units + ["ties"] * ties + ["checkpoint"] * again
    return case


def in_layers(params: Any, microbatch: Any, *, marks: int, ties: bool, units: bool, again: bool) -> jax.Array:
    """As `compare.loss`, each layer in two units."""

    def loss(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for stage, w in enumerate(params):
            x = unit(jnp.tanh(unit(x @ w)))
            x = jaxpp.mark_stage_end(x) if stage < marks else x
        return jnp.mean((x - microbatch["y"]) ** 2)

    unit = jaxpp.mark_unit_end if units else lambda x: x
    params = [*params[:-1], params[0]] if ties else params
    return (jax.checkpoint(loss) if again else loss)(params, microbatch)


def stacked(model: random.Random, draw: random.Random) -> Case:
    """A scan over layers with a mark in its body; stages of several layers."""
    layers = model.choice([3, 4, 4])
    stages = draw.choice([each for each in (2, 4) if each <= layers])
    loss = partial(in_scan, reverse=model.random() < 0.3, again=model.random() < 0.3, units=model.random() < 0.3)
    plan = draw.choice(plans(stages, 4))
    case = Case(plan, loss, jnp.stack(compare.weights(layers)), compare.batch(4), sharded=P(None, "data"))
    if stages < layers or draw.random() < 0.2:
        ends = [0, *sorted(draw.sample(range(1, layers), stages - 1)), layers]
        case.options["cuts"] = [end - start for start, end in itertools.pairwise(ends)]
        case.words.append("cuts")
    return case


def in_scan(params: Any, microbatch: Any, *, reverse: bool, again: bool, units: bool) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> Any:
        y = jaxpp.mark_unit_end(x @ w) if units else x @ w
        return jaxpp.mark_stage_end(jnp.tanh(y)), None

    x, _ = lax.scan(jax.checkpoint(layer) if again else layer, microbatch["x"], params, reverse=reverse)
    return jnp.mean((x - microbatch["y"]) ** 2)


def mapped(model: random.Random, draw: random.Random) -> Case:
    """Stages in a `shard_map`, all in one or each in its own."""
    stages = model.choice([2, 2, 4])
    plan = draw.choice(plans(stages, 4))
    around, units = model.choice(["all", "each"]), model.random() < 0.4
    # A shard_map names the devices of one mesh, and the meshes that the schedule doesn't use would stay idle.
    mesh = compare.make_mesh(plan.meshes, data=2).jax_mesh
    loss = partial(in_shard_map, mesh=mesh, around=around, units=units)
    case = Case(plan, loss, compare.weights(stages), compare.batch(4), mesh="data")
    case.words += ["shard_map", *(["units"] * units)]
    return case


def in_shard_map(params: Any, microbatch: Any, *, mesh: jax.sharding.Mesh, around: str, units: bool) -> jax.Array:
    sharded = partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))

    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        mean = lax.pmean(jnp.sum(x, 0, keepdims=True), "data")
        mean = jaxpp.mark_unit_end(mean) if units else mean
        return jnp.tanh(x @ w) - mean / 4 + lax.axis_index("data")

    def layers(params: Any, x: jax.Array, each: Callable[[Any, jax.Array], jax.Array]) -> jax.Array:
        for w in params:
            x = jaxpp.mark_stage_end(each(w, x))
        return x

    if around == "each":
        x = layers(params, microbatch["x"], sharded(layer))
    else:
        x = sharded(partial(layers, each=layer))(params, microbatch["x"])
    return jnp.mean((x - microbatch["y"]) ** 2)


def slices(model: random.Random, draw: random.Random) -> Case:
    """A decoder that scans over slices of the sequence, of equal lengths or not."""
    stages, count = model.choice([2, 2, 4]), model.choice([2, 3])
    kind = model.choice(["equal", "equal", "cuts", "scan", "attention", "exchange"])
    again, ties = model.random() < 0.3 and kind != "cuts", model.random() < 0.3
    names = ["slimpipe"] if kind == "exchange" else [*decoder.SLICES, "1f1b"]
    name = draw.choice([each for each in names if each != "seq1f1b-i" or stages > 2])
    meshes = stages // decoder.SLICES.get(name, 1)
    options = {} if name == "1f1b" else {"slices": count}
    plan = schedules.make(name, meshes=meshes, microbatches=MICROBATCHES, **options)
    ends = (0, *sorted(model.sample(range(1, decoder.LENGTH), count - 1)), decoder.LENGTH)
    cuts = tuple(end - start for start, end in itertools.pairwise(ends)) if kind == "cuts" else None
    loss = partial(in_slices, kind=kind, count=count, cuts=cuts, again=again, ties=ties)
    sharded = {"tokens": P(None, "data"), "head": P("data"), "blocks": P("data")}
    case = Case(plan, loss, decoder.parameters(stages), decoder.batch(MICROBATCHES), sharded=sharded)
    case.words += [kind, *(["checkpoint"] * again), *(["ties"] * ties)]
    return case


def in_slices(
    params: Any, text: Any, *, kind: str, count: int, cuts: tuple[int, ...] | None, again: bool, ties: bool
) -> jax.Array:
    block = partial(decoder.attending, exchange=kind == "exchange") if kind in ("attention", "exchange") else None
    one: Callable[..., Any] = partial(decoder.of_slice, block=block) if block else decoder.of_slice
    one = jax.checkpoint(one) if again else one
    params = params | {"head": params["tokens"].T} if ties else params
    if kind == "scan":
        return decoder.plain_scan(params, text, slices=count)
    if cuts is None:
        return decoder.loss(params, text, slices=count, one=one)
    xs = text[:, :-1], text[:, 1:]
    return jaxpp.scan_slices(partial(one, params), decoder.empty(params, len(text)), xs, cuts=cuts)[1].mean()


def vocabulary(model: random.Random, draw: random.Random) -> Case:
    """Layers, and a vocabulary that all meshes share; of a decoder that scans over slices of the sequence, or not."""
    name, meshes, embeds = model.choice(["vocab-1f1b", "vocab-v-half"]), model.choice([2, 3]), model.random() < 0.5
    rows, layers, count = model.choice([12, 13]), meshes * (1 + (name == "vocab-v-half")), model.choice([1, 1, 2, 3])
    plan = schedules.make(name, meshes=meshes, microbatches=MICROBATCHES, embedding=embeds, slices=count)
    if count > 1:
        cut = model.choice([None, None, (*[2] * (count - 1), decoder.LENGTH - 2 * (count - 1))])
        loss = partial(test_vocabulary.sliced_loss, shards=meshes, embeds=embeds, slices=count, cuts=cut)
        params, tokens = test_vocabulary.slices_of_text(rows, layers, MICROBATCHES, sequences=4)
    else:
        loss = partial(test_vocabulary.sharded_loss, shards=meshes, embeds=embeds)
        params, _ = test_vocabulary.arguments(rows, layers)
        tokens = np.random.default_rng(0).integers(0, rows, (MICROBATCHES, 4, 6)).astype(np.int32)
    case = Case(plan, loss, params, tokens, sharded=P(None, "data"))
    case.words += ["slices"] * (count > 1)
    return case


def graph(model: random.Random, draw: random.Random) -> Case:
    """Stages that are a graph."""
    after = test_branches.any_graph(model)
    homes = [stage % 3 for stage in range(len(after))]
    draw.shuffle(homes)
    placement = schedules.Placement.of(*homes, after=after)
    plan = test_branches.ordered(placement, MICROBATCHES, draw.randint(0, 99), split=draw.random() < 0.5)
    params, _ = test_branches.arguments(after, 1)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((MICROBATCHES, *shape, 4, 4)).astype(np.float32) for shape in ((len(after),), ()))
    spec = {"x": P(None, None, "data"), "y": P(None, "data")}
    return Case(plan, partial(test_branches.loss, after), params, {"x": x, "y": y}, spec)


def delayed(model: random.Random, draw: random.Random) -> Case:
    """Several optimizer steps whose gradients are those of older weights."""
    steps = model.choice([2, 3])
    delay = model.randint(1, steps - 1)
    case = model.choice([chain, scans, stacked])(model, draw)
    microbatches = case.plan.microbatches
    possible = list[schedules.Schedule]()
    for plan in plans(case.plan.stages, microbatches * steps):
        try:
            plan = schedules.in_steps(plan, steps, delay)
            first_step(plan)
        except schedules.ScheduleError:
            continue  # the order of this one has no place for updates, or differs from step to step
        possible.append(plan)
    if microbatches >= case.plan.stages:
        options = {"microbatches": microbatches, "steps": steps, "delay": delay}
        possible += [schedules.make("pipedream-2bw", meshes=case.plan.stages, **options)] * 3
    case.plan, case.loop = draw.choice(possible), (steps, delay)
    return case


FAMILIES = scans, chain, slices, stacked, delayed, vocabulary, mapped, graph
