"""Stacked layers, stored in the order of the meshes and read in the order of the model: no row crosses."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, check_compiled, feed_state, lowered, make_mesh, plain_of
from unit.end_to_end.everywhere import check_step, gradient_step, schedule_and_mesh
from unit.end_to_end.test_stacked_layers import adamw_step, layer, mark, squared_error, stacked
from unit.end_to_end.test_stacked_layers import loss as in_model_order
from unit.end_to_end.transfers import carried

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.models import rows_of_layers, stored_rows

MICROBATCHES = 4
# (name, meshes): several stages for each mesh.
SCHEDULES = [("interleaved-1f1b", 2), ("zb-v", 2), ("hanayo", 2), ("interleaved-zb", 3), ("dualpipe-v", 2)]


def plan_and_rows(name: str, meshes: int, layers_per_stage: int = 1) -> tuple[schedules.Schedule, np.ndarray]:
    plan = schedules.make(name, meshes=meshes, microbatches=3 if meshes == 3 else MICROBATCHES)
    return plan, rows_of_layers(plan, plan.stages * layers_per_stage)


def ordered(rows: np.ndarray, loss: Callable[..., Any] = in_model_order) -> Callable[..., Any]:
    """`loss` of layers that are stored in another order."""
    return lambda params, microbatch: loss(jax.tree.map(lambda w: w[rows], params), microbatch)


def by_stage(stages: int) -> Callable[..., Any]:
    """Several layers in each stage."""

    def loss(params: Any, microbatch: Any) -> Any:
        def stage(x: jax.Array, params: Any) -> Any:
            return mark(lax.scan(lambda x, params: (layer(params, x), None), x, params)[0]), None

        params = jax.tree.map(lambda leaf: leaf.reshape(stages, -1, *leaf.shape[1:]), params)
        return squared_error(lax.scan(stage, microbatch["x"], params)[0], microbatch)

    return loss


def adamw_state(count: int) -> Any:
    params = stacked(count)
    return params, (optax.EmptyState(), optax.adamw(1e-2).init(params))


def check_own_rows(plan: schedules.Schedule, loss: Any, layers: int, same_as: Any = None) -> None:
    """Three steps as under `jax.jit`; nothing stacked is sent, and each mesh holds its own rows of the state.

    `same_as` is a loss with the same numbers, which several others may be compared with.
    """
    mesh = make_mesh(plan.meshes)
    step = partial(adamw_step, schedule=plan, loss=loss)
    args = (adamw_state(layers), batch(plan.microbatches))
    lowered_step = lowered(step, args, mesh, donate_argnums=0)
    program = lowered_step.program()
    assert program.rows_sent_bytes == 0
    found = carried(program)
    crossing = sum(one != other for one, other in zip(plan.placement.homes, plan.placement.homes[1:], strict=False))
    assert found.pop("activation") == found.pop("gradient") == plan.microbatches * crossing
    assert set(found) == {"scalar"}
    plain = plain_of(partial(step, loss=same_as or loss))
    state, _ = check_compiled(lowered_step.compile(), plain, args, steps=3, feed=feed_state, tolerance=1e-4)
    for leaf in jax.tree.leaves(state):
        if leaf.ndim:
            assert leaf.sharding.spec == P("mpmd")
            assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {layers // plan.meshes}


@pytest.mark.parametrize(("name", "meshes"), SCHEDULES)
def test_each_mesh_keeps_the_rows_of_its_stages(name: str, meshes: int) -> None:
    plan, rows = plan_and_rows(name, meshes)
    check_own_rows(plan, ordered(rows), len(rows))


# A stage that scans over its layers has a whole backward.
@pytest.mark.parametrize(("name", "meshes"), [("interleaved-1f1b", 2), ("hanayo", 2), ("kimi-k2", 3)])
def test_several_layers_in_each_stage(name: str, meshes: int) -> None:
    plan, rows = plan_and_rows(name, meshes, layers_per_stage=2)
    check_own_rows(plan, ordered(rows, by_stage(plan.stages)), len(rows))


def indexed_by_stage(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    """The indices have the shape of the stages."""

    def stage(x: jax.Array, params: Any) -> Any:
        return mark(lax.scan(lambda x, params: (layer(params, x), None), x, params)[0]), None

    params = jax.tree.map(lambda leaf: leaf[rows.reshape(4, -1)], params)
    return squared_error(lax.scan(stage, microbatch["x"], params)[0], microbatch)


def taken(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    """As `jnp.take` does it, which fills what is out of range."""
    return by_stage(4)(jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0), params), microbatch)


def counted_from_the_end(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    return by_stage(4)(jax.tree.map(lambda leaf: leaf[jnp.asarray(rows) - len(rows)], params), microbatch)


def layer_by_layer(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    x = microbatch["x"]
    for k, row in enumerate(rows):
        x = layer(jax.tree.map(lambda leaf: leaf[row], params), x)  # noqa: B023
        x = mark(x) if k % 2 else x
    return squared_error(x, microbatch)


def in_two_scans(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    """Each takes a part of the rows."""

    def run(x: jax.Array, rows: np.ndarray) -> jax.Array:
        def two(x: jax.Array, params: Any) -> Any:
            return mark(lax.scan(lambda x, params: (layer(params, x), None), x, params)[0]), None

        return lax.scan(two, x, jax.tree.map(lambda leaf: leaf[rows].reshape(-1, 2, *leaf.shape[1:]), params))[0]

    return squared_error(run(run(microbatch["x"], rows[:2]), rows[2:]), microbatch)


def under_checkpoint(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    inside = jax.checkpoint(lambda params: by_stage(4)(jax.tree.map(lambda leaf: leaf[rows], params), microbatch))
    return inside(params)


def gathered_and_checkpointed(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    loss = jax.checkpoint(by_stage(4))
    return loss(jax.tree.map(lambda leaf: leaf[rows], params), microbatch)


def jitted_inside(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    return jax.jit(ordered(rows, by_stage(4)))(params, microbatch)


def scaled_between(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    return by_stage(4)(jax.tree.map(lambda leaf: 0.5 * jnp.tanh(leaf[rows]) + leaf[rows], params), microbatch)


FORMS = [
    indexed_by_stage,
    taken,
    counted_from_the_end,
    layer_by_layer,
    in_two_scans,
    under_checkpoint,
    gathered_and_checkpointed,
    jitted_inside,
    scaled_between,
]


@pytest.mark.parametrize("form", FORMS)
def test_however_the_rows_are_read(form: Any) -> None:
    plan, rows = plan_and_rows("hanayo", 2, layers_per_stage=2)
    same_as = None if form is scaled_between else ordered(rows, by_stage(4))
    check_own_rows(plan, partial(form, rows), len(rows), same_as)


def over_the_rows(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    """A scan over the numbers of the rows."""

    def body(x: jax.Array, row: Any) -> Any:
        return mark(layer(jax.tree.map(lambda leaf: leaf[row], params), x)), None

    return squared_error(lax.scan(body, microbatch["x"], jnp.asarray(rows))[0], microbatch)


def in_fori_loop(rows: np.ndarray, params: Any, microbatch: Any) -> Any:
    numbers = jnp.asarray(rows)

    def body(i: Any, x: jax.Array) -> jax.Array:
        return mark(layer(jax.tree.map(lambda leaf: leaf[numbers[i]], params), x))

    return squared_error(lax.fori_loop(0, len(rows), body, microbatch["x"]), microbatch)


@pytest.mark.parametrize("form", [over_the_rows, in_fori_loop])
def test_a_loop_that_looks_up_each_row(form: Any) -> None:
    plan, rows = plan_and_rows("zb-v", 2)
    check_own_rows(plan, partial(form, rows), len(rows), ordered(rows))


@pytest.mark.parametrize("spec", [P("mpmd"), P("mpmd", "data"), P(None, "data")])
def test_rows_that_are_sharded_on_each_mesh(spec: P) -> None:
    plan, rows = plan_and_rows("interleaved-1f1b", 2)
    mesh, step = make_mesh(2, data=2), partial(adamw_step, schedule=plan, loss=ordered(rows))
    args = (adamw_state(4), batch(MICROBATCHES))
    options: dict[str, Any] = {"in_shardings": ((spec, P()), P(None, "data"))}
    program = lowered(step, args, mesh, **options).program()
    assert set(carried(program)) == {"activation", "gradient", "scalar"}
    check(step, args, mesh, steps=2, feed=feed_state, tolerance=1e-4, **options)


def test_explicit_axes() -> None:
    plan, rows = plan_and_rows("interleaved-1f1b", 2)
    mesh = make_mesh(2, data=2, explicit=True)
    step = partial(gradient_step, schedule=plan, loss=ordered(rows))
    args = (stacked(), batch(MICROBATCHES))
    options: dict[str, Any] = {"in_shardings": (P(), P(None, "data"))}

    def reference(params: Any, batch: Any) -> Any:
        with jax.set_mesh(mesh.lowering_mesh()):
            return jax.jit(step)(jax.device_put(params, P()), jax.device_put(batch, P(None, "data")))

    program = lowered(step, args, mesh, **options).program()
    assert set(carried(program)) == {"activation", "gradient"}
    check(step, args, mesh, reference=reference, **options)


def test_cast_to_bfloat16() -> None:
    """Before the rows are taken, and after; biases stay as they are."""
    plan, rows = plan_and_rows("interleaved-1f1b", 2)

    def cast_then_order(params: Any, microbatch: Any) -> Any:
        low = {"w": params["w"].astype(jnp.bfloat16)[rows], "b": params["b"][rows]}
        return in_model_order(low, microbatch)

    def order_then_cast(params: Any, microbatch: Any) -> Any:
        params = jax.tree.map(lambda w: w[rows], params)
        return in_model_order({"w": params["w"].astype(jnp.bfloat16), "b": params["b"]}, microbatch)

    for loss in (cast_then_order, order_then_cast):
        check_own_rows(plan, loss, len(rows), cast_then_order)


def test_rows_are_put_in_order_outside_of_the_loop() -> None:
    """The gradients come in the order of the model, and go back into that of the meshes."""
    plan, rows = plan_and_rows("hanayo", 2, layers_per_stage=2)

    def step(state: Any, batch: Any) -> Any:
        optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))
        stored, moments = state
        model = jax.tree.map(lambda w: w[rows], stored)
        losses, grads = jaxpp.treduce(partial(jax.value_and_grad(by_stage(4)), model), batch, schedule=plan)
        grads = jax.tree.map(lambda g: g[np.argsort(rows)], grads)
        updates, moments = optimizer.update(grads, moments, stored)
        return (optax.apply_updates(stored, updates), moments), losses

    args = (adamw_state(8), batch(MICROBATCHES))
    found = carried(lowered(step, args, make_mesh(2)).program())
    assert set(found) == {"activation", "gradient", "scalar"}
    check(step, args, make_mesh(2), steps=2, feed=feed_state, tolerance=1e-4)


def test_rows_are_put_in_order_inside_of_a_conditional() -> None:
    """The branches are known before rows are followed through the gathers in them."""
    plan, rows = plan_and_rows("interleaved-1f1b", 2)

    def step(state: Any, batch: Any) -> Any:
        stored, sign = state
        scales = (lambda w: w[rows], lambda w: 0.5 * w[rows])
        model = lax.cond(sign > 0, *(partial(jax.tree.map, scale, stored) for scale in scales))
        losses, grads = jaxpp.treduce(partial(jax.value_and_grad(in_model_order), model), batch, schedule=plan)
        return (jax.tree.map(lambda w, g: w - 0.1 * g[np.argsort(rows)], stored, grads), -sign), losses

    args = ((stacked(), jnp.int32(1)), batch(MICROBATCHES))
    found = carried(lowered(step, args, make_mesh(2)).program())
    assert set(found) == {"activation", "gradient"}
    check(step, args, make_mesh(2), steps=2, feed=feed_state)


@pytest.mark.parametrize("plan", ["interleaved-1f1b", "sharded", "chimera"])
def test_the_same_numbers_under_every_kind_of_plan(plan: str) -> None:
    schedule, _ = schedule_and_mesh(plan)
    rows = rows_of_layers(schedule, 4)
    check_step(partial(gradient_step, loss=ordered(rows)), (stacked(), batch(4)), plan, steps=2, feed=feed_state)


@pytest.mark.parametrize("rows", [[3, 1, 0, 2], [0, 0, 1, 1], [0, 1, 2, 1]])
def test_any_rows(rows: list[int]) -> None:
    """Other orders cost transfers, and layers may share a row, or leave one out: the numbers are the same."""
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(4), loss=ordered(np.array(rows)))
    check(step, (stacked(), batch(4)), make_mesh(4), steps=2, feed=feed_state)


def test_gathered_rows_that_something_else_uses() -> None:
    """A penalty on all layers in their order: the gather stays."""
    plan, rows = plan_and_rows("interleaved-1f1b", 2)

    def loss(params: Any, microbatch: Any) -> Any:
        params = jax.tree.map(lambda w: w[rows], params)
        smooth = sum(((leaf[1:] - leaf[:-1]) ** 2).sum() for leaf in jax.tree.leaves(params))
        return in_model_order(params, microbatch) + 1e-2 * smooth

    check(
        partial(gradient_step, schedule=plan, loss=loss), (stacked(), batch(4)), make_mesh(2), steps=2, feed=feed_state
    )


def test_there_and_back() -> None:
    """What the docs say: stored in the order of the meshes, the model's layers are `stored[rows]`."""
    _, rows = plan_and_rows("zb-v", 2)
    model = stacked(4)
    stored = jax.tree.map(lambda w: w[np.argsort(rows)], model)
    assert jax.tree.all(jax.tree.map(lambda w, m: (w[rows] == m).all(), stored, model))
    found = in_model_order(model, {"x": np.ones((3, 8)), "y": np.zeros((3, 8))})
    assert ordered(rows)(stored, {"x": np.ones((3, 8)), "y": np.zeros((3, 8))}) == found


