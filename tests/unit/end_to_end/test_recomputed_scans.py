"""Stages that scan over their layers: of each layer some of it is kept, and the rest is made again."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import (
    ROWS,
    TOLERANCE,
    WIDTH,
    assert_same,
    batch,
    check,
    check_compiled,
    lowered,
    make_mesh,
    plain_of,
)
from unit.end_to_end.test_scanned_layers import (
    block,
    blocks,
    checkpointed,
    from_three,
    nested,
    stack,
    step_of,
    tanh_layers,
    two_scans,
)

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.ops import MOST_RECOMPUTED
from jaxpp.ir.program import Call
from jaxpp.runtime import load

GPIPE = schedules.make("gpipe", meshes=4, microbatches=4)


def dropped(x: jax.Array, w: Any) -> jax.Array:
    """Masks out of keys that the scan carries."""

    def layer(carry: Any, w: jax.Array) -> Any:
        x, key = carry
        key, own = jax.random.split(key)
        return (jnp.where(jax.random.bernoulli(own, 0.8, x.shape), jnp.tanh(x @ w), 0.0), key), None

    return jax.lax.scan(layer, (x, jax.random.key(3)), w["up"])[0][0]


def sums(x: jax.Array, w: Any) -> jax.Array:
    """What a trip makes is a result of the stage, and is read by its backward too."""

    def layer(x: jax.Array, w: jax.Array) -> Any:
        x = jnp.sin(x @ w)
        return x, jnp.cos(x)

    x, all_of_them = jax.lax.scan(layer, x, w["up"])
    return x + jnp.exp(all_of_them).sum(axis=0)


def chained(x: jax.Array, w: Any) -> jax.Array:
    """The second scan reads what the first one stacks: both are divided."""
    x, rows = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), jnp.sin(x)), x, w["up"])

    def layer(x: jax.Array, both: Any) -> Any:
        row, w = both
        return jnp.tanh(x @ w + row), jnp.cos(x) * row

    x, more = jax.lax.scan(layer, x, (rows, w["up"]), reverse=True)
    return x + (more * rows).sum(axis=0)


def turned(x: jax.Array, w: Any) -> jax.Array:
    """What the scan stacks is made of weights without a FLOP, and rows of that are residuals."""
    x, rows = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.T) + w.T[:ROWS], w.T), x, w["up"])
    return jnp.sin(x @ rows[0]) * jnp.tanh(jnp.sin(x) @ rows[1].T)


def chunked(x: jax.Array, w: Any) -> jax.Array:
    """Each layer scans over chunks of its rows, which also read what all of them have in common."""

    def layer(x: jax.Array, w: Any) -> Any:
        return in_chunks(x, w), None

    return jax.lax.scan(layer, x, w)[0]


def in_chunks(x: jax.Array, w: Any) -> jax.Array:
    """A layer of `chunked`."""
    mean = jnp.tanh(x.mean(axis=0) @ w["down"])

    def chunk(total: jax.Array, rows: jax.Array) -> Any:
        rows = jax.nn.gelu(rows @ w["up"]) * jnp.cos(rows + mean)
        return jnp.sin(total + rows.mean(axis=0)), jnp.sin(rows @ w["out"]) + total

    total, rows = jax.lax.scan(chunk, mean, x.reshape(2, ROWS // 2, -1), reverse=True)
    return x + 0.1 * jnp.tanh(rows.reshape(x.shape) + total)


def three_deep(x: jax.Array, w: Any) -> jax.Array:
    """Layers that scan over two weights, and for each over chunks."""

    def layer(x: jax.Array, w: Any) -> Any:
        def inner(x: jax.Array, factor: jax.Array) -> Any:
            return in_chunks(x + 0.1 * factor, w), None

        return jax.lax.scan(inner, x, w["up"][:2])[0], jnp.tanh(x).sum()

    x, sums = jax.lax.scan(layer, x, w)
    return x + jnp.sin(sums.sum())


def one_after_the_other(x: jax.Array, w: Any) -> jax.Array:
    """Two loops in each layer; the second one reads what the first one made, in all trips."""

    def layer(x: jax.Array, w: Any) -> Any:
        def first(x: jax.Array, bias: jax.Array) -> Any:
            x = jnp.tanh(x) * bias
            return x, (1 - x * x) * bias

        y, rows = jax.lax.scan(first, x, w["up"][:2])

        def second(x: jax.Array, bias: jax.Array) -> Any:
            factor = (1 - jnp.tanh(x) ** 2) * y
            return x * factor * bias + factor, factor * factor * rows[0]

        z, more = jax.lax.scan(second, x, w["down"][:2])
        return y + z + (rows + more).sum(axis=0), None

    return jax.lax.scan(layer, x, w)[0]


def test_what_stands_behind_a_divided_loop() -> None:
    step = step_of(schedules.make("gpipe", meshes=2, microbatches=2), [chained, turned])
    check(step, ([stack(0), stack(1)], batch(2)), make_mesh(2), recompute={0: "selective", 1: "600B"})


# Whole stacks that the backward reads, scans that read what others stacked, rows of weights, keys; loops in loops.
STACKS = sums, chained, turned, dropped
NESTS = chunked, three_deep, nested, one_after_the_other


@pytest.mark.parametrize(
    ("stages", "keeps"),
    [
        (STACKS, (0.3, 0.5, 0.5, 0.6)),
        (NESTS, ("selective", 0.3, 0.5, "600B")),
        ((checkpointed, two_scans, from_three, blocks), (0.3, 0.3, 1.0, 0.05)),
    ],
    ids=["stacks", "nests", "others"],
)
def test_scans_of_every_kind(stages: Any, keeps: Any) -> None:
    """The numbers are those of `jax.jit`, and no peak is higher than where everything is kept."""
    step, arguments = step_of(GPIPE, stages), ([stack(k) for k in range(4)], batch(4))
    recompute = dict(enumerate(keeps))
    less = lowered(step, arguments, make_mesh(4), recompute=recompute)
    # Of `three_deep` one rounding makes 1e-4: so far is `jax.jit` itself from its results in float64.
    tolerance = 1e-4 if three_deep in stages else TOLERANCE
    check_compiled(less.compile(), plain_of(step), arguments, tolerance=tolerance)
    made = less.program().peak_bytes
    kept = lowered(step, arguments, make_mesh(4)).program().peak_bytes
    assert all(less <= more for less, more in zip(made, kept, strict=True))
    assert sum(made) < sum(kept)


@pytest.mark.parametrize("keep", ["192B", "250B", 1.0])
def test_bit_for_bit(keep: Any) -> None:
    """The layers run from the last to the first: rows are read where they were written."""
    step = step_of(schedules.make("gpipe", meshes=2, microbatches=4), [tanh_layers, tanh_layers])
    check(step, ([stack(0, 3), stack(1, 3)], batch(4)), make_mesh(2), exact=True, recompute={0: keep, 1: keep})


def test_a_schedule_that_splits_backwards() -> None:
    step = step_of(schedules.make("zb-h1", meshes=2, microbatches=3), [two_scans, blocks])
    check(step, ([stack(0), stack(1)], batch(3)), make_mesh(2), recompute=0.3)


def test_stages_of_several_devices() -> None:
    step = step_of(schedules.make("1f1b", meshes=2, microbatches=4), [blocks, tanh_layers])
    weights = {**dict.fromkeys(stack(0), P()), "up": P(None, None, "model")}
    shardings = ([weights] * 2, P(None, "data"))
    arguments = ([stack(0), stack(1)], batch(4))
    check(step, arguments, make_mesh(2, data=2, model=2), in_shardings=shardings, recompute=0.2)


def test_what_has_effects_runs_once() -> None:
    """A loop with a callback in it is no open one: all of its residuals are kept."""
    calls: list[int] = []

    def look_up(x: Any) -> Any:
        calls.append(1)
        return np.asarray(x)

    def looking(x: jax.Array, w: Any) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> Any:
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            looked = io_callback(look_up, shape, jax.lax.stop_gradient(x))
            return jnp.tanh(x @ w) * jnp.sin(looked), None

        return jax.lax.scan(layer, x, w["up"])[0]

    step = step_of(schedules.make("gpipe", meshes=2, microbatches=2), [looking, blocks])
    arguments = ([stack(0), stack(1)], batch(2))
    found = jaxpp.mpmd_jit_with_loop(step, make_mesh(2), recompute={0: 0.5, 1: 0.5})(*arguments)
    jax.block_until_ready(found)
    assert len(calls) == 2 * 2
    assert_same(found, jax.jit(step)(*arguments))


@pytest.mark.parametrize("keep", ["selective", 0.3])
@pytest.mark.parametrize("is_product", [True, False], ids=["product", "callback"])
def test_the_loop_of_the_recompute_carries_only_what_it_needs(keep: Any, is_product: bool) -> None:
    """Nothing reads what the loop carries besides: neither a product nor a callback before the loop is run again."""

    def halved(x: Any) -> Any:
        return np.asarray(x) / 2

    @jax.custom_vjp
    def tanh(x: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    def forward(x: jax.Array, other: jax.Array) -> Any:
        def trip(_: int, carry: Any) -> Any:
            return jnp.sin(carry[0]), jnp.cos(carry[1]) + carry[0]

        return jnp.tanh(x), (x, jax.lax.fori_loop(0, 3, trip, (jnp.sin(x), other))[0])

    def backward(kept: Any, g: jax.Array) -> Any:
        return g * (1 - jnp.tanh(kept[0]) ** 2) * kept[1], jnp.zeros_like(g)

    tanh.defvjp(forward, backward)

    def stage(x: jax.Array, w: Any) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        other = x @ w["up"][1] @ w["up"][2] if is_product else io_callback(halved, shape, jax.lax.stop_gradient(x))
        return tanh(x @ w["up"][0], jax.lax.stop_gradient(other))

    step = step_of(schedules.make("gpipe", meshes=2, microbatches=2), [stage] * 2)
    arguments = [stack(k, 3) for k in range(2)], batch(2)
    made = lowered(step, arguments, make_mesh(2), recompute={0: keep})
    text = str(made.program().module).partition("private @recompute_0(")[2].partition("func.func")[0]
    assert "stablehlo.while" in text
    assert text.count("dot_general") == (is_product and keep != "selective")  # the one before the loop, of `x`
    assert_same(made.compile()(*arguments), jax.jit(step)(*arguments))


def residuals(keep: Any, stage: Any, reader: str) -> int:
    """The bytes that stage 1 of three such stages keeps of a microbatch for the task that reads them."""
    step = step_of(schedules.make("gpipe", meshes=3, microbatches=2), [stage] * 3)
    arguments = [stack(k) for k in range(3)], batch(2)
    program = load(lowered(step, arguments, make_mesh(3), recompute=keep).program().module)
    forward, read = (
        next(each for each in program.sequences[1] if isinstance(each, Call) and each.kind == kind)
        for kind in ("forward", reader)
    )
    return sum(program.registers[1][each].bytes for each in read.operands if each in forward.results)


def test_the_loop_of_the_recompute_reads_what_that_of_the_forward_stacks() -> None:
    """A quarter of the bytes less, and no product with weights is done again."""
    assert residuals({1: "selective"}, blocks, "recompute") < 0.75 * residuals(None, blocks, "backward")


def test_loops_inside_of_a_loop_are_open() -> None:
    """What is kept of each chunk of each layer is what is kept where the layers are no loop."""

    def one_by_one(x: jax.Array, w: Any) -> jax.Array:
        for layer in range(2):
            x = in_chunks(x, {name: leaf[layer] for name, leaf in w.items()})
        return x

    keep = {1: "selective"}
    assert residuals(keep, chunked, "recompute") <= residuals(keep, one_by_one, "recompute")


def test_a_scan_keeps_hardly_more_than_its_layers_one_by_one() -> None:
    """JAX stacks for the backward whatever it reads, here 2.7 times as much: what is cheap is made again there."""

    def one_by_one(x: jax.Array, w: Any) -> jax.Array:
        for layer in range(2):
            x, _ = block(x, {name: leaf[layer] for name, leaf in w.items()})
        return x

    assert residuals(None, blocks, "backward") <= 1.1 * residuals(None, one_by_one, "backward")


def test_loops_inside_of_a_loop_stack_less() -> None:
    """Of each chunk of each layer too: JAX stacks 1.9 times as much as the layers one by one keep."""

    def one_by_one(x: jax.Array, w: Any) -> jax.Array:
        for layer in range(2):
            x = in_chunks(x, {name: leaf[layer] for name, leaf in w.items()})
        return x

    assert residuals(None, chunked, "backward") <= 1.15 * residuals(None, one_by_one, "backward")


def test_what_new_backwards_read_from_outside_of_a_loop_counts() -> None:
    """Two rows of each trip are fewer bytes than one and the three values from before the loop that make the other."""

    def long_chain(x: jax.Array, w: Any) -> jax.Array:
        one, two, three = (jax.lax.stop_gradient(jnp.sin(x @ w["up"][0] + k) @ w["down"][0]) for k in range(3))

        def layer(x: jax.Array, i: jax.Array) -> Any:
            first, second = (one * i + two * (i + k) + three * (i * k) for k in (2, 3))
            for _ in range(MOST_RECOMPUTED):
                second = second * 0.9 + 0.1
            return x * first + x * second, None

        return jax.lax.scan(layer, x, jnp.arange(2.0))[0] + w["bias"][0]

    assert residuals(None, long_chain, "backward") <= 2 * 2 * ROWS * WIDTH * 4


@pytest.mark.parametrize("stages", [STACKS, NESTS], ids=["stacks", "nests"])
def test_rows_that_are_read_in_other_ways_too(stages: Any) -> None:
    """Where everything is kept."""
    check(step_of(GPIPE, stages), ([stack(k) for k in range(4)], batch(4)), make_mesh(4))
