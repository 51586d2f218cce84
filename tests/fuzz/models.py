"""Generated models, each with a schedule for it."""

# pyright: reportUnknownLambdaType=false

import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fuzz import operations
from fuzz.case import Case, costs_of, descended, ordered, placed, plan_of
from fuzz.operations import pooled
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P
from unit.end_to_end import compare, decoder, test_branches, test_vocabulary
from unit.end_to_end.test_scanned_layers import stack

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.models import scan_slices
from jaxpp.schedules.builders.steps import first_step, in_steps

Layer = Callable[[jax.Array, Any], jax.Array]


def squared(x: jax.Array, microbatch: Any) -> jax.Array:
    """Returns the mean squared error of a prediction."""
    return jnp.mean((x - microbatch["y"]) ** 2)


def generated(draw: random.Random, name: str, *, kind: str) -> Case:
    """Returns a model of stages of operations by chance, most of which scan over their layers."""
    plan = plan_of(draw, name)
    names, stages = zip(*(operations.stage_of(draw, kind) for _ in range(plan.stages)), strict=True)
    params = [stack(k, operations.LAYERS) for k in range(plan.stages)]
    case = Case(plan, partial(in_stages, stages), params, compare.batch(plan.microbatches), sharded=P(None, "data"))
    case.words += sorted({*itertools.chain(*names)} - operations.OPERATIONS.keys())
    return case


def in_stages(stages: Sequence[Layer], params: Any, microbatch: Any) -> jax.Array:
    x = microbatch["x"]
    for stage, weights in zip(stages, params, strict=True):
        x = jaxpp.mark_stage_end(stage(x, weights))
    return squared(x, microbatch)


def chain(draw: random.Random, name: str) -> Case:
    """Returns a model of one layer a stage, with a weight that two stages share, a checkpoint, units."""
    plan = plan_of(draw, name)
    ties, ends, units, again = (draw.random() < share for share in (0.3, 0.5, 0.3, 0.3))
    loss = partial(in_layers, marks=plan.stages - (not ends), ties=ties, units=units, again=again)
    case = Case(plan, loss, compare.weights(plan.stages), compare.batch(plan.microbatches))
    case.words += ["units"] * units + ["ties"] * ties + ["checkpoint"] * again
    return case


