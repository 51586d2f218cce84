"""The shardings of a program's values on its submeshes."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxpp import _compat
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Program
from jaxpp.ir.tensors import SubAxis, TensorSpec


@dataclasses.dataclass(frozen=True)
class Placed:
    """The sharding of a value's `jax.Array` on some meshes, and the type of that array."""

    sharding: NamedSharding
    aval: Any

    @cached_property
    def join(self) -> Callable[[list[Any]], Any]:
        """A function that makes the array from the list of its shards, or from an executable's result."""
        return _compat.result_handler(self.aval, self.sharding)


class SubmeshShardings:
    """The shardings of values on the submeshes of a program, each made once.

    submeshes: one per mesh, each with the axis `mpmd_axis` of size 1; None if this process doesn't know the mesh's
        devices. Values are then described only on the known meshes. Equal submeshes share their devices.
    """

    def __init__(self, program: Program, submeshes: Sequence[Mesh | None], mpmd_axis: str) -> None:
        if len(submeshes) != program.meshes:
            raise ProgramError(f"the program has {program.meshes} meshes, {len(submeshes)} are given")
        for number, submesh in enumerate(submeshes):
            if submesh is None:
                continue
            partitions = program.partitions[number]
            if submesh.size != partitions:
                raise ProgramError(
                    f"the program is for {partitions} devices of mesh {number}, which has {submesh.size}"
                )
            for axis, size in program.axis_sizes[number].items():
                if submesh.shape.get(axis, 1) != size:
                    raise ProgramError(
                        f'the program\'s axis "{axis}" has size {size}, mesh {number} has {submesh.shape}'
                    )
        self.submeshes, self.mpmd_axis = submeshes, mpmd_axis
        self._unions: dict[tuple[int, ...], Mesh] = {}
        self._placed: dict[tuple[TensorSpec, tuple[int, ...], bool], Placed] = {}

    def knows(self, mesh: int) -> bool:
        """Whether the devices of the mesh are known."""
        return self.submeshes[mesh] is not None

    def is_here(self, mesh: int) -> bool:
        """Whether this process holds devices of the mesh."""
        return self.shard_numbers((mesh,)) != [[]]

    def are_shared(self, meshes: Sequence[int]) -> bool:
        """Whether two of these meshes have the same devices."""
        known = [submesh for mesh in meshes if (submesh := self.submeshes[mesh]) is not None]
        return len({*known}) < len(known)

    def devices_here(self, mesh: int) -> list[Any]:
        """Returns the devices of the mesh that this process holds."""
        return self.union((mesh,)).local_devices

    def union(self, meshes: tuple[int, ...]) -> Mesh:
        """Returns the mesh of these submeshes' devices, joined along the mpmd axis. At least one must be known.

        Devices that several submeshes share occur once. If the submeshes differ in size, the mesh is one long row along
        the mpmd axis, and arrays on it are replicated.
        """
        known = [*dict.fromkeys(submesh for mesh in meshes if (submesh := self.submeshes[mesh]) is not None)]
        if len(known) == 1:
            return known[0]
        if meshes not in self._unions:
            first = known[0]
            axis = first.axis_names.index(self.mpmd_axis)
            if len({submesh.devices.shape for submesh in known}) > 1:
                shape = [-1 if number == axis else 1 for number in range(first.devices.ndim)]
                devices = np.concatenate([submesh.devices.ravel() for submesh in known]).reshape(shape)
            else:
                devices = np.concatenate([submesh.devices for submesh in known], axis)
            self._unions[meshes] = Mesh(devices, first.axis_names, axis_types=first.axis_types)
        return self._unions[meshes]

    def place(self, spec: TensorSpec, meshes: tuple[int, ...], stacked: bool = False) -> Placed:
        """Returns the sharding of a value on `meshes`: on each mesh as in `spec`, replicated over the mpmd axis.

        stacked: whether each mesh has a different block with the sharding of `spec`. The first dimension is then also
            sharded over the mpmd axis, unless the meshes share devices, which then have all blocks.
        """
        key = (spec, meshes, stacked)
        if key not in self._placed:
            mesh, axes = _without_parts(self.union(meshes), spec)
            shape = spec.shape
            if stacked:
                axes[0] = axes[0] if self._have_all(meshes) else (self.mpmd_axis, *axes[0])
                shape = (shape[0] * sum(map(self.knows, meshes)), *shape[1:])
            entries = [None if not names else names[0] if len(names) == 1 else names for names in axes]
            while entries and entries[-1] is None:
                entries.pop()
            _check_memory(mesh, meshes, spec.memory)
            sharding = NamedSharding(mesh, PartitionSpec(*entries), memory_kind=spec.memory or None)
            self._placed[key] = Placed(sharding, _compat.abstract_value(shape, spec.dtype, sharding))
        return self._placed[key]

    def _have_all(self, meshes: Sequence[int]) -> bool:
        """Whether meshes are the same devices, which then have all blocks of a stack.

        Raises ProgramError if only some of the meshes share devices.
        """
        if not self.are_shared(meshes):
            return False
        if len({self.submeshes[mesh] for mesh in meshes}) > 1:
            raise ProgramError(
                f"meshes {', '.join(map(str, meshes))} have a block each of stacked layers, and only some of them "
                "share devices: let all of them share these, or none"
            )
        return True

    def type_at(self, mesh: int, dtype: Any, position: int, shape: Sequence[int]) -> Any:
        """Returns the type of an array on the device at that position of the mesh."""
        device = self.union((mesh,)).devices.flat[position]
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=SingleDeviceSharding(device))

    def shard_numbers(self, meshes: tuple[int, ...]) -> list[list[int]]:
        """Returns the positions of each mesh's devices in the union. Only the devices of this process count."""
        if not any(map(self.knows, meshes)):
            return [[] for _ in meshes]
        position = {device: number for number, device in enumerate(self.union(meshes).local_devices)}
        known = [self.submeshes[mesh] for mesh in meshes]
        return [[] if submesh is None else [position[device] for device in submesh.local_devices] for submesh in known]


