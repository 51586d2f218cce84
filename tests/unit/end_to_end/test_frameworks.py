"""Models written with flax and equinox; skipped where those are not installed."""

# pyright: reportUnknownLambdaType=false

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, check, feed_state, layers, make_mesh, sgd_step, weights
from unit.end_to_end.everywhere import check_step, schedule_and_mesh

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def trained(loss: Any, schedule: Any, state: Any, batch: Any) -> Any:
    """(new parameters and moments, losses, what else the loss returns)."""
    params, moments = state
    (losses, extra), grads = jaxpp.treduce(
        partial(jax.value_and_grad(loss, has_aux=True), params),
        batch,
        schedule=schedule,
        operation=(jaxpp.Concat(), jaxpp.Add),
    )
    updates, moments = OPTIMIZER.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), losses, extra


def scanned(loss: Any, params: Any, rest: Any, batch: Any) -> Any:
    """((the sum of the gradients, what is not differentiated), losses): a loop of the user's own."""

    def body(carry: Any, microbatch: Any) -> Any:
        total, rest = carry
        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params, rest, microbatch)
        return (jax.tree.map(jnp.add, total, grads), rest), value

    return jax.lax.scan(body, (jax.tree.map(jnp.zeros_like, params), rest), batch)


def test_flax_linen() -> None:
    nn: Any = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            for _ in range(2):
                hidden = nn.Dropout(0.2, deterministic=not train)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
                x = mark(x + nn.Dense(8)(hidden))
            return x

    model: Any = Model()
    params = model.init(jax.random.key(0), jnp.zeros((4, 8)), train=False)

    def loss(params: Any, microbatch: Any) -> Any:
        x = model.apply(params, microbatch["x"], train=True, rngs={"dropout": microbatch["key"]})
        return jnp.mean((x - microbatch["y"]) ** 2), jnp.abs(x).mean()

    def step(state: Any, batch: Any, key: jax.Array, *, schedule: Any) -> Any:
        keys = jax.random.split(key, 4)
        return trained(loss, schedule, state, batch | {"key": keys})

    state = (params, OPTIMIZER.init(params))
    check_step(step, (state, batch(4), jax.random.key(3)), "1f1b", stages=2, steps=2, feed=feed_state)


def test_flax_nnx() -> None:
    """A module in the loop: its parameters are differentiated, its batch statistics and random streams move on."""
    nnx: Any = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.up, self.down = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
            self.norm, self.dropout = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + self.down(self.dropout(nnx.gelu(self.up(self.norm(x)))))

    rngs = nnx.Rngs(0, dropout=1)
    graph, params, rest = nnx.split(nnx.List([Block(rngs) for _ in range(2)]), nnx.Param, ...)

    def loss(params: Any, rest: Any, microbatch: Any) -> Any:
        blocks = nnx.merge(graph, params, rest, copy=True)
        x = microbatch["x"]
        for block in blocks:
            x = mark(block(x))
        return jnp.mean((x - microbatch["y"]) ** 2), nnx.state(blocks, nnx.Not(nnx.Param))

    def step(state: Any, batch: Any) -> Any:
        params, moments, rest = state
        (grads, rest), losses = scanned(loss, params, rest, batch)
        updates, moments = OPTIMIZER.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments, rest), losses

    state = (params, OPTIMIZER.init(params), rest)
    schedule, mesh = schedule_and_mesh("sharded", 2)
    options: dict[str, Any] = {"schedule": str(schedule), "in_shardings": (P(), P(None, "data"))}
    check(step, (state, batch(4)), mesh, steps=2, feed=feed_state, **options)