def in_layers(params: Any, microbatch: Any, *, marks: int, ties: bool, units: bool, again: bool) -> jax.Array:
    """Returns the loss of tanh layers, each in two units."""

    def loss(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for stage, w in enumerate(params):
            x = unit(jnp.tanh(unit(x @ w)))
            x = jaxpp.mark_stage_end(x) if stage < marks else x
        return squared(x, microbatch)

    unit = jaxpp.mark_unit_end if units else lambda x: x
    params = [*params[:-1], params[0]] if ties else params
    return (jax.checkpoint(loss) if again else loss)(params, microbatch)


def stacked(draw: random.Random, name: str) -> Case:
    """Returns a scan over layers with a mark in its body."""
    plan = plan_of(draw, name)
    loss = partial(in_scan, reverse=draw.random() < 0.3, again=draw.random() < 0.3, units=draw.random() < 0.3)
    layers = plan.stages + draw.choice((0, 0, 1, 2))
    weights = jnp.stack(compare.weights(layers))
    case = Case(plan, loss, weights, compare.batch(plan.microbatches), sharded=P(None, "data"))
    if layers > plan.stages:
        cut(draw, case)
    return case


def cut(draw: random.Random, case: Case) -> None:
    """Let the stages have layers of numbers by chance."""
    layers = len(case.params)
    ends = [0, *sorted(draw.sample(range(1, layers), case.plan.stages - 1)), layers]
    case.options["cuts"] = [end - start for start, end in itertools.pairwise(ends)]
    case.words.append("cuts")


def in_scan(params: Any, microbatch: Any, *, reverse: bool, again: bool, units: bool) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> Any:
        y = jaxpp.mark_unit_end(x @ w) if units else x @ w
        return jaxpp.mark_stage_end(jnp.tanh(y)), None

    x, _ = lax.scan(jax.checkpoint(layer) if again else layer, microbatch["x"], params, reverse=reverse)
    return squared(x, microbatch)


def partitioned(draw: random.Random, name: str) -> Case:
    """Returns layers that `partition` has cut into stages, with its schedule; marked one by one, or in a scan."""
    meshes, layers, microbatches = draw.choice((2, 3)), draw.randint(6, 7), draw.choice((3, 4))
    chunks = draw.choice((1, 1, 2))
    found = schedules.partition(
        costs_of(draw, layers), meshes, microbatches, chunks=chunks, seconds=0.05, seed=draw.randrange(99)
    )
    weights, scans = compare.weights(layers), draw.random() < 0.5
    options: dict[str, Any] = {"reverse": False, "again": draw.random() < 0.3, "units": False}
    loss = partial(in_scan, **options) if scans else partial(compare.loss, marks=layers)
    plan = found.schedule
    case = Case(plan, loss, jnp.stack(weights) if scans else weights, compare.batch(microbatches))
    case.sharded = P(None, "data") if scans else P("data")
    case.options["cuts"] = found
    return case


def mapped(draw: random.Random, name: str) -> Case:
    """Returns stages in a `shard_map`, all in one or each in its own."""
    plan = plan_of(draw, name)
    around, units = draw.choice(["all", "each"]), draw.random() < 0.4
    # A shard_map names the devices of one mesh, and the meshes that the schedule doesn't use would stay idle.
    mesh = compare.make_mesh(plan.meshes, data=2).jax_mesh
    loss = partial(in_shard_map, mesh=mesh, around=around, units=units)
    case = Case(plan, loss, compare.weights(plan.stages), compare.batch(plan.microbatches), mesh="data")
    case.words += ["units"] * units
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
    return squared(x, microbatch)


def slices(draw: random.Random, name: str) -> Case:
    """Returns a decoder that scans over slices of the sequence, of equal lengths or not."""
    stages, count, microbatches = draw.choice([2, 2, 4]), draw.choice([2, 3]), 3
    name = name or draw.choice([*decoder.SLICES, "1f1b", "slimpipe"])
    stages = 4 if name == "seq1f1b-i" else stages
    kind = "exchange" if name == "slimpipe" else draw.choice(["equal", "equal", "cuts", "scan", "attention"])
    again, ties = draw.random() < 0.3 and kind != "cuts", draw.random() < 0.3
    meshes = stages // decoder.SLICES.get(name, 1)
    plan = schedules.make(
        name, meshes=meshes, microbatches=microbatches, **({} if name == "1f1b" else {"slices": count})
    )
    ends = (0, *sorted(draw.sample(range(1, decoder.LENGTH), count - 1)), decoder.LENGTH)
    cuts = tuple(end - start for start, end in itertools.pairwise(ends)) if kind == "cuts" else None
    loss = partial(in_slices, kind=kind, count=count, cuts=cuts, again=again, ties=ties)
    sharded = {"tokens": P(None, "data"), "head": P("data"), "blocks": P("data")}
    case = Case(plan, loss, decoder.parameters(stages), decoder.batch(microbatches), sharded=sharded)
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
    return scan_slices(partial(one, params), decoder.empty(params, len(text)), xs, cuts=cuts)[1].mean()


def vocabulary(draw: random.Random, name: str) -> Case:
    """Returns layers, and a vocabulary that all meshes share; of a decoder with slices of the sequence, or not."""
    name = name or draw.choice(["vocab-1f1b", "vocab-v-half"])
    meshes, embeds, microbatches = draw.choice([2, 3]), draw.random() < 0.5, draw.choice((3, 4))
    rows, layers, count = draw.choice([12, 13]), meshes * (1 + (name == "vocab-v-half")), draw.choice([1, 1, 2, 3])
    plan = schedules.make(name, meshes=meshes, microbatches=microbatches, embedding=embeds, slices=count)
    if count > 1:
        parts = draw.choice([None, None, (*[2] * (count - 1), decoder.LENGTH - 2 * (count - 1))])
        loss = partial(test_vocabulary.sliced_loss, shards=meshes, embeds=embeds, slices=count, cuts=parts)
        params, tokens = test_vocabulary.slices_of_text(rows, layers, microbatches, sequences=4)
    else:
        loss = partial(test_vocabulary.sharded_loss, shards=meshes, embeds=embeds)
        params, _ = test_vocabulary.arguments(rows, layers)
        tokens = np.random.default_rng(0).integers(0, rows, (microbatches, 4, 6)).astype(np.int32)
    case = Case(plan, loss, params, tokens, sharded=P(None, "data"))
    case.words += ["slices"] * (count > 1)
    return case


def graph(draw: random.Random, name: str) -> Case:
    """Returns stages that are a graph."""
    after = test_branches.any_graph(draw)
    placement = schedules.Placement.of(*placed(draw, 3, len(after)), after=after)
    plan = ordered(draw, placement, 3)
    params, _ = test_branches.arguments(after, 1)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((3, *shape, 4, 4)).astype(np.float32) for shape in ((len(after),), ()))
    spec = {"x": P(None, None, "data"), "y": P(None, "data")}
    return Case(plan, partial(test_branches.loss, after), params, {"x": x, "y": y}, spec)


