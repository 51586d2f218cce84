"""Stages that scan over their layers, under schedules that split the backward: the loop becomes one for each half."""

# pyright: reportUnknownLambdaType=false

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import WIDTH, batch, check, make_mesh, sgd_step
from unit.end_to_end.test_split_backward import program_of, schedule_of

import jaxpp.api as jaxpp

Layers = dict[str, jax.Array]


def stack(seed: int, layers: int = 2) -> Layers:
    """The weights of some layers: three products, a norm and biases."""
    random = np.random.default_rng(seed)
    shapes = [(layers, WIDTH, WIDTH)] * 4 + [(layers, WIDTH)] * 4
    names = ("qkv", "out", "up", "down", "scale", "shift", "bias", "offset")
    drawn = {
        name: jnp.array(random.normal(size=shape) / shape[-1] ** 0.5, jnp.float32)
        for name, shape in zip(names, shapes, strict=True)
    }
    return drawn | {"scale": 1 + 0.1 * drawn["scale"]}


def block(x: jax.Array, w: Layers) -> tuple[jax.Array, None]:
    """Attention and an MLP behind norms, as in a transformer."""
    normed = jax.nn.standardize(x) * w["scale"] + w["shift"]
    mixed = normed @ w["qkv"]
    x = x + jax.nn.softmax(mixed @ normed.T) @ mixed @ w["out"]
    return x + jax.nn.gelu(jax.nn.standardize(x) @ w["up"] + w["bias"]) @ w["down"] + w["offset"], None


def blocks(x: jax.Array, w: Layers) -> jax.Array:
    return jax.lax.scan(block, x, w)[0]


def checkpointed(x: jax.Array, w: Layers) -> jax.Array:
    """All layers capture one vector, which the gradient of a weight reads behind the barrier of `jax.checkpoint`."""
    gate = jnp.tanh(w["bias"][0])
    return jax.lax.scan(jax.checkpoint(lambda x, w: block(x, w | {"up": gate * w["up"]})), x, w)[0]


def tanh_layers(x: jax.Array, w: Layers) -> jax.Array:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w["up"], reverse=True)[0]


def two_scans(x: jax.Array, w: Layers) -> jax.Array:
    """The gradient of one weight is added up by a loop, as all layers share it; a state of two arrays is carried."""
    (x, y), sums = jax.lax.scan(
        lambda c, w: ((jnp.tanh(c[1] @ w), c[0] + jnp.sin(c[0])), c[1].sum()), (x, 2 * x), w["up"]
    )
    x = x + y * sums.mean()
    return jax.lax.scan(lambda x, b: (x + jnp.tanh(x @ w["down"][0] + b), None), x, w["bias"])[0]


def nested(x: jax.Array, w: Layers) -> jax.Array:
    """Groups of layers, each under `jax.checkpoint`, and in each layer a loop over the rows of its activation."""

    def rows(carry: jax.Array, row: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = jnp.tanh(row + carry @ w)
        return carry, carry

    def layer(x: jax.Array, w: Layers) -> tuple[jax.Array, None]:
        return x + jax.lax.scan(partial(rows, w=w["up"]), w["bias"], x @ w["down"])[1], None

    groups = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.9 * leaf]), w)
    return jax.lax.scan(jax.checkpoint(lambda x, w: (jax.lax.scan(layer, x, w)[0], None)), x, groups)[0]


def from_three(x: jax.Array, w: Layers) -> jax.Array:
    return jax.lax.fori_loop(3, 5, lambda i, x: x + jnp.tanh(x @ w["up"][i - 3] * i) @ w["down"][i - 3], x)


def loss(params: Any, microbatch: Any, stages: Any, marks: int) -> Any:
    x = microbatch["x"]
    for number, (stage, w) in enumerate(zip(stages, params, strict=True)):
        x = stage(x, w)
        x = jaxpp.mark_stage_end(x) if number < marks else x
    return jnp.mean((x - microbatch["y"]) ** 2)


def step_of(schedule: Any, stages: Any, marks: int = 4) -> Any:
    return partial(sgd_step, schedule=schedule, loss=partial(loss, stages=tuple(stages), marks=marks))


