"""A JAX mesh with one axis, the mpmd axis, that counts groups of devices which run different programs."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxpp._absent import is_present
from jaxpp._compat import cpu_devices
from jaxpp.lowering.locations import check_whole, here


class Host(Protocol):
    """The part of a `jaxpp.backend.Backend` that lowering needs: the platform of the devices that run the programs."""

    @property
    def platform(self) -> str:
        """The platform of the devices, under JAX's names: "cpu", "cuda"..."""
        ...


@dataclass(frozen=True, repr=False)
class MpmdMesh:
    """`jax_mesh` seen as `mpmd_dim` meshes along its axis `mpmd_axis_name`.

    The mpmd axis may stand at any position. Every submesh keeps it, with size 1, so that a `PartitionSpec` over the
    other axes means the same on the whole mesh, on one submesh and on several. Axis types (Auto, Explicit) are kept.
    For submeshes that differ in size or share devices, see `MpmdMesh.of`.

    Args:
        jax_mesh: the mesh of all devices; for submeshes of different sizes, a mesh with each axis in its largest size.
        mpmd_axis_name: the axis along which the meshes lie.
        backend: compiles for its own devices and runs steps there, as a `jaxpp.ray.Cluster` does; the devices of
            `jax_mesh` stand for these devices. None: the devices are JAX's.
        separate: the submeshes, if they differ in size or share devices.

    Raises:
        ValueError: `jax_mesh` has no axis of that name, or two axes of one name.
        TypeError: `jax_mesh` is no Mesh, or `backend` no backend.
    """

    jax_mesh: Mesh
    mpmd_axis_name: str
    backend: Host | None = None
    separate: tuple[Mesh, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.jax_mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            raise TypeError(f"MpmdMesh: expected a jax.sharding.Mesh, found {type(self.jax_mesh).__name__}")
        twice = next((name for name, count in Counter(self.jax_mesh.axis_names).items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"MpmdMesh: the mesh has two axes {twice!r}: give each a name of its own")
        if self.mpmd_axis_name not in self.jax_mesh.axis_names:
            axes = ", ".join(f"{name!r} ({size})" for name, size in self.jax_mesh.shape.items())
            raise ValueError(f"MpmdMesh: the mesh has no axis {self.mpmd_axis_name!r}; its axes are {axes or 'none'}")
        for name in ("platform", "compile") if self.backend is not None else ():
            if not hasattr(self.backend, name):
                found = type(self.backend).__name__
                raise TypeError(f"MpmdMesh: backend is of type {found}, without `{name}`: see jaxpp.backend.Backend")

    def __repr__(self) -> str:
        axis, first = self.mpmd_axis_name, self.unstack[0].devices.flat[0]
        shapes = sorted({_sizes_of(mesh, axis) for mesh in self.unstack})
        if len(shapes) > 1:
            shapes = [f"[{', '.join(_sizes_of(mesh, axis) for mesh in self.unstack)}]"]
        platform = (
            first.platform if self.backend is None else f"{self.backend.platform} of a {type(self.backend).__name__}"
        )
        of = "" if shapes == ["()"] else f" of {shapes[0]}"
        return f"MpmdMesh({axis}={self.mpmd_dim}{of}, {platform})"

    @staticmethod
    def make(mpmd: int, **axes: int) -> "MpmdMesh":
        """Makes an MpmdMesh of the first devices, in the order of `jax.devices()`: `make(mpmd=4, data=2)` takes eight.

        Its axes are Auto. For Explicit ones, give the constructor a `jax.sharding.Mesh`.

        Args:
            mpmd: the number of meshes, along the axis "mpmd".
            axes: the sizes of the axes of each mesh by their names.

        Raises:
            ValueError: JAX has fewer devices, or a size is below 1.
            TypeError: a size is no whole number.
        """
        sizes = {"mpmd": mpmd, **axes}
        check_whole("MpmdMesh.make", **sizes)
        sizes = {name: int(size) for name, size in sizes.items()}  # narrow integers of numpy would overflow
        described = " x ".join(f"{name}={size}" for name, size in sizes.items())
        if min(sizes.values()) < 1:
            raise ValueError(f"{here()}MpmdMesh.make: {described}; each size must be at least 1")
        devices, count = jax.devices(), prod(sizes.values())
        if len(devices) < count:
            raise ValueError(
                f"{here()}MpmdMesh.make: {described} takes {count} devices, but JAX has {len(devices)} "
                f"({devices[0].platform}); {_more_devices(-(-count // jax.process_count()))}"
            )
        return MpmdMesh(Mesh(np.reshape(devices[:count], [*sizes.values()]), [*sizes]), "mpmd")

    @staticmethod
    def of(meshes: Sequence[Mesh], mpmd_axis_name: str = "mpmd", backend: Host | None = None) -> "MpmdMesh":
        """Makes an MpmdMesh of `meshes`, which may differ in size: an embedding may have two devices, a layer eight.

        All have the same axes in the same order. On each mesh, a `PartitionSpec` shards by the sizes that its axes have
        there. The mpmd axis is of size 1 in each mesh, or in none of them: then it is put first. `backend` is that of
        an MpmdMesh.

        A mesh may occur several times, as in `MpmdMesh.of([mesh] * 4)`: a pipeline on one GPU. Its devices run
        the tasks of all its stages, one after the other, and hold the memory of all of them. Limits and peaks still
        apply to the mesh of each stage.

        Raises:
            ValueError: there are no meshes, their axes differ, or two different meshes share a device. Or a mesh occurs
                several times, with a backend or with devices of several processes.
            TypeError: `meshes` are no Meshes.
        """
        if isinstance(meshes, Mesh):
            raise TypeError("MpmdMesh.of: expected a sequence of meshes, found a Mesh; MpmdMesh(mesh, axis) takes one")
        meshes = [_with_axis(mesh, mpmd_axis_name) for mesh in meshes]
        if not meshes:
            raise ValueError("MpmdMesh.of: expected at least one mesh, found none")
        first = meshes[0]
        for number, mesh in enumerate(meshes):
            if (mesh.axis_names, mesh.axis_types) != (first.axis_names, first.axis_types):
                raise ValueError(
                    f"MpmdMesh.of: the axes of mesh {number} are {_axes_of(mesh)}, those of mesh 0 {_axes_of(first)}; "
                    "give all meshes the same axes in the same order, of size 1 where there is nothing to shard"
                )
        distinct = [*dict.fromkeys(meshes)]
        devices = [device for mesh in distinct for device in mesh.devices.flat]
        if twice := [device for device in devices if devices.count(device) > 1]:
            raise ValueError(
                f"MpmdMesh.of: device {twice[0].id} is in more than one mesh; give each stage devices of its own, or "
                "stages that share them the same mesh"
            )
        if len(distinct) < len(meshes):
            _check_shared(meshes, backend)
        if len(distinct) < len(meshes) or len({mesh.devices.shape for mesh in meshes}) > 1:
            return MpmdMesh(_largest(meshes), mpmd_axis_name, backend, tuple(meshes))
        whole = np.concatenate([mesh.devices for mesh in meshes], first.axis_names.index(mpmd_axis_name))
        return MpmdMesh(Mesh(whole, first.axis_names, axis_types=first.axis_types), mpmd_axis_name, backend)

    @property
    def mpmd_axis(self) -> int:
        """The position of the mpmd axis among the axes."""
        return self.jax_mesh.axis_names.index(self.mpmd_axis_name)

    @property
    def mpmd_dim(self) -> int:
        """The number of meshes."""
        return len(self.separate) or self.jax_mesh.shape[self.mpmd_axis_name]

    @cached_property
    def unstack(self) -> list[Mesh]:
        """The meshes, one per mpmd index, each with the mpmd axis of size 1."""
        return list(self.separate) or [self.mpmd_submesh([k]).jax_mesh for k in range(self.mpmd_dim)]

    def mpmd_submesh(self, mpmd_indices: Sequence[int]) -> "MpmdMesh":
        """Returns the meshes of `mpmd_indices`, in that order, as one MpmdMesh.

        Raises:
            ValueError: there is no index, or one is not in the mesh.
        """
        wrong = [k for k in mpmd_indices if not 0 <= k < self.mpmd_dim]
        if wrong or not mpmd_indices:
            raise ValueError(f"mpmd_submesh: indices {list(mpmd_indices)} of a mesh with {self.mpmd_dim} mpmd groups")
        if self.separate:
            return MpmdMesh.of([self.separate[k] for k in mpmd_indices], self.mpmd_axis_name, self.backend)
        devices = np.take(self.jax_mesh.devices, list(mpmd_indices), self.mpmd_axis)
        mesh = Mesh(devices, self.jax_mesh.axis_names, axis_types=self.jax_mesh.axis_types)
        return MpmdMesh(mesh, self.mpmd_axis_name, self.backend)

    @cached_property
    def is_uneven(self) -> bool:
        """Whether the meshes differ in size."""
        return len({mesh.devices.shape for mesh in self.separate}) > 1

    @property
    def mpmd_idx_for_mesh(self) -> Mapping[Mesh, int]:
        """The mpmd index of each mesh of `unstack`; the first index of a mesh that occurs several times."""
        return {mesh: k for k, mesh in reversed([*enumerate(self.unstack)])}

    def mpmd_indices_for_mesh(self, mesh: Mesh) -> tuple[int, ...] | None:
        """Returns the mpmd indices of the devices of `mesh`, ascending; None if it is no union of whole submeshes.

        Only the devices of `mesh` matter, not the names and the order of its axes. A mesh that occurs in this one
        several times has its first index.
        """
        devices = set(mesh.devices.flat)
        found = sorted({self.device_mpmd_idx[device] for device in devices if device in self.device_mpmd_idx})
        held = {device for k in found for device in self.unstack[k].devices.flat}
        return tuple(found) if found and held == devices else None

    @property
    def platform(self) -> str:
        """The platform of the devices ("cpu", "gpu", "tpu"), or of the backend."""
        return str(self.jax_mesh.devices.flat[0].platform) if self.backend is None else self.backend.platform

    @property
    def platforms(self) -> tuple[str] | None:
        """The platform for which functions are lowered, ("cpu",) or ("cuda",); None: the platform of `jax_mesh`."""
        if self.backend is not None:
            return (self.backend.platform,)
        if not self.separate:
            return None
        device = self.unstack[0].devices.flat[0]
        if device.platform == "gpu":
            return ("rocm" if "rocm" in device.client.platform_version else "cuda",)
        return (str(device.platform),)

    @property
    def is_present(self) -> bool:
        """Whether programs can run on it: its devices belong to JAX or a backend, and not to a `jaxpp.target`."""
        return self.backend is not None or all(map(is_present, {mesh.devices.flat[0] for mesh in self.unstack}))

    @property
    def runs_here(self) -> bool:
        """Whether JAX itself runs programs on it: its devices are present, and no backend runs them."""
        return self.backend is None and self.is_present

    @property
    def device_kind(self) -> str:
        """The kind of the devices, in words for people."""
        return str(self.jax_mesh.devices.flat[0].device_kind) if self.backend is None else self.backend.platform

    @property
    def my_mpmd_axis_index(self) -> int:
        """The mpmd index of this process.

        Raises:
            ValueError: the devices of this process belong to no mpmd index, or to several.
        """
        mine = {k for device, k in self.device_mpmd_idx.items() if device.process_index == jax.process_index()}
        if len(mine) != 1:
            raise ValueError(f"my_mpmd_axis_index: this process has devices of {len(mine)} mpmd groups, expected 1")
        return mine.pop()

    @property
    def my_mpmd_group_mesh(self) -> Mesh:
        """The mesh of this process. Raises ValueError as `my_mpmd_axis_index` does."""
        return self.unstack[self.my_mpmd_axis_index]

    def __enter__(self) -> "MpmdMesh":
        """Returns the mesh: scripts written for JaxPP enter theirs, but nothing here depends on it."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `__enter__`."""

    def lowering_mesh(self) -> Mesh:
        """Returns the mesh that stands for every submesh while a function is lowered: the first one.

        If the submeshes differ in size, it has each axis in its largest size, and consists of virtual CPU devices if no
        submesh has this shape. Functions are traced for its axes, and nothing runs on it.
        """
        return self.jax_mesh if self.separate else self.unstack[0]

    def together(self, mpmd_indices: Sequence[int]) -> Mesh:
        """Returns the mesh of an array that all of these meshes hold; one row of all devices if they differ in size.

        Each device is in it once. In such a row every device lies along the mpmd axis, and the other axes have size 1.
        Arrays over it are replicated.

        Raises:
            ValueError: there is no index, or one is not in the mesh.
        """
        submesh = self.mpmd_submesh(mpmd_indices)
        if submesh.separate:
            submesh = MpmdMesh.of([*dict.fromkeys(submesh.separate)], self.mpmd_axis_name)
        return one_row(submesh.separate, self.mpmd_axis_name) if submesh.separate else submesh.jax_mesh

    @cached_property
    def device_coords(self) -> Mapping[Any, tuple[int, ...]]:
        """The coordinates of every device: its (first) mpmd index, and its position in its mesh on the other axes."""
        axis = self.mpmd_axis
        return {
            device: (*position[:axis], k, *position[axis + 1 :])
            for k, mesh in reversed([*enumerate(self.unstack)])
            for position, device in np.ndenumerate(mesh.devices)
        }

    @cached_property
    def device_mpmd_idx(self) -> Mapping[Any, int]:
        """The (first) mpmd index of every device."""
        return {device: position[self.mpmd_axis] for device, position in self.device_coords.items()}

    @property
    def spmd_axis_names(self) -> tuple[str, ...]:
        """The axes other than the mpmd axis, in order."""
        return tuple(name for name in self.jax_mesh.axis_names if name != self.mpmd_axis_name)

    @property
    def devices_per_mesh(self) -> int:
        """The number of devices of one submesh.

        Raises:
            ValueError: the submeshes differ in size.
        """
        if self.is_uneven:
            raise ValueError(f"devices_per_mesh: the meshes have {[mesh.size for mesh in self.separate]} devices")
        return self.unstack[0].size


@dataclass(frozen=True)
class MpmdSharding:
    """The meshes of `mpmd_mesh` that hold an array, and the sharding of the array on each of them.

    `sharding` is the equivalent NamedSharding over these meshes together.

    Args:
        mpmd_mesh: all meshes.
        mesh_ids: the mpmd indices of the meshes that hold the array, each a whole copy. Empty: no mesh uses it.
        spec: the sharding on each mesh; an entry for the mpmd axis is left out.
        memory_kind: the memory, as for a NamedSharding.
        blocks: for stacked layers, the mesh of each block along the first dimension, in order. Each of these meshes
            then holds one block, and no mesh the whole; `spec` is the sharding of a block.

    Raises:
        ValueError: an index or an axis is not in the mesh.
        TypeError: `spec` is no PartitionSpec.
    """

    mpmd_mesh: MpmdMesh
    mesh_ids: AbstractSet[int]
    spec: PartitionSpec
    memory_kind: str | None = None
    blocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        mesh_ids = frozenset(self.mesh_ids)
        count = self.mpmd_mesh.mpmd_dim
        for name, given in (("mesh_ids", sorted(mesh_ids)), ("blocks", self.blocks)):
            if any(not 0 <= k < count for k in given):
                raise ValueError(f"MpmdSharding: {name} {given} of a mesh with {count} mpmd groups")
        if not isinstance(self.spec, PartitionSpec):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            raise TypeError(f"MpmdSharding: expected a PartitionSpec, found {type(self.spec).__name__}")
        names = self.mpmd_mesh.jax_mesh.axis_names
        for entry in self.spec:
            for axis in entry if isinstance(entry, tuple) else (entry,):
                if isinstance(axis, str) and axis not in names:
                    raise ValueError(f"MpmdSharding: {self.spec} names the axis {axis!r}; the mesh has {names}")
        object.__setattr__(self, "mesh_ids", mesh_ids)
        object.__setattr__(self, "spec", without_axis(self.spec, self.mpmd_mesh.mpmd_axis_name))

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of the array over all its meshes together; over mesh 0 if it has none."""
        mesh = self.mpmd_mesh.together(self.blocks or sorted(self.mesh_ids) or [0])
        axis = self.mpmd_mesh.mpmd_axis_name
        is_cut = self.blocks and mesh.shape[axis] == len(self.blocks)  # otherwise each shared device has all blocks
        spec = with_first_axis(self.spec, axis) if is_cut else self.spec
        return NamedSharding(mesh, spec, memory_kind=self.memory_kind)


def one_row(meshes: Sequence[Mesh], axis: str) -> Mesh:
    """Returns a mesh with the devices of all `meshes` along `axis`; its other axes have size 1."""
    names = meshes[0].axis_names
    shape = [-1 if name == axis else 1 for name in names]
    devices = np.concatenate([mesh.devices.ravel() for mesh in meshes]).reshape(shape)
    return Mesh(devices, names, axis_types=meshes[0].axis_types)


def _with_axis(mesh: Mesh, axis: str) -> Mesh:
    """Returns `mesh` with a first axis `axis` of size 1, unless it has one of that name."""
    if not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
        raise TypeError(f"MpmdMesh.of: expected jax.sharding.Meshes, found a {type(mesh).__name__}")
    if mesh.shape.get(axis, 1) != 1:
        raise ValueError(
            f"MpmdMesh.of: the axis {axis!r} of a mesh has size {mesh.shape[axis]}; expected 1 in each; "
            f"if the mesh has the devices of all stages, write jaxpp.MpmdMesh(mesh, {axis!r})"
        )
    if axis in mesh.axis_names:
        return mesh
    types = (AxisType.Auto, *mesh.axis_types)
    return Mesh(mesh.devices[None], (axis, *mesh.axis_names), axis_types=types)


def _check_shared(meshes: Sequence[Mesh], backend: Host | None) -> None:
    """Refuses meshes that share devices unless one process runs them all, without a backend."""
    if backend is not None:
        raise ValueError(f"MpmdMesh.of: meshes of a {type(backend).__name__} can't share devices: give each its own")
    if processes := sorted({device.process_index for mesh in meshes for device in mesh.devices.flat})[1:]:
        raise ValueError(
            f"MpmdMesh.of: meshes share devices, which works in one process, and process {processes[-1]} has some too: "
            "give each mesh its own"
        )


def _largest(meshes: Sequence[Mesh]) -> Mesh:
    """Returns a mesh with each axis in its largest size: one of `meshes`, or one of virtual devices."""
    shape = tuple(np.max([mesh.devices.shape for mesh in meshes], axis=0).tolist())
    for mesh in meshes:
        if mesh.devices.shape == shape:
            return mesh
    devices = np.array(cpu_devices(int(np.prod(shape)))).reshape(shape)
    return Mesh(devices, meshes[0].axis_names, axis_types=meshes[0].axis_types)


def _more_devices(count: int) -> str:
    """Returns how to get as many virtual devices in each process."""
    given: int = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]  # an option
    if given > 0 and str(given) != os.environ.get("JAX_NUM_CPU_DEVICES"):  # this precedes the environment
        return f"the script sets jax_num_cpu_devices to {given}: set it to {count} for virtual devices of the CPU"
    return f"for virtual devices of the CPU, run the script with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={count}"


def _sizes_of(mesh: Mesh, axis: str) -> str:
    """Returns the sizes of all axes but `axis` in words: `(data=2, model=4)`."""
    return f"({', '.join(f'{name}={size}' for name, size in mesh.shape.items() if name != axis)})"


def _axes_of(mesh: Mesh) -> str:
    return ", ".join(f"{name!r} ({kind.name})" for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True))


def with_first_axis(spec: PartitionSpec, axis: str) -> PartitionSpec:
    """Returns `spec` with the first dimension sharded over `axis` too, as the major axis."""
    first, *rest = spec or (None,)
    names = first if isinstance(first, tuple) else () if first is None else (first,)
    return PartitionSpec((axis, *names) if names else axis, *rest)


def without_axis(spec: PartitionSpec, axis: str) -> PartitionSpec:
    """Returns `spec` without `axis`."""

    def without(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return tuple(name for name in entry if name != axis)
        return None if entry == axis else entry

    return PartitionSpec(*(without(entry) for entry in spec))


def check_mesh(mpmd_mesh: Any) -> None:
    """Raises TypeError unless `mpmd_mesh` is an MpmdMesh."""
    if not isinstance(mpmd_mesh, MpmdMesh):
        found = type(mpmd_mesh).__name__
        raise TypeError(f"mpmd_mesh: expected a jaxpp.MpmdMesh, found {found}; write jaxpp.MpmdMesh(mesh, 'mpmd axis')")