def delayed(draw: random.Random, name: str) -> Case:
    """Returns several optimizer steps whose gradients are those of older weights."""
    steps = draw.choice([2, 3])
    delay = draw.randint(1, steps - 1)
    case = draw.choice([chain, stacked, partial(generated, kind="scans")])(draw, "pipedream-2bw")
    microbatches = case.plan.microbatches
    options = {"microbatches": microbatches, "steps": steps, "delay": delay}
    for _ in range(20 * (draw.random() < 0.6)):
        try:
            plan = plan_of(draw, draw.choice(("", name)), (case.plan.stages,))
            plan = in_steps(
                schedules.make(plan.name, meshes=plan.meshes, microbatches=microbatches * steps), steps, delay
            )
            first_step(plan)
        except schedules.ScheduleError:
            continue  # the order of this one has no place for updates, or differs from step to step
        if plan.stages == case.plan.stages:
            case.plan = plan
            break
    else:
        case.plan = schedules.make("pipedream-2bw", meshes=case.plan.stages, **options)
    case.loop = steps, delay
    return case


PAIRS: dict[str, Callable[[jax.Array], Any]] = {
    "scales": lambda x: (x, 3 * x),
    "same": lambda x: (x, x),
    "ends": lambda x: (x.max(0, keepdims=True) + x, x.min(0, keepdims=True) + x),
    "sums": lambda x: (jnp.cumsum(x, 1), lax.cumsum(x, 1, reverse=True)),
    "loops": lambda x: (
        lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h), x),
        lax.fori_loop(0, 3, lambda i, h: jnp.sin(h), x),
    ),
    "results": lambda x: lax.scan(lambda c, _: ((jnp.tanh(c[0]), jnp.sin(c[1])), None), (x, x), None, length=2)[0],
    "sorted": lambda x: tuple(lax.sort((jnp.sin(x), x), num_keys=1)),
    "windows": lambda x: (
        pooled(x, lax.max, -jnp.inf, (1, 3)),
        pooled(x, lax.max, -jnp.inf, (1, 2)),
    ),
    "choices": lambda x: (lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x)),
    "keys": lambda x: tuple(x * jax.random.bernoulli(jax.random.key(k), 0.5, x.shape) for k in range(2)),
}
"""Two values of one, of which a part is equal."""


