"""One module over the whole mesh becomes one for a submesh, and computes there what it did on the whole."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from jaxpp.lowering import Add, Concat, MpmdMesh, lower, treduce
from jaxpp.lowering.narrow import Axes

X = np.arange(32, dtype=np.float32).reshape(8, 4)
ORDERS = [("mpmd", "data", "model"), ("data", "mpmd", "model"), ("data", "model", "mpmd")]


@pytest.fixture(params=ORDERS, ids="-".join)
def cube(request: pytest.FixtureRequest) -> MpmdMesh:
    """2 meshes of 2 x 2 devices."""
    return MpmdMesh(Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), request.param), "mpmd")


def collectives(mesh: Mesh, specs: P, **options: Any) -> Callable[[jax.Array], Any]:
    def body(x: jax.Array) -> Any:
        index = jax.lax.axis_index("data") * 10 + jax.lax.axis_index("model")
        along_model = jax.lax.ppermute(x, "model", [(0, 1), (1, 0)])
        gathered = jax.lax.all_gather(x, "data", tiled=True)
        scattered = jax.lax.psum_scatter(gathered, "data", tiled=True)
        swapped = jax.lax.all_to_all(x, "model", 0, 0, tiled=True)
        total = jax.lax.psum(x, ("data", "model"))
        return x + index, along_model, scattered, swapped, total + 0 * x, jax.lax.pmax(x, "data") + 0 * x

    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(specs,) * 6, check_vma=False, **options)


@pytest.mark.parametrize("names", [{}, {"axis_names": {"data", "model"}}], ids=["all axes manual", "some"])
def test_collectives_on_each_submesh(cube: MpmdMesh, run_module: Callable[..., Any], names: dict[str, Any]) -> None:
    specs = P("data", "model")
    f = collectives(cube.jax_mesh, specs, **names)
    expected = jax.jit(f)(X)
    lowered = lower(f, (X,), mpmd_mesh=cube, in_shardings=specs, out_shardings=P())
    for submesh in range(2):
        for got, wanted in zip(run_module(lowered, (X,), [specs], submesh), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_collectives_in_a_stage(
    mesh: MpmdMesh, marked: Any, run_module: Callable[..., Any], operations: Callable[..., list[Any]]
) -> None:
    params, batch = marked.params(), marked.batch()

    def loss(params: Any, mb: Any) -> jax.Array:
        def centred(x: jax.Array) -> jax.Array:
            return x - jax.lax.pmean(x, "data") * (1 + jax.lax.axis_index("data"))

        specs = P("data")
        x = jax.shard_map(centred, mesh=mesh.jax_mesh, in_specs=specs, out_specs=specs)(mb["x"])
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh.jax_mesh, specs))
        return marked.loss(params, {"x": x, "y": mb["y"]})

    def step(params: Any, batch: Any) -> Any:
        return treduce(lambda mb: jax.value_and_grad(loss)(params, mb), batch, operation=(Concat(), Add))

    lowered = lower(step, (params, batch), mpmd_mesh=mesh, in_shardings=(P(), P(None, "data")), out_shardings=P())
    specs = [P()] * 3 + [P(None, "data")] * 2
    expected = jax.tree.leaves(jax.jit(step)(params, batch))
    for got, wanted in zip(run_module(lowered, (params, batch), specs, 2), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    (symbol,) = operations(lowered.module, "sdy.mesh")
    assert ir.StringAttr(symbol.attributes["sym_name"]).value == "mesh"
    sizes = ", ".join(f'"{name}"={1 if name == "mpmd" else 2}' for name in mesh.jax_mesh.axis_names)
    assert sizes in str(symbol.attributes["mesh"])
    assert str(lowered.module.operation.attributes["mhlo.num_partitions"]) == "2 : i32"


def test_constraints_may_name_the_lowering_mesh(mesh: MpmdMesh, operations: Callable[..., list[Any]]) -> None:
    placed = NamedSharding(mesh.lowering_mesh(), P("data"))
    lowered = lower(
        lambda x: jax.lax.with_sharding_constraint(x + 1, placed), (X,), mpmd_mesh=mesh, in_shardings=P("data")
    )
    assert len(operations(lowered.module, "sdy.sharding_constraint")) == 1
    assert str(lowered.module.operation.attributes["mhlo.num_partitions"]) == "2 : i32"


def test_a_shard_map_may_be_over_the_lowering_mesh(mesh: MpmdMesh, run_module: Callable[..., Any]) -> None:
    centred = jax.shard_map(
        lambda x: x - jax.lax.pmean(x, "data"), mesh=mesh.lowering_mesh(), in_specs=P("data"), out_specs=P("data")
    )
    lowered = lower(centred, (X,), mpmd_mesh=mesh, in_shardings=P("data"), out_shardings=P())
    (got,) = run_module(lowered, (X,), [P("data")])
    np.testing.assert_allclose(got, centred(X), rtol=1e-6)


def test_of_two_errors_the_first_one_stands(mesh: MpmdMesh) -> None:
    """A function that fails over the whole mesh is traced over one submesh, whatever its error says."""
    sizes: list[int] = []

    def function(x: jax.Array) -> jax.Array:
        sizes.append(jax.sharding.get_abstract_mesh().size)
        raise ValueError(f"incompatible devices, {sizes}")

    with pytest.raises(ValueError, match=f"^incompatible devices, \\[{mesh.jax_mesh.size}\\]"):
        lower(function, (X,), mpmd_mesh=mesh)
    assert sizes == [mesh.jax_mesh.size, mesh.lowering_mesh().size]


def test_bare_partition_specs_name_the_mesh(mesh: MpmdMesh, operations: Callable[..., list[Any]]) -> None:
    lowered = lower(lambda x: jax.lax.with_sharding_constraint(x, P("data")), (X,), mpmd_mesh=mesh)
    (constraint,) = operations(lowered.module, "sdy.sharding_constraint")
    assert '<@mesh, [{"data"}, {}]>' in str(constraint.attributes["sharding"])


def test_explicit_axes(explicit_mesh: MpmdMesh, run_module: Callable[..., Any]) -> None:
    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        assert jax.typeof(x).sharding.spec == P("data", None)
        return jax.reshard(jnp.tanh(x @ w), P())

    w = X[:4]
    lowered = lower(f, (X, w), mpmd_mesh=explicit_mesh, in_shardings=(P("data"), P()))
    (got,) = run_module(lowered, (X, w), [P("data"), P()])
    np.testing.assert_allclose(got, np.tanh(X @ w), rtol=1e-6)


def test_one_device_per_mesh(marked: Any, run_module: Callable[..., Any]) -> None:
    mesh = MpmdMesh(Mesh(np.array(jax.devices()[:4]), ("mpmd",)), "mpmd")
    args = (marked.params(), {name: leaf[0] for name, leaf in marked.batch().items()})
    lowered = lower(jax.grad(marked.loss), args, mpmd_mesh=mesh)
    assert str(lowered.module.operation.attributes["mhlo.num_partitions"]) == "1 : i32"
    for got, wanted in zip(run_module(lowered, args, [P()] * 5, 3), jax.grad(marked.loss)(*args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def over_mpmd(mesh: MpmdMesh) -> Any:
    return jax.shard_map(lambda x: jax.lax.psum(x, "mpmd"), mesh=mesh.jax_mesh, in_specs=P(), out_specs=P())


def permuted(mesh: MpmdMesh) -> Any:
    shift = lambda x: jax.lax.ppermute(x, "mpmd", [(0, 1), (1, 2), (2, 0)])  # noqa: E731
    return jax.shard_map(shift, mesh=mesh.jax_mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)


def constrained(mesh: MpmdMesh) -> Any:
    return lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh.jax_mesh, P(None, "mpmd")))


def mapped(mesh: MpmdMesh) -> Any:
    return jax.shard_map(lambda x: x + 1, mesh=mesh.jax_mesh, in_specs=P(("data", "mpmd")), out_specs=P("data", "mpmd"))


ERRORS: dict[str, tuple[Callable[[MpmdMesh], Any], str]] = {
    "psum": (over_mpmd, "all_reduce runs over the mpmd axis 'mpmd'; the submeshes run different programs"),
    "ppermute": (permuted, "collective_permute runs over the mpmd axis 'mpmd'"),
    "constraint": (
        constrained,
        "a value is sharded over the mpmd axis 'mpmd' (#sdy.sharding<@mesh, [{}, {\"mpmd\"}]>)",
    ),
    "shard_map": (mapped, "a value is sharded over the mpmd axis 'mpmd'"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_mpmd_axis_is_not_for_sharding(mesh: MpmdMesh, name: str) -> None:
    make, text = ERRORS[name]
    with pytest.raises(ValueError, match=r"test_narrow\.py:\d+: ") as info:
        lower(make(mesh), (np.ones((6, 6), np.float32),), mpmd_mesh=mesh)
    assert text in str(info.value)
    assert len(str(info.value).splitlines()) == 1


def test_result_sharded_over_the_mpmd_axis(explicit_mesh: MpmdMesh) -> None:
    with pytest.raises(ValueError, match="is sharded over the mpmd axis 'mpmd'"):
        lower(lambda x: jax.reshard(x, P("mpmd")), (np.ones((6, 6)),), mpmd_mesh=explicit_mesh)


def test_device_numbers() -> None:
    axes = Axes(("a", "mpmd", "b"), (2, 3, 2), 1)
    ids = np.arange(12)
    assert axes.group(ids).tolist() == [0, 0, 1, 1, 2, 2] * 2
    assert axes.within(ids).tolist() == [0, 1] * 3 + [2, 3] * 3
    assert (axes.devices, axes.inner, axes.groups, axes.mpmd_name) == (4, 2, 3, "mpmd")
