"""Where values live: the shardings of a program's values, and the door through which arguments come in."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpp import _compat
from jaxpp.runtime.program import Argument, Program
from jaxpp.runtime.values import ProgramError, SubAxis, TensorSpec


@dataclasses.dataclass(frozen=True)
class Placed:
    """A spec on some meshes: the sharding of its `jax.Array` and the type that the array has."""

    sharding: NamedSharding
    aval: Any


class Shardings:
    """The shardings of values on the submeshes of a program, each made once.

    submeshes: one per mesh, each with the axis `mpmd_axis` of size 1, all of one shape.
    """

    def __init__(self, program: Program, submeshes: Sequence[Mesh], mpmd_axis: str) -> None:
        if len(submeshes) != program.meshes:
            raise ProgramError(f"the program has {program.meshes} meshes, {len(submeshes)} are given")
        for number, submesh in enumerate(submeshes):
            if submesh.size != program.partitions:
                raise ProgramError(
                    f"the program is for meshes of {program.partitions} devices, mesh {number} has {submesh.size}"
                )
            for axis, size in program.axis_sizes.items():
                if submesh.shape.get(axis, 1) != size:
                    raise ProgramError(
                        f'the program\'s axis "{axis}" has size {size}, mesh {number} has {submesh.shape}'
                    )
        self.submeshes, self.mpmd_axis = submeshes, mpmd_axis
        self._unions: dict[tuple[int, ...], Mesh] = {}
        self._placed: dict[tuple[TensorSpec, tuple[int, ...]], Placed] = {}

    def union(self, meshes: tuple[int, ...]) -> Mesh:
        """The mesh of these submeshes' devices, put together along the mpmd axis."""
        if len(meshes) == 1:
            return self.submeshes[meshes[0]]
        if meshes not in self._unions:
            first = self.submeshes[meshes[0]]
            axis = first.axis_names.index(self.mpmd_axis)
            devices = np.concatenate([self.submeshes[mesh].devices for mesh in meshes], axis)
            self._unions[meshes] = Mesh(devices, first.axis_names, axis_types=first.axis_types)
        return self._unions[meshes]

    def place(self, spec: TensorSpec, meshes: tuple[int, ...]) -> Placed:
        """The sharding of a value on `meshes`: on each as `spec` says, replicated over the mpmd axis."""
        key = (spec, meshes)
        if key not in self._placed:
            mesh, axes = _without_parts(self.union(meshes), spec)
            entries = [None if not names else names[0] if len(names) == 1 else names for names in axes]
            while entries and entries[-1] is None:
                entries.pop()
            sharding = NamedSharding(mesh, PartitionSpec(*entries))
            self._placed[key] = Placed(sharding, _compat.abstract_value(spec.shape, spec.dtype, sharding))
        return self._placed[key]

    def shard_numbers(self, meshes: tuple[int, ...]) -> list[list[int]]:
        """For each of `meshes` the positions of its devices among those of the union."""
        position = {device: number for number, device in enumerate(self.union(meshes).devices.flat)}
        return [[position[device] for device in self.submeshes[mesh].devices.flat] for mesh in meshes]


def _without_parts(mesh: Mesh, spec: TensorSpec) -> tuple[Mesh, list[tuple[str, ...]]]:
    """`mesh` and the axes of `spec`, with an axis of which only a part is used cut into axes of its own."""
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


class Door:
    """Takes one argument in: checks it, and places it on the meshes that use it.

    The executables behind the door check nothing: a wrong shape would crash the process.
    """

    def __init__(self, number: int, name: str, argument: Argument, shardings: Shardings) -> None:
        self.number, self.name, self.spec = number, name, argument.spec
        meshes = tuple(mesh for mesh, _ in argument.registers)
        self.whole = shardings.place(argument.spec, meshes)
        self.pieces = [shardings.place(argument.spec, (mesh,)) for mesh in meshes]
        self.shard_numbers = shardings.shard_numbers(meshes)
        self.seen_aval: Any = self.whole.aval
        self.seen_sharding: Any = self.whole.sharding

    def enter(self, value: Any) -> Any:
        """`value` as a `jax.Array` with this argument's sharding: itself if it has that already.

        Raises TypeError for what is no array, ValueError for another shape or dtype, RuntimeError for a donated array.
        """
        if not isinstance(value, jax.Array):
            self._check(value)
            if not isinstance(value, np.ndarray):
                value = np.asarray(value, self.spec.dtype)
            return jax.device_put(value, self.whole.sharding)
        if value.is_deleted():
            raise RuntimeError(f"argument `{self.name}` was donated to an earlier call: its array is deleted")
        aval: Any = value.aval
        if aval is not self.seen_aval:
            self._check(value)
            self.seen_aval = aval
        sharding = value.sharding
        if sharding is not self.seen_sharding:
            # `committed` makes no difference: a device of the right sharding is the right device.
            if not sharding.is_equivalent_to(self.whole.sharding, value.ndim):
                return jax.device_put(value, self.whole.sharding)
            self.seen_sharding = sharding
        return value

    def split(self, whole: Any) -> list[Any]:
        """The arrays of the single meshes, in the argument's order, around the same buffers."""
        shards = _compat.shards(whole)
        return [
            _compat.join_arrays(piece.aval, piece.sharding, [shards[number] for number in numbers])
            for piece, numbers in zip(self.pieces, self.shard_numbers, strict=True)
        ]

    def _check(self, value: Any) -> None:
        try:
            found: Any = jax.typeof(value)
        except TypeError:
            raise TypeError(f"argument `{self.name}` is no array: {type(value).__name__}") from None
        if found.shape != self.spec.shape or found.dtype != self.spec.dtype:
            raise ValueError(
                f"argument `{self.name}` is {found.dtype.name}{list(found.shape)}; "
                f"the program was compiled for {self.spec.dtype.name}{list(self.spec.shape)}"
            )