def twice(draw: random.Random, name: str) -> Case:
    """Returns stages that apply one jitted or checkpointed layer, with the mark in it, to two inputs."""
    plan = plan_of(draw, name)
    pairs = [draw.choice(list(PAIRS)) for _ in range(plan.stages)]
    wrap = draw.choice((jax.jit, jax.checkpoint, lambda layer: jax.jit(jax.checkpoint(layer))))
    body = draw.choice(
        (jnp.tanh, lambda x: lax.fori_loop(0, 2, lambda i, h: jnp.tanh(h * 1.5), x), lambda x: jnp.sort(x, 1))
    )

    def loss(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for pair, w in zip(pairs, params, strict=True):
            layer = wrap(lambda x, scale: jaxpp.mark_stage_end(body(x * scale)))
            first, second = PAIRS[pair](x @ w)
            x = jnp.sin(layer(first, 1.5)) * 1.5 - layer(second, 0.5)
        return squared(x, microbatch)

    case = Case(plan, loss, compare.weights(plan.stages), compare.batch(plan.microbatches))
    case.words += sorted(set(pairs))
    return case


def looped(trips: int) -> Layer:
    return lambda x, w: lax.fori_loop(0, trips, lambda i, h: jnp.sin(h @ w), x)


def chosen(one: Any, other: Any) -> Layer:
    return lambda x, w: lax.cond(x[0, 0] > 0, one, other, x @ w)


ALIKE: Sequence[Sequence[Layer]] = [
    [lambda x, w: jnp.tanh(x @ w) * 1.0625, lambda x, w: jnp.tanh(x @ w) * 1.125],
    [lambda x, w: jnp.cumsum(x @ w, 1) / 3, lambda x, w: lax.cumsum(x @ w, 1, reverse=True) / 3],
    [lambda x, w: jnp.sort(x @ w, 0), lambda x, w: jnp.sort(x @ w, 1)],
    [lambda x, w: (x @ w).at[0].add(x[1]), lambda x, w: (x @ w).at[1].add(x[1])],
    [lambda x, w: jnp.where(x > 0, x @ w, x), lambda x, w: jnp.where(x >= 0.5, x @ w, x)],
    [looped(2), looped(3)],
    [chosen(jnp.sin, jnp.cos), chosen(jnp.cos, jnp.sin)],
    [lambda x, w: pooled(x @ w, lax.max, -jnp.inf, (1, 2)), lambda x, w: pooled(x @ w, lax.min, jnp.inf, (1, 2))],
    [lambda x, w: x @ w + jnp.array([0.0, -0.0] * 4), lambda x, w: x @ w + jnp.array([0.0, 0.5] * 4)],
]
"""Layers that differ in one attribute, constant or region."""


def alike(draw: random.Random, name: str) -> Case:
    """Returns stages that are nearly equal."""
    plan = plan_of(draw, name)
    kind = draw.choice(ALIKE)
    layers = [draw.choice(kind) for _ in range(plan.stages)]
    case = Case(plan, partial(in_stages, layers), compare.weights(plan.stages), compare.batch(plan.microbatches))
    case.options["share_tasks"] = draw.choice(("always", "auto"))
    return case


def read_sums(draw: random.Random, name: str) -> Case:
    """Returns a step whose own loop reads the running sum of the gradients, and hands on a state."""
    plan = plan_of(draw, name)
    scans = draw.random() < 0.5
    loss = partial(in_scan, reverse=False, again=False, units=False) if scans else compare.loss
    weights = compare.weights(plan.stages)
    reads = [each for each in READS if draw.random() < 0.5] or ["norm"]

    def step(params: Any, batch: Any) -> Any:
        def body(carry: Any, microbatch: Any) -> Any:
            value, new = jax.value_and_grad(loss)(params, microbatch)
            total = jax.tree.map(jnp.add, carry["total"], new)
            rest = {each: READS[each](carry, total, value) for each in reads}
            return {**rest, "total": total}, (value, rest.get("norm", value))

        zeros = jax.tree.map(jnp.zeros_like, params)
        first = {
            each: zeros if each in ("again", "lagging") else jnp.int8(0) if each == "count" else jnp.float32(0)
            for each in reads
        }
        carry, rest = lax.scan(body, {**first, "total": zeros}, batch)
        return jax.tree.map(descended, params, carry.pop("total")), (carry, rest)

    params = jnp.stack(weights) if scans else weights
    case = Case(plan, loss, params, compare.batch(plan.microbatches), step=step)
    case.sharded = P(None, "data") if scans else P("data")
    case.options["schedule"] = plan
    case.words += reads
    return case


READS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "norm": lambda carry, total, value: sum(jnp.sum(each**2) for each in jax.tree.leaves(total)),
    "again": lambda carry, total, value: total,
    "lagging": lambda carry, total, value: jax.tree.map(jnp.sin, carry["total"]),
    "count": lambda carry, total, value: carry["count"] + jnp.int8(100),
    "mean": lambda carry, total, value: 0.5 * carry["mean"] + value,
    "most": lambda carry, total, value: jnp.maximum(carry["most"], value),
}
"""Values that a loop hands on, of (what it was handed, the sums, the loss)."""


