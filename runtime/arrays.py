"""Where values live: the shardings of a program's values, and the door through which arguments come in."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

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

    submeshes: one per mesh, each with the axis `mpmd_axis` of size 1; None for one whose devices this process does not
        know. Values are described as far as it knows their meshes.
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

    def union(self, meshes: tuple[int, ...]) -> Mesh:
        """The mesh of these submeshes' devices, put together along the mpmd axis. At least one must be known.

        Of submeshes that differ in size it is one long row: their arrays are replicated.
        """
        known = [submesh for mesh in meshes if (submesh := self.submeshes[mesh]) is not None]
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
        """The sharding of a value on `meshes`: on each as `spec` says, replicated over the mpmd axis.

        stacked: each mesh has another block of it, as `spec` says: its first dimension is sharded over the mpmd axis.
        """
        key = (spec, meshes, stacked)
        if key not in self._placed:
            mesh, axes = _without_parts(self.union(meshes), spec)
            shape = spec.shape
            if stacked:
                axes[0] = (self.mpmd_axis, *axes[0])
                shape = (shape[0] * self.union(meshes).shape[self.mpmd_axis], *shape[1:])
            entries = [None if not names else names[0] if len(names) == 1 else names for names in axes]
            while entries and entries[-1] is None:
                entries.pop()
            sharding = NamedSharding(mesh, PartitionSpec(*entries))
            self._placed[key] = Placed(sharding, _compat.abstract_value(shape, spec.dtype, sharding))
        return self._placed[key]

    def type_at(self, mesh: int, dtype: Any, position: int, shape: Sequence[int]) -> Any:
        """The type of an array on the device at that position of the mesh."""
        device = self.union((mesh,)).devices.flat[position]
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=SingleDeviceSharding(device))

    def shard_numbers(self, meshes: tuple[int, ...]) -> list[list[int]]:
        """For each of `meshes` the positions of its devices among those of the union; only this process's count."""
        if not any(map(self.knows, meshes)):
            return [[] for _ in meshes]
        position = {device: number for number, device in enumerate(_here(self.union(meshes)))}
        known = [self.submeshes[mesh] for mesh in meshes]
        return [[] if submesh is None else [position[device] for device in _here(submesh)] for submesh in known]


def _here(mesh: Mesh) -> list[Any]:
    """The devices of this process, in the order in which an array over `mesh` has its shards."""
    return [device for device in mesh.devices.flat if device.process_index == device.client.process_index()]


def put(value: Any, sharding: Sharding) -> jax.Array:
    """`value`, a numpy array or a `jax.Array`, in a sharding: each process places the shards of its own devices.

    `jax.device_put` would have all processes compare their values. Raises LookupError when a shard is made of what only
    another process holds.
    """
    is_here = not isinstance(value, jax.Array) or value.is_fully_addressable
    if is_here and sharding.is_fully_addressable:
        kind = sharding.memory_kind
        if isinstance(value, jax.Array) and kind is not None and value.sharding.memory_kind != kind:
            # Where the sharding has fewer devices than the array, JAX forgets to change the memory, too (0.12).
            value = jax.device_put(value, value.sharding.with_memory_kind(kind))
        return jax.device_put(value, sharding)
    whole = np.asarray(value) if is_here else None
    indices = sharding.addressable_devices_indices_map(value.shape)
    parts = [jax.device_put(_part(value, i) if whole is None else whole[i], d) for d, i in indices.items()]
    return jax.make_array_from_single_device_arrays(value.shape, sharding, parts, dtype=value.dtype)


@contextlib.contextmanager
def _implicitly() -> Generator[None]:
    """`jax.transfer_guard` then treats `jax.device_put` as an implicit transfer: the user has not called it."""
    with contextlib.ExitStack() as stack:
        for guard in (jax.transfer_guard_host_to_device, jax.transfer_guard_device_to_device):
            if guard.value in ("log", "disallow"):
                stack.enter_context(guard(f"{guard.value}_explicit"))
        yield


def _part(array: jax.Array, index: Any) -> jax.Array:
    """What `array` has at `index`, out of one of the shards that are here."""
    wanted = bounds_of(index, array.shape)
    for shard in array.addressable_shards:
        held = bounds_of(shard.index, array.shape)
        if covers(held, wanted):
            cut = [slice(start - low, end - low) for (low, _), (start, end) in zip(held, wanted, strict=True)]
            return shard.data if held == wanted else shard.data[tuple(cut)]
    raise LookupError


