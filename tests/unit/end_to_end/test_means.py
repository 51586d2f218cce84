"""Means by a count, of a batch that `treduce` splits: the loss of all valid tokens under every kind of schedule."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end import decoder
from unit.end_to_end.collectives import collectives
from unit.end_to_end.compare import WIDTH, assert_same, check, layers, lowered, make_mesh, weights

import jaxpp.api as jaxpp
from jaxpp.models import scan_slices

M, ROWS, LENGTH = 4, 16, 3
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(0.1, momentum=0.9))
MEANS = ((jaxpp.Mean, jaxpp.Count), jaxpp.Mean)


def tokens(*steps: int) -> dict[str, np.ndarray]:
    """Rows of which each microbatch has another number of valid tokens, the first none at all."""
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(*steps, ROWS, LENGTH, WIDTH)).astype(np.float32) for _ in "xy")
    valid = random.random((*steps, ROWS, LENGTH)) < 0.5
    valid[..., ::M, :] = False
    return {"x": x, "y": y, "valid": valid}


def total(params: Any, rows: Any) -> tuple[jax.Array, jax.Array]:
    """The sum of the losses of the valid tokens, and their number."""
    valid = rows["valid"]
    return jnp.sum((layers(params, rows["x"]) - rows["y"]) ** 2 * valid[..., None]), jnp.sum(valid)


def of_all(params: Any, rows: Any) -> Any:
    """The mean loss of the valid tokens of all rows, their number and the gradients, without microbatches."""
    (loss, count), gradients = jax.value_and_grad(total, has_aux=True)(params, rows)
    return (loss / count, count), jax.tree.map(lambda g: g / count, gradients)  # pyright: ignore[reportUnknownLambdaType]


def means(params: Any, rows: Any, schedule: Any = None, total: Any = total) -> Any:
    gradient = partial(jax.value_and_grad(total, has_aux=True), params)
    return jaxpp.treduce(gradient, rows, schedule, operation=MEANS, microbatches=M)


@pytest.mark.parametrize(
    ("schedule", "stages", "meshes", "data"),
    [
        ("1f1b", 3, 3, 2),
        ("zb-h1", 2, 2, 1),
        ("interleaved-1f1b{chunks=2}", 4, 2, 2),
        ("zb-v", 4, 2, 1),
        ("dualpipe", 2, 2, 2),
    ],
)
def test_schedules(schedule: str, stages: int, meshes: int, data: int) -> None:
    """The results are those of plain `jax.jit` of the same step, and of the gradient of all rows at once."""
    arguments, specs = (weights(stages), tokens()), (P(), P("data"))
    found = check(partial(means, schedule=schedule), arguments, make_mesh(meshes, data=data), in_shardings=specs)
    assert_same(found, jax.jit(of_all)(*arguments))


def test_sums_that_are_divided_by_hand_have_the_same_bits() -> None:
    def by_hand(params: Any, rows: Any) -> Any:
        split = {name: jnp.moveaxis(leaf.reshape(-1, M, *leaf.shape[1:]), 1, 0) for name, leaf in rows.items()}
        gradient = partial(jax.value_and_grad(total, has_aux=True), params)
        (loss, count), gradients = jaxpp.treduce(gradient, split, "1f1b", operation=jaxpp.Add)
        return (loss / count, count), [g / count for g in gradients]

    step = partial(means, schedule="1f1b")
    check(
        step,
        (weights(2), tokens()),
        make_mesh(2),
        reference=jaxpp.mpmd_jit_with_loop(by_hand, make_mesh(2)),
        exact=True,
    )


def test_explicit_axes() -> None:
    arguments, specs, mesh = (weights(2), tokens()), (P(), P("data")), make_mesh(2, data=4, explicit=True)
    check(partial(means, schedule="1f1b"), arguments, mesh, in_shardings=specs)
    message = (
        "treduce: batch['valid'] is sharded over 'data' along axis 0: 4 devices can't share the rows of a microbatch, "
        "3, equally; expected a multiple of 4 rows for each microbatch"
    )
    rows = {name: leaf[:12] for name, leaf in tokens().items()}
    with pytest.raises(ValueError, match=re.escape(message)):
        lowered(partial(means, schedule="1f1b"), (weights(2), rows), mesh, in_shardings=specs)


def test_rows_stay_on_their_devices() -> None:
    """The devices of a mesh exchange no row of the batch: they only sum gradients, loss and count, once per step."""
    mesh = make_mesh(2, data=2)
    step = lowered(partial(means, schedule="1f1b"), (weights(2), tokens()), mesh, in_shardings=(P(), P("data")))
    assert collectives(step, mesh) == {("after", "all-reduce"): 4}


def stacked(params: Any, rows: Any) -> tuple[jax.Array, jax.Array]:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return jaxpp.mark_stage_end(jnp.tanh(x @ w)), None

    x, _ = jax.lax.scan(layer, rows["x"], params)
    valid = rows["valid"]
    return jnp.sum((x - rows["y"]) ** 2 * valid[..., None]), jnp.sum(valid)


def test_clipped_means_of_stacked_layers() -> None:
    """Each mesh divides the rows of its own stages; the norm is that of the means."""

    def step(state: Any, rows: Any) -> Any:
        params, moments = state
        (loss, count), gradients = means(params, rows, "1f1b", stacked)
        updates, moments = OPTIMIZER.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), (loss, count, optax.tree.norm(gradients))

    params = jnp.stack(weights(2))
    state: Any = params, OPTIMIZER.init(params)
    check(step, (state, tokens()), make_mesh(2), steps=2, feed=lambda result, args: (result[0], args[1]))


def test_several_steps_with_older_gradients() -> None:
    def step(state: Any, rows: Any, older: Any) -> Any:
        (params,) = state
        metrics, gradients = means(older, rows, "pipedream-2bw{steps=2}")
        return ([w - 0.1 * g for w, g in zip(params, gradients, strict=True)],), metrics

    loop = jaxpp.train_loop(step, steps=2, delay=1)
    check(loop, (loop.start((weights(2),)), tokens(2)), make_mesh(2))


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_steps_that_expect_small_gradients(limit: float) -> None:
    def step(params: Any, rows: Any) -> Any:
        metrics, gradients = means(params, rows, "zb-h2")
        norm = optax.tree.norm(gradients)
        gradients = jaxpp.expect(norm <= limit, gradients, lambda: [limit / norm * g for g in gradients])
        return [w - g for w, g in zip(params, gradients, strict=True)], metrics

    loop = jaxpp.train_loop(step, steps=2)
    hopeful = jaxpp.optimistic(loop, make_mesh(2))
    assert_same(hopeful(weights(2), tokens(2)), jax.jit(loop)(weights(2), tokens(2)))
    assert (hopeful.rollbacks > 0) == (limit < 1)


def of_slices(params: Any, text: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum of the losses of the tokens that are no multiple of 3, slice by slice, and their number."""

    def on_slice(caches: Any, tokens: Any, start: jax.Array) -> tuple[Any, jax.Array]:
        x, new = params["tokens"][tokens[0]], list[Any]()
        for block, cache in zip(params["blocks"], caches, strict=True):
            x, cache = decoder.block(block, jaxpp.mark_stage_end(x) if new else x, cache, start)
            new.append(cache)
        losses = jax.nn.logsumexp(x @ params["head"], -1) - jnp.take_along_axis(
            x @ params["head"], tokens[1][..., None], -1
        ).squeeze(-1)
        return new, jaxpp.mark_stage_end(jnp.sum(losses * (tokens[1] % 3 > 0)))

    xs = text[:, :-1], text[:, 1:]
    _, losses = scan_slices(on_slice, decoder.empty(params, len(text)), xs, 3)
    return losses.sum(), jnp.sum(xs[1] % 3 > 0)


def test_slices_of_the_sequence() -> None:
    rows = decoder.batch(M).reshape(-1, decoder.LENGTH + 1)
    check(partial(means, schedule="seq1f1b{slices=3}", total=of_slices), (decoder.parameters(2), rows), make_mesh(2))