def test_one_nnx_dropout_in_every_stage() -> None:
    """Each stage takes a number of its random stream, and advances it for the next one and the next microbatch."""
    nnx: Any = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(2)])
            self.dropout = nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = mark(self.dropout(jnp.tanh(layer(x))))
            return x

    graph, params, rest = nnx.split(Model(nnx.Rngs(0, dropout=1)), nnx.Param, ...)

    def loss(params: Any, rest: Any, microbatch: Any) -> Any:
        model = nnx.merge(graph, params, rest, copy=True)
        return jnp.mean((model(microbatch["x"]) - microbatch["y"]) ** 2), nnx.state(model, nnx.Not(nnx.Param))

    def step(state: Any, batch: Any) -> Any:
        params, rest = state
        (grads, rest), losses = scanned(loss, params, rest, batch)
        return (jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), rest), losses

    (_, moved), _ = check(step, ((params, rest), batch(4)), make_mesh(2), schedule="1f1b", steps=2, feed=feed_state)
    counts = [leaf for leaf in jax.tree.leaves(moved) if leaf.dtype == jnp.uint32]
    assert [int(count) for count in counts] == [16]  # 2 stages, 4 microbatches, 2 steps


def test_equinox() -> None:
    eqx: Any = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0), 2)
    layers = [eqx.nn.MLP(8, 8, 16, 1, activation=jax.nn.gelu, key=key) for key in keys]
    arrays, static = eqx.partition(layers, eqx.is_array)

    def loss(arrays: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for layer in eqx.combine(arrays, static):
            x = mark(x + jax.vmap(layer)(x))
        return jnp.mean((x - microbatch["y"]) ** 2), jnp.abs(x).mean()

    def step(state: Any, batch: Any, *, schedule: Any) -> Any:
        return trained(loss, schedule, state, batch)

    state = (arrays, OPTIMIZER.init(arrays))
    check_step(step, (state, batch(4)), "sharded", stages=2, steps=2, feed=feed_state)


def test_equinox_filtered_functions() -> None:
    """`eqx.filter_value_and_grad` of a model with static fields, closed over by the loop."""
    eqx: Any = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0), 2)
    arrays, static = eqx.partition([eqx.nn.Linear(8, 8, key=key) for key in keys], eqx.is_array)

    def loss(model: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for layer in model:
            x = mark(jnp.tanh(jax.vmap(layer)(x)))
        return jnp.mean((x - microbatch["y"]) ** 2)

    def step(arrays: Any, batch: Any, *, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            return eqx.filter_value_and_grad(loss)(eqx.combine(arrays, static), microbatch)

        losses, grads = jaxpp.treduce(of_one, batch, schedule=schedule)
        return eqx.apply_updates(arrays, jax.tree.map(lambda g: -0.1 * g, grads)), losses

    check_step(step, (arrays, batch(4)), "1f1b", stages=2, steps=2, feed=feed_state)


def test_a_whole_equinox_module_is_refused_with_the_way() -> None:
    eqx: Any = pytest.importorskip("equinox")
    module = eqx.nn.MLP(8, 8, 16, 1, key=jax.random.key(0))  # its activation is a function
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.GPipe(1)), mpmd_mesh=make_mesh(1))
    with pytest.raises(TypeError) as caught:
        step([weights(1)[0], module], batch(2))
    assert re.fullmatch(
        r"argument params\[1\]\S* is of type \w+, not an array: take the arrays out of the module by "
        r"eqx\.partition\(module, eqx\.is_array\), and put it together by eqx\.combine inside of the step",
        str(caught.value),
    )


@pytest.mark.parametrize("copied", [False, True])
def test_an_nnx_dropout_that_is_not_copied(copied: bool) -> None:
    """nnx raises what it raises under jax.jit; the note says the way."""
    nnx: Any = pytest.importorskip("flax.nnx")
    graph, state = nnx.split(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))

    def train_step(params: Any, state: Any, batch: Any) -> Any:
        def of_one(params: Any, microbatch: Any) -> Any:
            dropout = nnx.merge(graph, state, copy=copied)
            return jnp.mean((dropout(layers(params, microbatch["x"])) - microbatch["y"]) ** 2)

        return sgd_step(params, batch, schedule=jaxpp.GPipe(1), loss=of_one)

    ours = jaxpp.mpmd_jit_with_loop(train_step, mpmd_mesh=make_mesh(1))
    if copied:
        assert_same(ours(weights(1), state, batch(2)), jax.jit(train_step)(weights(1), state, batch(2)))
        return
    with pytest.raises(Exception, match="different trace level") as caught:
        ours(weights(1), state, batch(2))
    assert [note for note in caught.value.__notes__ if "nnx.merge(graph, params, rest, copy=True)" in note]