def products_of(program: str) -> dict[str, int]:
    """The number of matrix products in each function that is half of a backward."""
    functions = re.findall(r"func\.func private @(\w+_grad_\d)\((.*?)\n  }", program, re.DOTALL)
    return {name: text.count("dot_general") for name, text in functions}


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_loops_of_every_kind(name: str) -> None:
    step = step_of(schedule_of(name, 2, 4), [checkpointed, two_scans, nested, blocks])
    check(step, ([stack(k) for k in range(4)], batch(4)), make_mesh(2))


@pytest.mark.parametrize(("stages", "marks"), [((nested, checkpointed), 1), ((two_scans, from_three), 2)])
def test_first_and_last_stages(stages: Any, marks: int) -> None:
    """A last stage without a mark has its forward in its input gradient."""
    check(step_of(jaxpp.ZeroBubble(2), stages, marks), ([stack(0), stack(1)], batch(2)), make_mesh(2))


def test_the_order_of_sums_is_that_of_the_loop() -> None:
    step = step_of(jaxpp.ZeroBubble(2), [tanh_layers, tanh_layers])
    check(step, ([stack(0, 3), stack(1, 3)], batch(4)), make_mesh(2), exact=True)


def test_stages_of_several_devices() -> None:
    step = step_of(jaxpp.ZeroBubble(2), [checkpointed, tanh_layers])
    options: dict[str, Any] = {
        "in_shardings": ([{**dict.fromkeys(stack(0), P()), "up": P(None, None, "model")}] * 2, P(None, "data"))
    }
    check(step, ([stack(0), stack(1)], batch(4)), make_mesh(2, data=2, model=2), **options)


def test_a_scan_over_one_layer() -> None:
    def one(x: jax.Array, w: Layers) -> jax.Array:
        return jax.lax.scan(block, x, w, unroll=True)[0]

    step, arguments = step_of(jaxpp.ZeroBubble(2), [one, tanh_layers]), ([stack(0, 1), stack(1, 1)], batch(2))
    check(step, arguments, make_mesh(2))
    assert "stablehlo.while" not in program_of(step, arguments, 2)


def test_no_product_is_made_twice() -> None:
    """The six products of a block take twelve in its backward, of which four are gradients of weights."""
    program = program_of(step_of(jaxpp.ZeroBubble(2), [blocks, blocks]), ([stack(0), stack(1)], batch(2)), 2)
    # One weight gradient is that of both stages.
    assert products_of(program) == {"input_grad_0": 8, "input_grad_1": 8, "weight_grad_1": 4}


def test_equinox_layers() -> None:
    eqx: Any = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0), (2, 2))
    stacks = [eqx.filter_vmap(lambda key: eqx.nn.MLP(WIDTH, WIDTH, 8, 1, key=key))(row) for row in keys]
    weights, rest = eqx.partition(stacks, eqx.is_array)

    def scanned(x: jax.Array, parts: Any) -> jax.Array:
        def layer(x: jax.Array, w: Any) -> Any:
            return x + jax.vmap(eqx.combine(w, parts[1]))(x), None

        return jax.lax.scan(layer, x, parts[0])[0]

    def loss(weights: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for parts in zip(weights, rest, strict=True):
            x = jaxpp.mark_stage_end(scanned(x, parts))
        return jnp.mean((x - microbatch["y"]) ** 2)

    check(partial(sgd_step, schedule=jaxpp.ZeroBubble(2), loss=loss), (weights, batch(4)), make_mesh(2))


def test_a_conditional_in_a_scan_that_makes_both_gradients() -> None:
    def layer(carry: Any, w: Any) -> Any:
        i, x = carry
        return (i + 1, jax.lax.cond(i % 2 == 0, lambda: jnp.tanh(x @ w), lambda: jnp.sin(x @ w))), None

    def stage(x: jax.Array, w: Layers) -> jax.Array:
        return jax.lax.scan(layer, (0, x), w["up"])[0][1]

    check(step_of(jaxpp.ZeroBubble(2), [stage, stage]), ([stack(0), stack(1)], batch(4)), make_mesh(2))
