"""MpmdMesh: one axis of a mesh counts the meshes."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxpp.lowering import MpmdMesh, MpmdSharding

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


def test_the_first_devices_in_their_order() -> None:
    assert MpmdMesh.make(mpmd=2, data=3) == MpmdMesh(Mesh(DEVICES[:6].reshape(2, 3), ("mpmd", "data")), "mpmd")


@pytest.mark.parametrize(
    ("sizes", "kind", "message"),
    [
        (
            {"mpmd": 100, "data": 2},
            ValueError,
            f"mpmd=100 x data=2 takes 200 devices, but JAX has {len(jax.devices())} (cpu); for virtual devices of the "
            "CPU, run the script with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=200",
        ),
        (
            {"mpmd": np.int8(64), "data": np.int8(4)},
            ValueError,
            f"mpmd=64 x data=4 takes 256 devices, but JAX has {len(jax.devices())} (cpu); for virtual devices of the "
            "CPU, run the script with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=256",
        ),
        ({"mpmd": 2, "data": 0}, ValueError, "mpmd=2 x data=0; each size must be at least 1"),
        ({"mpmd": 2.0}, TypeError, "mpmd must be a whole number, found 2.0"),
        ({"mpmd": True}, TypeError, "mpmd must be a whole number, found True"),
    ],
)
def test_a_mesh_that_cannot_be_made(sizes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=rf"^{re.escape(__file__)}:\d+: MpmdMesh.make: {re.escape(message)}$"):
        MpmdMesh.make(**sizes)


def test_several_processes_share_the_virtual_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(ValueError, match=r"takes 100 devices, .* JAX_NUM_CPU_DEVICES=34$"):
        MpmdMesh.make(mpmd=100)


def test_devices_whose_number_the_script_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that the script gives to JAX precedes that of the environment."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "200")
    with pytest.raises(ValueError, match="sets jax_num_cpu_devices to 8: set it to 200 for virtual devices"):
        MpmdMesh.make(mpmd=200)


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
    with pytest.raises(ValueError, match="MpmdMesh: the mesh has two axes 'mpmd': give each a name of its own"):
        MpmdMesh(Mesh(DEVICES.reshape(4, 2), ("mpmd", "mpmd")), "mpmd")


@pytest.mark.parametrize("indices", [[], [4], [-1]])
def test_unknown_index_is_an_error(indices: list[int]) -> None:
    mesh = MpmdMesh(Mesh(DEVICES.reshape(4, 2), ("mpmd", "data")), "mpmd")
    with pytest.raises(ValueError, match="of a mesh with 4 mpmd groups"):
        mesh.mpmd_submesh(indices)


def test_a_block_on_a_mesh_that_there_is_not() -> None:
    mesh = MpmdMesh(Mesh(DEVICES.reshape(4, 2), ("mpmd", "data")), "mpmd")
    with pytest.raises(ValueError, match=r"blocks \(0, 7\) of a mesh with 4 mpmd groups"):
        MpmdSharding(mesh, {0}, P("data"), blocks=(0, 7))


def test_meshes_of_one_size_are_one_mesh() -> None:
    rows = [Mesh(row, ("x",)) for row in DEVICES.reshape(4, 2)]
    mesh = MpmdMesh.of(rows)
    assert mesh == MpmdMesh(Mesh(DEVICES.reshape(4, 2), ("mpmd", "x")), "mpmd")
    assert not mesh.separate


def test_meshes_of_different_sizes() -> None:
    small, large = Mesh(DEVICES[:2].reshape(1, 2), ("mpmd", "x")), Mesh(DEVICES[2:6].reshape(1, 4), ("mpmd", "x"))
    mesh = MpmdMesh.of([small, large])
    assert (mesh.mpmd_dim, mesh.unstack, mesh.jax_mesh, mesh.lowering_mesh()) == (2, [small, large], large, large)
    assert mesh.device_coords[DEVICES[3]] == (1, 1)
    assert [mesh.device_mpmd_idx[device] for device in DEVICES[:4]] == [0, 0, 1, 1]
    assert mesh.mpmd_indices_for_mesh(large) == (1,)
    assert mesh.mpmd_submesh([1]) == MpmdMesh(large, "mpmd")
    assert mesh.mpmd_submesh([1, 0]).unstack == [large, small]
    assert dict(mesh.together([0, 1]).shape) == {"mpmd": 6, "x": 1}
    with pytest.raises(ValueError, match=r"devices_per_mesh: the meshes have \[2, 4\] devices"):
        _ = mesh.devices_per_mesh


def test_a_mesh_for_the_trace_has_every_axis_in_its_largest_size() -> None:
    wide, deep = Mesh(DEVICES[:3].reshape(3, 1), ("x", "y")), Mesh(DEVICES[3:5].reshape(1, 2), ("x", "y"))
    mesh = MpmdMesh.of([wide, deep])
    assert dict(mesh.jax_mesh.shape) == {"mpmd": 1, "x": 3, "y": 2}
    assert mesh.platforms == ("cpu",)


@pytest.mark.parametrize(
    ("meshes", "message"),
    [
        ([], "expected at least one mesh, found none"),
        (
            [Mesh(DEVICES[:2], ("x",)), Mesh(DEVICES[2:4], ("y",))],
            "the axes of mesh 1 are 'mpmd' (Auto), 'y' (Auto), those of mesh 0 'mpmd' (Auto), 'x' (Auto); "
            "give all meshes the same axes in the same order, of size 1 where there is nothing to shard",
        ),
        (
            [Mesh(DEVICES[:2], ("x",)), Mesh(DEVICES[1:4], ("x",))],
            "device 1 is in more than one mesh; give each stage devices of its own, "
            "or stages that share them the same mesh",
        ),
        (
            [Mesh(DEVICES[:2], ("mpmd",))],
            "the axis 'mpmd' of a mesh has size 2; expected 1 in each; "
            "if the mesh has the devices of all stages, write jaxpp.MpmdMesh(mesh, 'mpmd')",
        ),
    ],
)
def test_meshes_that_do_not_go_together(meshes: list[Mesh], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"MpmdMesh.of: {message}")):
        MpmdMesh.of(meshes)


def test_meshes_on_the_same_devices() -> None:
    first, second = Mesh(DEVICES[:2], ("x",)), Mesh(DEVICES[2:4], ("x",))
    mesh = MpmdMesh.of([first, second, first])
    assert (mesh.mpmd_dim, mesh.devices_per_mesh, mesh.is_uneven) == (3, 2, False)
    assert [each.devices.ravel().tolist() for each in mesh.unstack] == [[*DEVICES[:2]], [*DEVICES[2:4]], [*DEVICES[:2]]]
    assert mesh.device_mpmd_idx == dict(zip(DEVICES[:4], (0, 0, 1, 1), strict=True))
    assert mesh.mpmd_indices_for_mesh(first) == (0,)
    assert mesh.together([0, 2]) == mesh.unstack[0]
    assert mesh.together([2, 1]).devices.ravel().tolist() == [*DEVICES[:4]]
    assert repr(mesh) == "MpmdMesh(mpmd=3 of (x=2), cpu)"


def test_devices_of_a_backend_are_not_shared() -> None:
    class Backend:
        platform = "cpu"

        def compile(self) -> None: ...

    mesh = Mesh(DEVICES[:1], ("x",))
    with pytest.raises(ValueError, match=r"^MpmdMesh\.of: meshes of a Backend can't share devices: give each its own$"):
        MpmdMesh.of([mesh, mesh], backend=Backend())


def test_what_is_no_mesh() -> None:
    with pytest.raises(TypeError, match=r"MpmdMesh\.of: expected jax\.sharding\.Meshes, found a list"):
        MpmdMesh.of([DEVICES.tolist()])