def effects(draw: random.Random, name: str) -> Case:
    """Returns stages that call back, in scans, conditionals and checkpoints."""
    plan = plan_of(draw, name)
    ways = [draw.choice(("plain", "scan", "cond", "checkpoint", "io", "pure")) for _ in range(plan.stages)]
    calls: list[tuple[str, float]] = []

    def tell(name: str, x: jax.Array) -> None:
        jax.debug.callback(lambda value: calls.append((name, float(value))), x[0, 0])

    def told(name: str, x: Any) -> Any:
        x = np.asarray(x)  # JAX's own operations would wait for the device, which waits for the callback
        calls.append((name, float(x[0, 0])))
        return np.sin(x)

    def stage(way: str, number: int, x: jax.Array, w: jax.Array) -> jax.Array:
        name = f"{number} {way}"
        if way == "scan":
            return lax.scan(lambda x, w: (tell(name, x), (jnp.tanh(x @ w), None))[1], x, jnp.stack([w, w]))[0]
        if way == "cond":
            return lax.cond(x[0, 0] > 0, lambda x: (tell(name, x), jnp.sin(x @ w))[1], lambda x: x @ w, x)
        if way == "checkpoint":
            return jnp.sin(jax.checkpoint(lambda x: jnp.tanh(x @ w))((tell(name, x), x)[1]))
        if way in ("io", "pure"):
            call = io_callback if way == "io" else jax.pure_callback
            function = partial(told, name) if way == "io" else lambda x: np.sin(x)
            look = lax.stop_gradient(call(function, jax.ShapeDtypeStruct(x.shape, x.dtype), lax.stop_gradient(x)))
            return jnp.tanh(x @ w) * look
        tell(name, x)
        return jnp.tanh(x @ w)

    layers = [partial(stage, way, number) for number, way in enumerate(ways)]
    case = Case(plan, partial(in_stages, layers), compare.weights(plan.stages), compare.batch(plan.microbatches))
    case.calls, case.mesh = calls, draw.choice(("alone", "shared"))
    case.words += sorted(set(ways))
    return case


def penalty(draw: random.Random, name: str) -> Case:
    """Returns a loss with a penalty of the gradient by the input, through all stages or within each."""
    plan = plan_of(draw, name)
    whole = draw.random() < 0.3

    def smooth(x: jax.Array, w: jax.Array) -> jax.Array:
        slope = jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w) ** 2))(x)
        return jnp.tanh(x @ w) + 0.1 * jnp.sum(slope**2) / (1 + jnp.sum(slope**2))

    def loss(params: Any, microbatch: Any) -> jax.Array:
        if not whole:
            return in_stages([smooth] * plan.stages, params, microbatch)
        value, slope = jax.value_and_grad(lambda x: compare.loss(params, {**microbatch, "x": x}))(microbatch["x"])
        return value + jnp.sum(slope**2)

    case = Case(plan, loss, compare.weights(plan.stages), compare.batch(plan.microbatches))
    case.words += ["whole"] * whole
    return case


Model = Callable[[random.Random, str], Case]

MODELS: dict[str, Model] = {
    **{kind: partial(generated, kind=kind) for kind in operations.KINDS},
    **{each.__name__: each for each in (chain, stacked, partitioned, mapped, slices, delayed, vocabulary, graph)},
    **{each.__name__: each for each in (twice, alike, read_sums, effects, penalty)},
}
"""A model of each family. A name is that of a schedule of the library; "" stands for any."""

CHAINED = ("chain", "stacked", *operations.KINDS, "twice", "alike", "penalty")
"""The models that take any schedule for a chain."""
