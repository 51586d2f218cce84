"""Stacked layers of which only some meshes have stages: an encoder's on the first meshes, a decoder's on the others."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, lowered, make_mesh, weights
from unit.end_to_end.everywhere import gradient_step
from unit.end_to_end.test_stacked_layers import adamw_step, layer, mark, squared_error, stacked
from unit.end_to_end.transfers import carried

import jaxpp.api as jaxpp
from jaxpp import schedules

MICROBATCHES = 4


def run(x: jax.Array, params: Any, stages: int, extra: Any = 0.0) -> jax.Array:
    """A scan over stages, of some layers each."""

    def stage(x: jax.Array, params: Any) -> Any:
        return mark(lax.scan(lambda x, params: (layer(params, x) + extra, None), x, params)[0]), None

    return lax.scan(stage, x, jax.tree.map(lambda leaf: leaf.reshape(stages, -1, *leaf.shape[1:]), params))[0]


def encoder_decoder(params: Any, microbatch: Any, stages: int = 2) -> jax.Array:
    encoded = run(microbatch["x"], params["encoder"], stages)
    return squared_error(run(encoded, params["decoder"], stages), microbatch)


def parameters(encoder: int, decoder: int) -> Any:
    both = stacked(encoder + decoder)
    first, rest = (jax.tree.map(lambda leaf, cut=cut: leaf[cut], both) for cut in (np.s_[:encoder], np.s_[encoder:]))
    return {"encoder": first, "decoder": rest}


def adamw_state(params: Any) -> Any:
    return params, (optax.EmptyState(), optax.adamw(1e-2).init(params))


def check_stays(loss: Any, plan: Any, params: Any, meshes: int) -> Any:
    """Nothing but activations, their gradients and scalars is sent; three steps as under `jax.jit`. Their state."""
    step = partial(adamw_step, schedule=plan, loss=loss)
    args = (adamw_state(params), batch(MICROBATCHES))
    found = carried(lowered(step, args, make_mesh(meshes), donate_argnums=0).program())
    assert set(found) == {"activation", "gradient", "scalar"}
    return check(step, args, make_mesh(meshes), steps=3, feed=feed_state, tolerance=1e-4, donate_argnums=0)[0]


def devices(leaf: Any) -> list[int]:
    return [device.id for device in leaf.sharding.mesh.devices.flat]


@pytest.mark.parametrize(("encoder", "decoder"), [(4, 4), (2, 6)])
def test_an_encoder_and_a_decoder(encoder: int, decoder: int) -> None:
    """Each is cut into a block for each mesh of its own; as many rows in both, or not."""
    params, (_, moments) = check_stays(encoder_decoder, jaxpp.Std1F1B(4), parameters(encoder, decoder), 4)
    for tree in (params, moments[0].mu, moments[0].nu):
        for name, meshes in (("encoder", [0, 1]), ("decoder", [2, 3])):
            for leaf in jax.tree.leaves(tree[name]):
                assert (leaf.sharding.spec, devices(leaf)) == (P("mpmd"), meshes)
                assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {len(leaf) // 2}


def test_a_stack_beside_one_on_a_single_mesh() -> None:
    """Both have the same shapes: those of the decoder's layers, all in the last stage, stay whole there."""

    def loss(params: Any, microbatch: Any) -> Any:
        x = run(microbatch["x"], params["encoder"], 2)
        x = lax.scan(lambda x, params: (layer(params, x), None), x, params["decoder"])[0]
        return squared_error(mark(x), microbatch)

    params, _ = check_stays(loss, jaxpp.Std1F1B(3), parameters(2, 2), 3)
    assert {tuple(devices(leaf)) for leaf in jax.tree.leaves(params["encoder"])} == {(0, 1)}
    assert {tuple(devices(leaf)) for leaf in jax.tree.leaves(params["decoder"])} == {(2,)}


