"""Names of NVIDIA's JaxPP 0.9: they compute what plain `jax.jit` does, and refuse what doesn't fit."""

# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp.experimental import mpmd

SCHEDULE = jaxpp.Std1F1B(3)


def raises(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def test_every_name_of_the_documentation_is_there() -> None:
    text = (Path(__file__).parents[3] / "docs" / "jaxpp-compatibility.md").read_text(encoding="utf-8")
    names = {
        (mpmd if section.startswith("Explicit tasks") else jaxpp, name)
        for section in text.split("\n## ")
        for row in re.findall(r"^\| (`[^|]*)\|", section, re.MULTILINE)
        for name in re.findall("`([A-Za-z0-9_]+)`", row)
    }
    assert len(names) > 30
    for module, name in names:
        assert getattr(module, name).__doc__, name


def place(mesh: jaxpp.MpmdMesh, k: int, value: Any, *spec: Any) -> jax.Array:
    return jax.device_put(jnp.asarray(value), NamedSharding(mesh.unstack[k], P(*spec)))


# --- a step that uses them


def full_step(params: Any, batch: Any) -> Any:
    """Gradients clipped by their global norm, which is summed over the meshes; a stack of the norms."""
    losses, grads = jaxpp.treduce(
        partial(jax.value_and_grad(loss), params), batch, schedule=SCHEDULE, operation=(jaxpp.Concat, jaxpp.Add)
    )
    squares = [jnp.sum(g * g) for g in grads]
    norm = jnp.sqrt(jaxpp.cross_mpmd_all_reduce(*squares))
    norms = jaxpp.cross_mpmd_stack(squares)
    scale = [jaxpp.place_with(jnp.minimum(1.0, 0.1 / norm), g) for g in grads]
    rows = jaxpp.cross_mpmd_stack([g[0] for g in grads], axis=-1)
    return [w - g * s for w, g, s in zip(params, grads, scale, strict=True)], losses, norm, norms, rows


def test_sums_and_stacks_stand_at_the_users_lines() -> None:
    step = jaxpp.mpmd_jit_with_loop(full_step, mpmd_mesh=make_mesh(3))
    text = step.lower(weights(3), batch(2)).as_text(debug_info=True)
    assert Path(__file__).name in text
    assert "cross.py" not in text


@pytest.mark.parametrize("data", [1, 2])
def test_sums_and_stacks_over_meshes_in_a_step(data: int) -> None:
    step = jaxpp.mpmd_jit_with_loop(full_step, mpmd_mesh=make_mesh(3, data=data))
    args = (weights(3), batch(4))
    found = step(*args)
    expected = jax.jit(full_step)(*args)
    assert_same(found, expected)
    assert_same(step(found[0], args[1]), jax.jit(full_step)(expected[0], args[1]))


def test_cross_functions_are_the_plain_ones_under_jit_and_grad() -> None:
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))
    for wrap in (jax.jit, lambda fun: fun):
        assert_same(wrap(jaxpp.cross_mpmd_all_reduce)(x, y, x), x + y + x)
        assert_same(wrap(lambda *a: jaxpp.cross_mpmd_stack(a, 1))(x, y), jnp.stack([x, y], 1))
        assert_same(wrap(jaxpp.place_with)(x, y), x)

    def squares(x: Any) -> Any:
        both = jaxpp.cross_mpmd_stack([x, jaxpp.place_with(2 * x, y)], -1)
        return jnp.sum(jaxpp.cross_mpmd_all_reduce(both, both) ** 2)

    assert_same(jax.grad(squares)(x), 40 * x)
    assert_same(jax.vmap(lambda x: jaxpp.cross_mpmd_all_reduce(x, x))(x), 2 * x)


def test_cross_functions_of_arrays_on_different_meshes() -> None:
    mesh = make_mesh(3, data=2)
    arrays = [place(mesh, k, jnp.arange(4.0) + k, "data") for k in range(3)]
    total = jaxpp.cross_mpmd_all_reduce(*arrays)
    assert_same(total, 3 * jnp.arange(4.0) + 3)
    stack = jaxpp.cross_mpmd_stack(arrays, axis=1)
    assert_same(stack, jnp.stack([jnp.arange(4.0) + k for k in range(3)], 1))
    moved = jaxpp.place_with(arrays[0], arrays[2])
    assert total.sharding.device_set == stack.sharding.device_set == set(mesh.unstack[0].devices.flat)
    assert moved.sharding == arrays[2].sharding
    single = jaxpp.place_with(arrays[1], jnp.ones(3))
    assert single.devices() == jnp.ones(3).devices()
    assert_same(single, jnp.asarray(np.asarray(arrays[1])))


