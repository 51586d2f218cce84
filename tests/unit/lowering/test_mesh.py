"""MpmdMesh: one axis of a mesh counts the meshes."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxpp.lowering import MpmdMesh

DEVICES = np.array(jax.devices()[:8])


@pytest.mark.parametrize("position", [0, 1, 2])
def test_unstack_at_any_position(position: int) -> None:
    names, shape = ["data", "model"], [2, 2]
    names.insert(position, "mpmd")
    shape.insert(position, 2)
    types = (AxisType.Explicit, AxisType.Auto, AxisType.Auto)
    mesh = MpmdMesh(Mesh(DEVICES.reshape(shape), tuple(names), axis_types=types), "mpmd")
    assert (mesh.mpmd_axis, mesh.mpmd_dim, mesh.devices_per_mesh) == (position, 2, 4)
    assert mesh.spmd_axis_names == ("data", "model")
    for k, submesh in enumerate(mesh.unstack):
        assert submesh.axis_names == tuple(names)
        assert submesh.axis_types == types
        assert dict(submesh.shape) == {"mpmd": 1, "data": 2, "model": 2}
        assert list(submesh.devices.flat) == list(mesh.jax_mesh.devices.take(k, position).flat)
        assert {mesh.device_mpmd_idx[device] for device in submesh.devices.flat} == {k}
    assert mesh.lowering_mesh() == mesh.unstack[0]


def test_submesh_keeps_the_order_of_the_indices() -> None:
    mesh = MpmdMesh(Mesh(DEVICES.reshape(4, 2), ("mpmd", "data")), "mpmd")
    submesh = mesh.mpmd_submesh([3, 1])
    assert submesh.mpmd_dim == 2
    assert submesh.unstack == [mesh.unstack[3], mesh.unstack[1]]
    assert mesh.device_coords[DEVICES[3]] == (1, 1)
    assert mesh == MpmdMesh(Mesh(DEVICES.reshape(4, 2), ("mpmd", "data")), "mpmd")
    assert hash(mesh) == hash(MpmdMesh(mesh.jax_mesh, "mpmd"))


def test_unknown_axis_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"MpmdMesh: the mesh has no axis 'stage'; its axes are 'mpmd' \(4\), 'x' \(2\)"
    ):
        MpmdMesh(Mesh(DEVICES.reshape(4, 2), ("mpmd", "x")), "stage")


@pytest.mark.parametrize("indices", [[], [4], [-1]])
def test_unknown_index_is_an_error(indices: list[int]) -> None:
    mesh = MpmdMesh(Mesh(DEVICES.reshape(4, 2), ("mpmd", "data")), "mpmd")
    with pytest.raises(ValueError, match="of a mesh with 4 mpmd groups"):
        mesh.mpmd_submesh(indices)