def test_layers_between_an_embedding_and_a_head() -> None:
    """The first and the last mesh have none of the layers."""

    def loss(params: Any, microbatch: Any) -> Any:
        x = mark(microbatch["x"] @ params["embedding"])
        return squared_error(mark(run(x, params["layers"], 2) @ params["head"]), microbatch)

    embedding, head = weights(2)
    params = {"embedding": embedding, "layers": stacked(4), "head": head}
    params, _ = check_stays(loss, jaxpp.Std1F1B(4), params, 4)
    assert {tuple(devices(leaf)) for leaf in jax.tree.leaves(params["layers"])} == {(1, 2)}


def test_each_of_two_stacks_in_its_order_of_the_meshes() -> None:
    """V-shaped, two meshes: the encoder's stages are on the meshes 0 and 1, the decoder's on 1 and 0."""
    plan = schedules.make("hanayo", meshes=2, microbatches=MICROBATCHES)
    params, _ = check_stays(encoder_decoder, plan, parameters(4, 4), 2)
    assert {tuple(devices(leaf)) for leaf in jax.tree.leaves(params["encoder"])} == {(0, 1)}
    assert {tuple(devices(leaf)) for leaf in jax.tree.leaves(params["decoder"])} == {(1, 0)}


def test_what_needs_both_stacks_and_all_their_rows() -> None:
    """After the loop: sums over both, one computed of the other, sorted rows."""

    def step(params: Any, batch: Any) -> Any:
        losses, grads = jaxpp.treduce(
            partial(jax.value_and_grad(encoder_decoder), params), batch, schedule=jaxpp.Std1F1B(4)
        )
        flat = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(grads)])
        mixed = jax.tree.map(lambda one, other: one * other + jnp.sort(one, axis=0), grads["encoder"], grads["decoder"])
        encoder = jax.tree.map(lambda w, g: w - 0.1 * g, params["encoder"], mixed)
        decoder = jax.tree.map(lambda w, g: w - 0.1 * g / jnp.linalg.norm(flat), params["decoder"], grads["decoder"])
        return {"encoder": encoder, "decoder": decoder}, losses, mixed

    args = (parameters(4, 4), batch(MICROBATCHES))
    check(step, args, make_mesh(4), steps=2, feed=feed_state)


def test_weights_of_one_stack_feed_the_other() -> None:
    """The two exchange their places in the next step."""

    def step(params: Any, batch: Any) -> Any:
        new, losses, _ = gradient_step(params, batch, schedule=jaxpp.Std1F1B(4), loss=encoder_decoder)
        return {"encoder": new["decoder"], "decoder": new["encoder"]}, losses

    check(step, (parameters(4, 4), batch(MICROBATCHES)), make_mesh(4), steps=3, feed=feed_state)


def test_shardings_that_the_user_asks_for() -> None:
    """Sharded over the whole mpmd axis at first, a stack moves to its meshes with the first step."""
    mesh = make_mesh(4)
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(4), loss=encoder_decoder)
    found = check(step, (parameters(4, 4), batch(4)), mesh, steps=2, feed=feed_state, in_shardings=(P("mpmd"), P()))
    assert {tuple(devices(leaf)) for leaf in jax.tree.leaves(found[0]["decoder"])} == {(2, 3)}


def test_rows_that_do_not_divide_stay_whole() -> None:
    """Three layers in two stages: a `jax.Array` has equal shards."""

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for k in range(3):
            x = layer(jax.tree.map(lambda leaf: leaf[k], params["encoder"]), x)  # noqa: B023
            x = mark(x) if k else x
        return squared_error(run(x, params["decoder"], 2), microbatch)

    step = partial(gradient_step, schedule=jaxpp.Std1F1B(4), loss=loss)
    found = check(step, (parameters(3, 2), batch(4)), make_mesh(4), steps=2, feed=feed_state)
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(found[0]["encoder"])} == {P()}
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(found[0]["decoder"])} == {P("mpmd")}