def test_bad_input_of_the_cross_functions() -> None:
    with raises(ValueError, "cross_mpmd_all_reduce: no arrays; expected at least one"):
        jaxpp.cross_mpmd_all_reduce()
    with raises(TypeError, "cross_mpmd_all_reduce: array 1 is int32, array 0 is float32; expected one dtype"):
        jaxpp.cross_mpmd_all_reduce(jnp.ones(2), jnp.ones(2, int))
    with raises(ValueError, "cross_mpmd_all_reduce: array 1 has shape (3,), array 0 has (2,)"):
        jaxpp.cross_mpmd_all_reduce(jnp.ones(2), jnp.ones(3))
    with raises(TypeError, "cross_mpmd_stack: array 0 is of type str, not an array"):
        jaxpp.cross_mpmd_stack(["a"])
    with raises(ValueError, "cross_mpmd_stack: axis 2 of a result of 2 dimensions"):
        jaxpp.cross_mpmd_stack([jnp.ones(2)], axis=2)
    with raises(TypeError, "place_with: like is of type NoneType, not an array"):
        jaxpp.place_with(jnp.ones(2), None)


# --- meshes and shardings


def test_meshes_of_arrays() -> None:
    mesh = make_mesh(4, data=2)
    assert [mesh.mpmd_idx_for_mesh[each] for each in mesh.unstack] == [0, 1, 2, 3]
    assert mesh.mpmd_indices_for_mesh(mesh.jax_mesh) == (0, 1, 2, 3)
    assert mesh.mpmd_indices_for_mesh(mesh.mpmd_submesh([3, 1]).jax_mesh) == (1, 3)
    half = jax.sharding.Mesh(mesh.unstack[1].devices[:, :1], ("mpmd", "data", "model"))
    assert mesh.mpmd_indices_for_mesh(half) is None
    with mesh as entered:
        assert entered is mesh
    with raises(ValueError, "my_mpmd_axis_index: this process has devices of 4 mpmd groups, expected 1"):
        _ = mesh.my_mpmd_axis_index
    alone = mesh.mpmd_submesh([2])
    assert (alone.my_mpmd_axis_index, alone.my_mpmd_group_mesh) == (0, mesh.unstack[2])


def test_mpmd_sharding() -> None:
    mesh = make_mesh(3, data=2)
    sharding = jaxpp.MpmdSharding(mesh, mesh_ids={2, 0}, spec=P("mpmd", ("data", "mpmd")))
    assert sharding.mesh_ids == {0, 2}
    assert sharding.spec == P(None, ("data",))
    assert sharding.sharding == NamedSharding(mesh.mpmd_submesh([0, 2]).jax_mesh, P(None, "data"))
    assert hash(sharding) == hash(jaxpp.MpmdSharding(mesh, frozenset({0, 2}), P(None, ("data",))))
    with raises(ValueError, "MpmdSharding: mesh_ids [3] of a mesh with 3 mpmd groups"):
        jaxpp.MpmdSharding(mesh, {3}, P())
    with raises(
        ValueError,
        "MpmdSharding: PartitionSpec('x',) names the axis 'x'; the mesh has ('mpmd', 'data', 'model')".replace(
            "PartitionSpec('x',)", str(P("x"))
        ),
    ):
        jaxpp.MpmdSharding(mesh, {0}, P("x"))
    wrong: Any = "data"
    with raises(TypeError, "MpmdSharding: expected a PartitionSpec, found str"):
        jaxpp.MpmdSharding(mesh, {0}, wrong)


# --- MpmdArray


