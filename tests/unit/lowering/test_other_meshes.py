"""A mesh of the user's own over the same devices: its axes are axes of the mpmd mesh, several of them, or parts."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpp.ir.tensors import SubAxis
from jaxpp.lowering import MpmdMesh, lower
from jaxpp.lowering.other_meshes import parts_of

X = np.ones((8, 8), np.float32)


@pytest.mark.parametrize(
    ("ours", "sizes", "expected"),
    [
        ([("data", 4)], [("x", 4)], {"x": [SubAxis("data", 1, 4)]}),
        ([("data", 4)], [("a", 2), ("b", 2)], {"a": [SubAxis("data", 1, 2)], "b": [SubAxis("data", 2, 2)]}),
        ([("data", 2), ("model", 2)], [("x", 4)], {"x": [SubAxis("data", 1, 2), SubAxis("model", 1, 2)]}),
        (
            [("mpmd", 1), ("data", 6)],
            [("a", 2), ("b", 3)],
            {"a": [SubAxis("data", 1, 2)], "b": [SubAxis("data", 2, 3)]},
        ),
        (
            [("data", 4), ("model", 6)],
            [("a", 2), ("b", 6), ("c", 2)],
            {
                "a": [SubAxis("data", 1, 2)],
                "b": [SubAxis("data", 2, 2), SubAxis("model", 1, 3)],
                "c": [SubAxis("model", 3, 2)],
            },
        ),
        ([("data", 2), ("model", 3)], [("a", 3), ("b", 2)], {"a": None, "b": None}),
        ([("data", 4)], [("a", 2)], {"a": None}),
        ([("data", 4)], [("a", 4), ("one", 1)], {"one": []}),
    ],
)
def test_axes_in_parts_of_other_axes(ours: Any, sizes: Any, expected: dict[str, Sequence[SubAxis] | None]) -> None:
    assert {axis: parts_of(axis, sizes, ours) for axis in expected} == expected


def constrained(names: Sequence[str], shape: Sequence[int], spec: P, devices: slice = slice(4)) -> Callable[..., Any]:
    mesh = Mesh(np.array(jax.devices()[devices]).reshape(shape), tuple(names))
    return lambda x: jax.lax.with_sharding_constraint(x + 1, NamedSharding(mesh, spec))


def over(shape: Sequence[int], names: Sequence[str]) -> MpmdMesh:
    return MpmdMesh(Mesh(np.array(jax.devices()[:8]).reshape(shape), tuple(names)), "mpmd")


@pytest.mark.parametrize(
    ("names", "shape", "spec", "expected"),
    [
        ("x", [4], P("x"), '[{"data", "model"}, {}]'),
        (["model", "data"], [2, 2], P("data", "model"), '[{"model"}, {"data"}]'),
        (["data", "y"], [2, 2], P(None, ("y", "data")), '[{}, {"model", "data"}]'),
        ("x", [4], P(P.UNCONSTRAINED, "x"), '[{?}, {"data", "model"}]'),
    ],
)
def test_a_constraint_over_another_mesh(
    names: Any, shape: Any, spec: P, expected: str, operations: Callable[..., list[Any]]
) -> None:
    lowered = lower(constrained(names, shape, spec), (X,), mpmd_mesh=over((2, 2, 2), ("mpmd", "data", "model")))
    (constraint,) = operations(lowered.module, "sdy.sharding_constraint")
    assert f"<@mesh, {expected}" in str(constraint.attributes["sharding"])
    assert len(operations(lowered.module, "sdy.mesh")) == 1


def test_parts_of_one_axis_are_joined(operations: Callable[..., list[Any]]) -> None:
    def texts(spec: P) -> list[str]:
        lowered = lower(constrained("ab", [2, 2], spec), (X,), mpmd_mesh=over((2, 4), ("mpmd", "data")))
        return [str(op.attributes["sharding"]) for op in operations(lowered.module, "sdy.sharding_constraint")]

    assert texts(P("a", "b")) == ['#sdy.sharding<@mesh, [{"data":(1)2}, {"data":(2)2}]>']
    assert texts(P(("a", "b"))) == ['#sdy.sharding<@mesh, [{"data"}, {}]>']


def test_a_mesh_over_all_devices() -> None:
    function = constrained("ab", [2, 4], P("b"), slice(8))
    assert '<@mesh, [{"data"}, {}]>' in str(lower(function, (X,), mpmd_mesh=over((2, 4), ("mpmd", "data"))).module)
    with pytest.raises(ValueError, match=r"test_other_meshes\.py:\d+: a value is sharded over the mpmd axis 'mpmd'"):
        lower(constrained("a", [8], P("a"), slice(8)), (X,), mpmd_mesh=over((2, 4), ("mpmd", "data")))


def test_axes_that_are_no_parts_of_ours() -> None:
    mesh = MpmdMesh(Mesh(np.array(jax.devices()[:6]).reshape(1, 2, 3), ("mpmd", "data", "model")), "mpmd")
    with pytest.raises(ValueError, match=r"test_other_meshes\.py:\d+: ") as info:
        lower(constrained("ab", [3, 2], P("a"), slice(6)), (X[:6],), mpmd_mesh=mesh)
    assert str(info.value).partition(": ")[2] == (
        "a sharding names another mesh, 'a' (3), 'b' (2), whose axis 'a' is no part of ours; "
        "give it the axes of the mpmd mesh, 'mpmd' (1), 'data' (2), 'model' (3)"
    )


@pytest.mark.parametrize("devices", [slice(4, 8), slice(3, None, -1), slice(2)], ids=["others", "reversed", "fewer"])
def test_other_devices(devices: slice) -> None:
    function = constrained("x", [-1], P("x"), devices)
    with pytest.raises(ValueError, match=r"test_other_meshes\.py:\d+: ") as info:
        lower(function, (X,), mpmd_mesh=over((2, 4), ("mpmd", "data")))
    assert str(info.value).partition(": ")[2] == (
        "a sharding or shard_map names other devices than those of the mpmd mesh, fewer, or in another order; every "
        "stage is traced for the same mesh: name that, as mpmd_mesh.jax_mesh or mpmd_mesh.lowering_mesh(), or its axes "
        "alone, as PartitionSpec('data')"
    )


def test_a_callback_beside_it(operations: Callable[..., list[Any]]) -> None:
    """JAX gives it a mesh of one device, with a name of its own."""

    def function(x: jax.Array) -> Any:
        jax.debug.print("{}", x.sum())
        return constrained("x", [4], P("x"))(x)

    lowered = lower(function, (X,), mpmd_mesh=over((2, 4), ("mpmd", "data")))
    lowered.module.operation.verify()
    assert '<@mesh, [{"data"}, {}]>' in str(operations(lowered.module, "sdy.sharding_constraint")[-1])
