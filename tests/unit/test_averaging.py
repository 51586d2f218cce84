"""Sparse averaging of replicas: compared with its definition in numpy, and in a pipelined loop over steps."""

# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.collectives import collectives
from unit.end_to_end.compare import WIDTH, assert_same, check_compiled, feed_state, loss, make_mesh, weights

import jaxpp.api as jaxpp

REPLICAS, STEPS = 2, 3


def chosen_elements(averaging: jaxpp.SparseAveraging, shape: tuple[int, ...], steps: int) -> list[np.ndarray]:
    """Which elements each step averages: those that are equal after it, without a delay."""
    sparse, axis = replace(averaging, delay=0), averaging.axes
    apart = {"w": np.moveaxis(np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape), 0, axis)}
    state, found = sparse.start(apart), list[np.ndarray]()
    for _ in range(steps):
        after, state = sparse(apart, state)
        found.append(np.asarray(after["w"].take(0, axis) == after["w"].take(1, axis)))
    return found


@pytest.mark.parametrize(("parts", "shape"), [(4, (6, 6)), (5, (3, 3)), (20, (3,)), (1, (2, 2)), (3, ())])
def test_a_round_averages_each_element_once(parts: int, shape: tuple[int, ...]) -> None:
    rounds = min(parts, int(np.prod(shape)))
    chosen = chosen_elements(jaxpp.SparseAveraging(parts), shape, 2 * rounds)
    for first in (0, rounds):
        np.testing.assert_array_equal(sum(each.astype(int) for each in chosen[first : first + rounds]), 1)
    other = chosen_elements(jaxpp.SparseAveraging(parts, seed=1), shape, 2 * rounds)
    assert (parts, shape) not in [(4, (6, 6)), (5, (3, 3))] or any(
        (one != two).any() for one, two in zip(chosen[:rounds], other, strict=False)
    )