def test_an_array_on_one_mesh() -> None:
    mesh = make_mesh(3, data=2)
    plain = place(mesh, 1, np.arange(4.0, dtype=np.float32), "data")
    array = jaxpp.MpmdArray([plain], jaxpp.MpmdSharding(mesh, {1}, P("data")))
    assert (array.shape, array.dtype, array.ndim, array.size, array.spec) == ((4,), jnp.float32, 1, 4, P("data"))
    assert array.sharding == plain.sharding
    assert array.to_mpmd_local_array is array.first_mpmd_replica is array.array is plain
    assert array.is_partially_addressable
    assert not array.is_mpmd_replicated
    assert repr(array) == f"MpmdArray(shape=(4,), dtype=float32, mpmd_idxs=[1], spec={P('data')})"
    assert_same(jnp.asarray(array), plain)
    assert_same(jnp.zeros_like(array), jnp.zeros(4))
    np.testing.assert_array_equal(np.asarray(array), np.arange(4.0))
    array.block_until_ready().delete()
    array.delete()
    assert array.is_deleted()


def test_an_array_on_two_meshes() -> None:
    mesh = make_mesh(3, data=2)
    where = jaxpp.MpmdSharding(mesh, {0, 2}, P("data"))
    copies = [place(mesh, k, jnp.arange(4.0), "data") for k in (2, 0)]
    array = jaxpp.MpmdArray(copies, where)
    assert array.is_mpmd_replicated
    local = array.to_mpmd_local_array
    assert isinstance(local, list)
    assert [each is copy for each, copy in zip(local, copies[::-1], strict=True)] == [True, True]
    assert array.array.sharding == where.sharding
    assert_same(array.array, jnp.arange(4.0))
    partly = jaxpp.MpmdArray(copies[:1], where)
    assert partly.first_mpmd_replica is None
    with raises(ValueError, "MpmdArray: the arrays on the meshes [0] are not there"):
        _ = partly.array
    nowhere = jaxpp.MpmdArray([], where, shape=(4,), dtype=jnp.float32)
    assert nowhere.to_mpmd_local_array is None
    assert not nowhere.is_partially_addressable
    with raises(ValueError, "MpmdArray: this process holds no array of it"):
        np.asarray(nowhere)


def test_numbers_of_scalars() -> None:
    mesh = make_mesh(2)
    array = jaxpp.MpmdArray([place(mesh, 1, 3.25)], jaxpp.MpmdSharding(mesh, {1}, P()))
    assert (int(array), float(array), bool(array), f"{array:.1f}") == (3, 3.25, True, "3.2")
    assert f"{array}" == repr(array)


def test_bad_input_of_mpmd_array() -> None:
    mesh = make_mesh(3, data=2)
    where = jaxpp.MpmdSharding(mesh, {0, 2}, P("data"))
    good = place(mesh, 0, jnp.zeros(4), "data")
    with raises(ValueError, "MpmdArray: no arrays; give shape and dtype"):
        jaxpp.MpmdArray([], where)
    with raises(ValueError, "MpmdArray: array 0 is on mesh 1; expected one of [0, 2]"):
        jaxpp.MpmdArray([place(mesh, 1, jnp.zeros(4), "data")], where)
    with raises(ValueError, "MpmdArray: array 0 is on no single mesh of the MpmdMesh; expected one of [0, 2]"):
        jaxpp.MpmdArray([jnp.zeros(4)], where)
    with raises(ValueError, "MpmdArray: two arrays on mesh 0"):
        jaxpp.MpmdArray([good, good], where)
    with raises(ValueError, "MpmdArray: expected float32[4], found float32[2]"):
        jaxpp.MpmdArray([good, place(mesh, 2, jnp.zeros(2), "data")], where)
    wrong: Any = np.zeros(4)
    with raises(TypeError, "MpmdArray: array 0 is of type ndarray, not a jax.Array"):
        jaxpp.MpmdArray([wrong], where)
    with pytest.raises(ValueError, match=r"MpmdArray: array 0 is sharded as .*; expected "):
        jaxpp.MpmdArray([place(mesh, 0, jnp.zeros(4))], where)


# --- moving