def _check_memory(mesh: Mesh, meshes: Sequence[int], memory: str) -> None:
    """Raises ProgramError if the devices lack that kind of memory."""
    for device in mesh.local_devices if memory else ():
        kinds = sorted({each.kind for each in device.addressable_memories()})
        if memory not in kinds:
            raise ProgramError(
                f"the program keeps values of mesh {meshes[0]} in {memory!r}; {device} has only {', '.join(kinds)}: "
                "take a schedule without offloads there"
            )


def _without_parts(mesh: Mesh, spec: TensorSpec) -> tuple[Mesh, list[tuple[str, ...]]]:
    """Returns `mesh` and the axes of `spec`; each axis that `spec` uses in part is split into several axes."""
    parts = [axis for axes in spec.axes for axis in axes if isinstance(axis, SubAxis)]
    if not parts:
        return mesh, [tuple(str(axis) for axis in axes) for axes in spec.axes]
    cuts = {name: {1, size} for name, size in mesh.shape.items()}
    for part in parts:
        cuts[part.name] |= {part.pre_size, part.pre_size * part.size}
    pieces: dict[str, list[tuple[str, int, int]]] = {}
    for name, points in cuts.items():
        ordered = sorted(points) if len(points) > 1 else [1, 1]
        steps = list(itertools.pairwise(ordered))
        whole = len(steps) == 1
        pieces[name] = [(name if whole else f"{name}:({low}){high // low}", low, high) for low, high in steps]

    def names(axis: str | SubAxis) -> list[str]:
        if isinstance(axis, str):
            return [name for name, _, _ in pieces[axis]]
        low, high = axis.pre_size, axis.pre_size * axis.size
        return [name for name, start, end in pieces[axis.name] if low <= start and end <= high]

    fine = [piece for name in mesh.axis_names for piece in pieces[name]]
    devices = mesh.devices.reshape([high // low for _, low, high in fine])
    axes = [tuple(name for axis in axes for name in names(axis)) for axes in spec.axes]
    return Mesh(devices, tuple(name for name, _, _ in fine)), axes