def test_the_program_says_what_the_order_of_the_model_costs() -> None:
    """Of four layers the second and the third are in blocks of the other mesh: 8 x 8 and 8 numbers each."""
    plan, rows = plan_and_rows("interleaved-1f1b", 2)
    args = (adamw_state(4), batch(MICROBATCHES))

    def of(loss: Any) -> Any:
        return lowered(partial(adamw_step, schedule=plan, loss=loss), args, make_mesh(2), donate_argnums=0)

    cost = 2 * (8 * 8 + 8) * 4
    found = of(in_model_order)
    assert found.program().rows_sent_bytes == cost
    assert f"\nOf what is sent: {cost} B of stacked layers" in found.compile().summary()
    assert of(ordered(rows)).program().rows_sent_bytes == 0


def padded(rows: np.ndarray, count: int, params: Any) -> Any:
    """Layers in the order of the model, in stacks of so many rows; the other rows are zeros."""
    return jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype).at[rows].set(leaf), params)


@pytest.mark.parametrize(
    ("schedule", "cuts"),
    [
        (jaxpp.Std1F1B(2), [3, 1]),
        (jaxpp.ZeroBubble(3), [1, 3, 2]),
        (jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2), [1, 2, 1, 1]),
    ],
)
def test_meshes_with_different_numbers_of_layers(schedule: Any, cuts: list[int]) -> None:
    """Padding is not read, not sent, and its gradient is zero."""
    rows, count = rows_of_layers(schedule, sum(cuts), cuts), stored_rows(schedule, cuts)
    meshes = 1 + max(map(schedule.get_mpmd_idx, range(len(cuts))))
    params = padded(rows, count, stacked(sum(cuts)))
    args = ((params, (optax.EmptyState(), optax.adamw(1e-2).init(params))), batch(MICROBATCHES))
    step = partial(adamw_step, schedule=schedule, loss=ordered(rows))
    lowered_step = lowered(step, args, make_mesh(meshes), cuts=cuts, donate_argnums=0)
    program = lowered_step.program()
    assert program.rows_sent_bytes == 0
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) // count
    assert program.rows_padded_bytes == 3 * size * (count - sum(cuts))  # the parameters and their two moments
    assert set(carried(program)) <= {"activation", "gradient", "scalar"}
    compiled = lowered_step.compile()
    assert "are padding of stacked layers" in compiled.summary()
    plain = plain_of(step)
    state, _ = check_compiled(compiled, plain, args, steps=3, feed=feed_state, tolerance=1e-4)
    for leaf in jax.tree.leaves(state):
        if leaf.ndim:
            assert leaf.sharding.spec == P("mpmd")
            assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {count // meshes}
            np.testing.assert_array_equal(np.delete(np.asarray(leaf), rows, axis=0), 0)


def test_stacks_of_one_shape_that_are_padded_differently() -> None:
    """Both have three rows for each mesh; of `more` the second mesh reads all, of `some` one."""
    params = {name: jnp.stack([jnp.eye(8)] * 6) for name in ("some", "more")}

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for row in range(3):
            x = jnp.tanh(x @ params["some"][row]) @ params["more"][row]
        x = jnp.tanh(mark(x) @ params["some"][3])
        for row in range(3, 6):
            x = x @ params["more"][row]
        return squared_error(mark(x), microbatch)

    args = ((params, (optax.EmptyState(), optax.adamw(1e-2).init(params))), batch(MICROBATCHES))
    step = partial(adamw_step, schedule=jaxpp.Std1F1B(2), loss=loss)
    program = jaxpp.mpmd_jit_with_loop(step, make_mesh(2), donate_argnums=0).lower(*args).program()
    assert program.rows_padded_bytes == 3 * 2 * 8 * 8 * 4  # two rows of `some`, the parameter and its two moments


def test_the_numbers_with_padding_are_those_without() -> None:
    schedule, cuts = jaxpp.Std1F1B(2), [3, 1]
    rows, count = rows_of_layers(schedule, 4, cuts), stored_rows(schedule, cuts)
    step = partial(gradient_step, schedule=schedule)
    args = (padded(rows, count, stacked(4)), batch(MICROBATCHES))
    params, losses, gradients = check(partial(step, loss=ordered(rows)), args, make_mesh(2), cuts=cuts)
    model = jax.jit(partial(gradient_step, schedule=None, loss=in_model_order))(stacked(4), batch(MICROBATCHES))
    np.testing.assert_array_equal(losses, model[1])
    for found, expected in ((params, model[0]), (gradients, model[2])):
        jax.tree.map(lambda leaf, plain: np.testing.assert_allclose(leaf[rows], plain, atol=1e-6), found, expected)