def test_resharding_there_and_back() -> None:
    mesh = make_mesh(3, data=2)
    arrays = {"w": jnp.arange(8.0).reshape(4, 2), "b": np.ones(4, np.float32), "key": jax.random.key(0), "unused": 2.0}
    ids = {"w": {1}, "b": {0, 2}, "key": {2}, "unused": set[int]()}
    spec = {"w": P("data"), "b": P("data"), "key": P(), "unused": P()}
    shardings = {name: jaxpp.MpmdSharding(mesh, ids[name], spec[name]) for name in arrays}
    placed = jaxpp.spmd_to_mpmd_reshard(mesh, arrays, shardings, threshold=0)
    assert {name: mesh.mpmd_indices_for_mesh(each.sharding.mesh) for name, each in placed.items()} == {
        "w": (1,),
        "b": (0, 2),
        "key": (2,),
        "unused": (0,),
    }
    assert placed["w"].sharding.spec == P("data")
    whole = jax.tree.map(lambda _: NamedSharding(mesh.jax_mesh, P()), arrays)
    viewed = {**placed, "w": jaxpp.MpmdArray([placed["w"]], shardings["w"])}
    back = jaxpp.mpmd_to_spmd_reshard(mesh, viewed, whole, threshold=None)
    assert_same(back, jax.device_put(arrays, jax.devices()[0]))
    assert_same(arrays["w"], back["w"])  # what went in is still there


def test_bad_input_of_resharding() -> None:
    mesh = make_mesh(3, data=2)
    where = jaxpp.MpmdSharding(mesh, {1}, P("data"))
    reshard: Callable[..., Any] = jaxpp.spmd_to_mpmd_reshard
    with raises(TypeError, "spmd_to_mpmd_reshard: expected a jaxpp.MpmdMesh, found Mesh"):
        reshard(mesh.jax_mesh, jnp.ones(4), where)
    with raises(TypeError, "spmd_to_mpmd_reshard: mpmd_shardings['w'] is of type str, not an MpmdSharding"):
        reshard(mesh, {"w": jnp.ones(4)}, {"w": "data"})
    with raises(
        ValueError,
        "spmd_to_mpmd_reshard: mpmd_shardings have the structure PyTreeDef(*), the arrays PyTreeDef({'w': *})",
    ):
        reshard(mesh, {"w": jnp.ones(4)}, where)
    with raises(ValueError, "spmd_to_mpmd_reshard: mpmd_shardings is for another MpmdMesh"):
        reshard(make_mesh(2), jnp.ones(4), where)
    with pytest.raises(ValueError, match="should evenly divide the shape"):
        reshard(mesh, jnp.ones(3), where)
    with raises(TypeError, "mpmd_to_spmd_reshard: expected a jaxpp.MpmdMesh, found NoneType"):
        back: Callable[..., Any] = jaxpp.mpmd_to_spmd_reshard
        back(None, jnp.ones(4), where.sharding)


# --- steps


def test_a_compiled_step_says_where_it_wants_its_arguments() -> None:
    """As a script does: compile, place, wrap, run, feed back."""
    mesh = make_mesh(3, data=2)

    def step(params: Any, batch: Any, unused: Any) -> Any:
        return sgd_step(params, batch, schedule=SCHEDULE)

    params, data = weights(3), batch(4)
    compiled = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh, in_specs=(P(), P(None, "data"), None)).compile(
        params, data, 1.0
    )
    (of_params, of_data, of_unused), kwargs = compiled.in_shardings
    assert kwargs == {}
    assert [each.mesh_ids for each in of_params] == [{0}, {1}, {2}]
    assert {name: each.mesh_ids for name, each in of_data.items()} == {"x": {0}, "y": {2}}
    assert of_data["x"].spec == P(None, "data")
    assert of_unused.mesh_ids == set()
    assert [each.mesh_ids for each in compiled.out_shardings[0]] == [{0}, {1}, {2}]
    placed = jaxpp.spmd_to_mpmd_reshard(mesh, (params, data), (of_params, of_data))
    views = [jaxpp.MpmdArray([each], where) for each, where in zip(placed[0], of_params, strict=True)]
    expected = jax.jit(step)(params, data, 1.0)
    found = compiled(views, placed[1], 1.0)
    assert_same(found, expected)
    assert_same(compiled(found[0], data, 1.0), jax.jit(step)(expected[0], data, 1.0))