@pytest.mark.parametrize(("delay", "axis"), [(0, 0), (1, 0), (3, 0), (0, 1), (2, 1)])
def test_it_is_what_its_definition_says(delay: int, axis: int) -> None:
    """Written out in numpy, element by element, for replicas that move by themselves; also of stacked layers."""
    averaging = jaxpp.SparseAveraging(parts=3, delay=delay, momentum=0.75, axes=axis)
    rng, steps, shape = np.random.default_rng(0), 11, (4, 2) if axis == 0 else (2, 4)
    expected = rng.normal(size=(REPLICAS, *shape)).astype(np.float32)
    found = {"w": jnp.moveaxis(jnp.asarray(expected), 0, axis)}
    drift, seen = np.zeros((REPLICAS, *shape), np.float32), np.zeros(shape, bool)
    chosen, history = chosen_elements(averaging, shape, steps), list[np.ndarray]()
    if axis:  # each layer has rounds of its own, at random
        assert all(each.any(1).all() for each in chosen)
        assert any((each[0] != each[1]).any() for each in chosen)
    state, step = averaging.start(found), jax.jit(averaging)
    for t in range(steps):
        move = rng.normal(size=(REPLICAS, *shape)).astype(np.float32)
        found, state = step({"w": found["w"] + np.moveaxis(move, 0, axis)}, state)
        expected = expected + move
        history.append(expected.copy())
        if t >= delay:
            sent = history[t - delay]
            for element in zip(*np.nonzero(chosen[t - delay]), strict=True):
                mean = sum(sent[replica][element] for replica in range(REPLICAS)) / REPLICAS
                for replica in range(REPLICAS):
                    moved = history[t][replica][element] - sent[replica][element]
                    old = drift[replica][element]
                    drift[replica][element] = 0.75 * old + 0.25 * moved if seen[element] else moved
                    expected[replica][element] = mean + drift[replica][element]
                seen[element] = True
        np.testing.assert_allclose(np.moveaxis(found["w"], axis, 0), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(np.moveaxis(state.drift[0], axis, 0), drift, rtol=1e-5, atol=1e-6)


STACKED = (jaxpp.Concat(), jaxpp.Add)  # the loss is one of each replica
AVERAGING = jaxpp.SparseAveraging(parts=4, delay=2)


def step(averaging: Any, state: Any, batch: Any, older: Any) -> Any:
    """Each replica takes its own gradients, of weights that are one step old."""
    gradient = partial(jax.vmap(jax.value_and_grad(loss)), older)
    losses, gradients = jaxpp.treduce(gradient, batch, schedule="pipedream-2bw", operation=STACKED)
    made = jax.tree.map(lambda w, g: w - 0.1 * g, state[0], gradients)
    return averaging(made, state[1]) if averaging else (made, state[1]), losses


def test_replicas_in_a_loop_over_steps() -> None:
    """Bit for bit those of plain JAX, over two calls; no gradient is summed over replicas."""
    params = [jnp.stack([w, w[::-1]]) for w in weights(2)]
    batches = np.random.default_rng(0).normal(size=(2, STEPS, 2, REPLICAS, 4, WIDTH)).astype(np.float32)
    every = dict(zip("xy", batches, strict=True))
    mesh = make_mesh(2, data=REPLICAS)
    found: list[Any] = []
    for averaging in (AVERAGING, None):
        loop = jaxpp.train_loop(partial(step, averaging), STEPS, 1)
        arguments = loop.start((params, AVERAGING.start(params))), every
        shardings = (((P("data"), None), P("data")), P(None, None, "data"))
        lowered = jaxpp.mpmd_jit_with_loop(loop, mesh, in_shardings=shardings).lower(*arguments)
        compiled = lowered.compile()
        found.append(check_compiled(compiled, jax.jit(loop), arguments, exact=True, steps=2, feed=feed_state))
        moved = collectives(lowered, mesh)
        assert moved == ({("after", "all-reduce"): STEPS * 2} if averaging else {}), moved
    assert found[0][0][0][0][0].sharding.spec == P("data")
    apart = [np.abs(np.subtract(*after[0][0][0][0])).mean() for after in found]
    assert apart[0] < 0.5 * apart[1]


def stacked_loss(params: Any, microbatch: Any) -> Any:
    """Of a scan over layers, and a head."""

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return jaxpp.mark_stage_end(jnp.tanh(x @ w)), None

    x, _ = jax.lax.scan(layer, microbatch["x"], params["layers"])
    return jnp.mean((x @ params["head"] - microbatch["y"]) ** 2)


@pytest.mark.parametrize(("meshes", "delay"), [(2, 1), (4, 2)])
def test_stacked_layers_are_averaged_where_they_are(meshes: int, delay: int) -> None:
    """Weights, drift and what is under way lie in blocks of a layer, and nothing but averages crosses replicas."""
    averaging = jaxpp.SparseAveraging(parts=5, delay=delay, axes={"layers": 1, "head": 0})

    def step(state: Any, batch: Any, older: Any) -> Any:
        gradient = jax.value_and_grad(stacked_loss)
        gradient = jax.vmap(gradient, in_axes=(averaging.axes, 0), out_axes=(0, averaging.axes))
        losses, gradients = jaxpp.treduce(partial(gradient, older), batch, schedule="1f1b", operation=STACKED)
        made = jax.tree.map(lambda w, g: w - 0.1 * g, state[0], gradients)
        return averaging(made, state[1]), losses

    *each, head = weights(meshes + 1)
    layers = jnp.stack(each)
    params = {"layers": jnp.stack([layers, layers[:, ::-1]], 1), "head": jnp.stack([head, head.T])}
    data = np.random.default_rng(0).normal(size=(2, STEPS, 4, REPLICAS, 4, WIDTH)).astype(np.float32)
    loop, mesh = jaxpp.train_loop(step, STEPS, 1), make_mesh(meshes, data=REPLICAS)
    arguments = loop.start((params, averaging.start(params))), dict(zip("xy", data, strict=True))
    of_weights = {"layers": P(None, "data"), "head": P("data")}
    shardings = ((of_weights, None), (of_weights,)), P(None, None, "data")
    lowered = jaxpp.mpmd_jit_with_loop(loop, mesh, in_shardings=shardings).lower(*arguments)
    found = check_compiled(lowered.compile(), jax.jit(loop), arguments, exact=True, steps=2, feed=feed_state)
    if meshes == 4:  # which takes as long as the rest
        assert collectives(lowered, mesh) == {("after", "all-reduce"): STEPS * (meshes + 1)}
    assert found[0][0][0]["layers"].sharding.spec == P("mpmd", "data")
    program = lowered.program()
    assert program.rows_sent_bytes == 0
    types = [line for line in program.as_text().splitlines() if "func.func public @mesh_" in line]
    elements = -(-(WIDTH**2) // averaging.parts)
    for line in (each.partition("->")[0] for each in types):
        assert line.count(f"tensor<1x{REPLICAS}x{WIDTH}x{WIDTH}xf32> {{jaxpp.number") == 3  # two versions, the drift
        assert line.count(f"tensor<1x{REPLICAS}x{elements}xf32> {{jaxpp.number") == delay
        assert line.count(f"tensor<1x{elements}xf32> {{jaxpp.number") == delay


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: jaxpp.SparseAveraging(0), ValueError, "parts must be a whole number of at least 1, found 0"),
        (lambda: jaxpp.SparseAveraging(delay=-1), ValueError, "delay must be a whole number of at least 0, found -1"),
        (
            lambda: jaxpp.SparseAveraging(momentum=1.0),
            ValueError,
            "SparseAveraging: momentum must be from 0 to less than 1, found 1.0",
        ),
        (
            lambda: jaxpp.SparseAveraging(momentum=cast("Any", "x")),
            ValueError,
            "SparseAveraging: momentum must be from 0 to less than 1, found 'x'",
        ),
        (
            lambda: jaxpp.SparseAveraging(seed=cast("Any", 2.5)),
            ValueError,
            "seed must be a whole number of at least 0, found 2.5",
        ),
        (
            lambda: jaxpp.SparseAveraging(axes={"w": 2}),
            ValueError,
            "SparseAveraging: axes are 0, where the replicas are the first dimension, or 1, behind that of stacked "
            "layers; found 2",
        ),
        (
            lambda: jaxpp.SparseAveraging(axes={"w": 0}).start({"v": np.ones((2, 3))}),
            ValueError,
            "SparseAveraging: axes={'w': 0} are no prefix of the weights: ",
        ),
        (
            lambda: jaxpp.SparseAveraging(axes=1).start({"w": np.ones(2)}),
            TypeError,
            "SparseAveraging: weights['w'] is of shape (2,), expected an array [layers, replicas, ...]",
        ),
        (
            lambda: jaxpp.SparseAveraging(axes=[0, 1]).start([np.ones((2, 3)), np.ones((2, 3))]),
            ValueError,
            "SparseAveraging: weights[1] has 3 replicas along its second dimension, the leaf before it 2",
        ),
        (
            lambda: AVERAGING.start({"w": np.float32(1)}),
            TypeError,
            "SparseAveraging: weights['w'] is of shape (), expected an array [replicas, ...]",
        ),
        (
            lambda: AVERAGING.start(["adam"]),
            TypeError,
            "SparseAveraging: weights[0] is str, expected an array [replicas, ...]",
        ),
        (
            lambda: AVERAGING.start([np.ones((2, 3), int)]),
            TypeError,
            "SparseAveraging: weights[0] is of type int64, which has no mean",
        ),
        (
            lambda: AVERAGING.start([np.ones((2, 3)), np.ones((3, 3))]),
            ValueError,
            "SparseAveraging: weights[1] has 3 replicas along its first dimension, the leaf before it 2",
        ),
        (
            lambda: jaxpp.SparseAveraging()([np.ones((2, 3))], AVERAGING.start([np.ones((2, 3))])),
            ValueError,
            "SparseAveraging: the state is of 2 steps and weights [float32[2, 3]]; expected 0 and [float32[2, 3]]: "
            "make it by averaging.start(weights)",
        ),
        (
            lambda: AVERAGING([jnp.ones((2, 3), jnp.bfloat16)], AVERAGING.start([jnp.ones((2, 3))])),
            ValueError,
            "the state is of 2 steps and weights [float32[2, 3]]; expected 2 and [bfloat16[2, 3]]",
        ),
        (
            lambda: AVERAGING([np.ones((2, 3))], cast("Any", None)),
            TypeError,
            "SparseAveraging: expected averaging.start(weights), found NoneType",
        ),
    ],
)
def test_what_is_refused(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_low_precision_keeps_its_type() -> None:
    params = {"w": jnp.ones((2, 5), jnp.bfloat16)}
    averaging = jaxpp.SparseAveraging(2, 1)
    after, state = averaging(params, averaging.start(params))
    assert_same((after, state.drift), (params, (jnp.zeros((2, 5), jnp.bfloat16),)), exact=True)