def are_parts_here(array: jax.Array, sharding: Sharding) -> bool:
    """Whether every process could `put` the array so, out of what it holds; the same answer in all of them."""
    held: dict[int, list[Bounds]] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        held.setdefault(device.process_index, []).append(bounds_of(index, array.shape))
    return all(
        any(covers(bounds, bounds_of(index, array.shape)) for bounds in held.get(device.process_index, ()))
        for device, index in sharding.devices_indices_map(array.shape).items()
    )


Bounds = tuple[tuple[int, int], ...]
"""(start, end) of a part of an array, by dimension."""


def bounds_of(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    """The bounds of the part at `index`, such as that of a shard, of an array of this shape."""
    return tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))


def covers(whole: Bounds, part: Bounds) -> bool:
    """Whether all of `part` is in `whole`."""
    return all(low <= start and end <= high for (low, high), (start, end) in zip(whole, part, strict=True))


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

    places: (mesh, register) wherever this process holds it.
    is_whole: whether that is one mesh, and no other process has the argument too: it enters as it is, unsplit.
    note: called with the number, the value and the dtype of an argument that is an array of the host, if there is one.
    """

    def __init__(self, number: int, name: str, argument: Argument, shardings: Shardings) -> None:
        self.number, self.name, self.spec = number, name, argument.spec
        self.note: Callable[[int, np.ndarray[Any, Any], np.dtype[Any]], None] | None = None
        meshes = tuple(mesh for mesh, _ in argument.registers)
        self.whole = shardings.place(argument.spec, meshes, argument.stacked)
        self.shape: tuple[int, ...] = self.whole.aval.shape
        self.shard_numbers = [numbers for numbers in shardings.shard_numbers(meshes) if numbers]
        self.places = [place for place in argument.registers if shardings.is_here(place[0])]
        self.pieces = [shardings.place(argument.spec, (mesh,)) for mesh, _ in self.places]
        self.is_whole = len(self.places) == sum(map(shardings.knows, meshes)) == 1
        self.seen_aval: Any = self.whole.aval
        self.seen_sharding: Any = self.whole.sharding

    def enter(self, value: Any) -> Any:
        """`value` as a `jax.Array` with this argument's sharding: itself if it has that already.

        Raises TypeError for what is no array, ValueError for another shape or dtype, RuntimeError for a donated array;
        under a `jax.transfer_guard` what `jax.jit` raises for an argument that has to be moved.
        """
        if not isinstance(value, jax.Array):
            self.check(value)
            if not isinstance(value, np.ndarray):
                value = np.asarray(value, self.spec.dtype)
            if self.note is not None:
                self.note(self.number, value, self.spec.dtype)
            with _implicitly():
                return put(value, self.whole.sharding)
        if value.is_deleted():
            raise RuntimeError(f"argument `{self.name}` was donated to an earlier call: its array is deleted")
        aval: Any = value.aval
        if aval is not self.seen_aval:
            self.check(value)
            self.seen_aval = aval
        sharding = value.sharding
        if sharding is not self.seen_sharding:
            # `committed` makes no difference: a device of the right sharding is the right device.
            if not sharding.is_equivalent_to(self.whole.sharding, value.ndim):
                return self._move(value)
            self.seen_sharding = sharding
        return value

    def split(self, whole: Any) -> list[Any]:
        """The arrays of the single meshes, in the order of `places`, around the same buffers."""
        shards = _compat.shards(whole)
        return [
            _compat.join_arrays(piece.aval, piece.sharding, [shards[number] for number in numbers])
            for piece, numbers in zip(self.pieces, self.shard_numbers, strict=True)
        ]

    def _move(self, value: jax.Array) -> jax.Array:
        try:
            with _implicitly():
                return put(value, self.whole.sharding)
        except LookupError:
            raise ValueError(
                f"argument `{self.name}` is sharded as {value.sharding}; this process has devices that take it as "
                f"{self.whole.sharding}, and lacks a part of it: give the whole array in each process"
            ) from None

    def check(self, value: Any) -> None:
        """Raise TypeError for what is no array, ValueError for another shape or dtype."""
        try:
            found: Any = jax.typeof(value)
        except TypeError:
            raise TypeError(f"argument `{self.name}` is no array: {type(value).__name__}") from None
        if found.shape != self.shape or found.dtype != self.spec.dtype:
            raise ValueError(
                f"argument `{self.name}` is {found.dtype.name}{list(found.shape)}; "
                f"the program was compiled for {self.spec.dtype.name}{list(self.shape)}"
            )