def test_steps_take_views_and_their_shardings() -> None:
    mesh = make_mesh(3)
    where = [jaxpp.MpmdSharding(mesh, {k}, P()) for k in range(3)]
    params, data = weights(3), batch(4)
    views = [
        jaxpp.MpmdArray([each], at)
        for each, at in zip(jaxpp.spmd_to_mpmd_reshard(mesh, params, where), where, strict=True)
    ]
    step = jaxpp.mpmd_jit_with_loop(
        partial(sgd_step, schedule=SCHEDULE), mesh, in_specs=(where, P()), out_specs=(where, P())
    )
    assert_same(step(views, data), jax.jit(partial(sgd_step, schedule=SCHEDULE))(params, data))


def test_results_answer_as_mpmd_arrays_do() -> None:
    """The results of a step are plain arrays; scripts read them so."""
    result: Any = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=make_mesh(3))(
        weights(3), batch(4)
    )[1]
    assert isinstance(result, jax.Array)
    assert [getattr(result, name) is result for name in ("to_mpmd_local_array", "first_mpmd_replica")] == [True, True]
    assert getattr(result, "is_partially_addressable") is True  # noqa: B009  # JAX's stubs don't know it


def test_names_of_stages_may_be_positional() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for stage, w in enumerate(params):
            mark = jaxpp.pipeline_enter_stage if stage % 2 else jaxpp.mark_stage_end
            x = mark(jnp.tanh(x @ w), f"stage_{stage}" if stage else None)
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE, loss=of_one), mpmd_mesh=make_mesh(3))
    assert 'name = "stage_1"' in step.lower(weights(3), batch(2)).as_text()
    wrong: Any = 3
    message = r".*test_jaxpp_names\.py:\d+: mark_stage_end: the name of a stage is a string, found int$"
    with pytest.raises(TypeError, match=message):
        jaxpp.mark_stage_end(jnp.ones(2), wrong)


def test_task_times() -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=make_mesh(3))
    args = (weights(3), batch(4))
    with jaxpp.collect_task_times_ms() as times:
        found = step(*args)
        with jaxpp.collect_task_times_ms(enabled=False) as nothing:
            step(*args)
    assert nothing is None
    assert times is not None
    tasks = {f"{kind} {stage}" for kind in ("forward", "backward") for stage in range(3)}
    assert tasks <= times.keys()
    assert all(len(times[task]) == 4 for task in tasks)
    assert times.keys() - tasks <= {f"{kind} on mesh {mesh}" for kind in ("before", "after") for mesh in range(3)}
    assert all(time >= 0 for each in times.values() for time in each)
    before = {name: list(each) for name, each in times.items()}
    assert_same(step(*args), found)
    assert dict(times) == before


@pytest.mark.parametrize(
    "schedule",
    [
        jaxpp.Std1F1B(4),
        jaxpp.Eager1F1B(4),
        jaxpp.GPipe(4),
        jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2),
        jaxpp.InterleavedGPipe(num_stages=4, mpmd_dim=2),
        jaxpp.Interleaved1F1B(4, 2, True),
        jaxpp.KimiK2(4, 2, False),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_schedules(schedule: Any) -> None:
    check_schedule(schedule, 8)


@pytest.mark.parametrize(
    "schedule",
    [jaxpp.Interleaved1F1B(4, 2), jaxpp.KimiK2(4, 2, fuse_steady_state=True), jaxpp.InterleavedZeroBubble(4, 2)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_a_number_of_microbatches_that_the_meshes_do_not_divide(schedule: Any) -> None:
    check_schedule(schedule, 5)


def test_turns_of_a_forward_and_a_backward_are_one_program() -> None:
    step = partial(sgd_step, schedule=jaxpp.KimiK2(4, 2, fuse_steady_state=True))
    text = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(2)).lower(weights(4), batch(4)).program().as_text()
    assert text.count("jaxpp.stage = array<i64: ") == len(jaxpp.KimiK2(4, 2, True).build(4).fused) == 8


def check_schedule(schedule: Any, microbatches: int) -> None:
    step = partial(sgd_step, schedule=schedule)
    args = (weights(4), batch(microbatches))
    mesh = make_mesh(getattr(schedule, "mpmd_dim", 4))
    assert_same(jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh)(*args), jax.jit(step)(*args))
