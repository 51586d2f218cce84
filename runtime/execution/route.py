"""The route of a value from one mesh to another: which part of which shard goes to which device."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
from jax import lax

from jaxpp import _compat
from jaxpp.ir.program import Program
from jaxpp.ir.tensors import SubAxis, TensorSpec
from jaxpp.runtime.processes.arrays import Bounds, batch_copy, overlap

Parts = Callable[[Sequence[Any]], list[Any]]
"""A function from arrays on one device each to such arrays."""

Owners = tuple[Sequence[int], Sequence[int]]
"""The process of each source device, and of each target device."""

TypeAt = Callable[[int, Sequence[int]], Any]
"""Returns the `jax.ShapeDtypeStruct` of an array of the given shape on the device at a position of a mesh."""


class ShardPiece(NamedTuple):
    """The part of a shard that one device sends to another.

    source: the position of the sending device in its mesh.
    target: the position of the receiving device in its mesh.
    cut: the bounds of the part within the source's shard; None for the whole shard.
    shape: the shape of the part.
    """

    source: int
    target: int
    cut: Bounds | None
    shape: tuple[int, ...]


class Route:
    """A move of a value from one mesh to another, in `pieces` that are ordered by target, then row-major.

    If both meshes cut the value alike, every device sends its shard to the device at the same position. Otherwise the
    sender cuts a shard that goes to several devices, and the receiver joins the parts of a shard that comes from
    several. No device receives a byte that it doesn't keep.

    owners: the process of each source and of each target, if there are several processes. Unless both meshes cut the
        value alike, a process then receives each shard once, on the first of its devices that wants it. The others
        copy it from there. A process does not receive parts that it holds itself.
    """

    def __init__(self, sources: Sequence[Bounds], targets: Sequence[Bounds], owners: Owners | None = None) -> None:
        self.pieces: list[ShardPiece] = []
        self.is_direct = list(sources) == list(targets)
        self._sources = sources
        alone: Owners = range(-len(sources), 0), range(len(targets))  # as if each device were a process
        self._owners = alone if owners is None or self.is_direct else owners
        self._grids: dict[int, tuple[list[int], tuple[int, ...]]] = {}
        """For each target that receives pieces: the indices of these, and their number along each dimension."""
        self._origins: dict[int, int] = {}
        """For each other target: the target from which it copies its shard."""
        holders: dict[Bounds, list[int]] = {}
        for position, bounds in enumerate(sources):
            holders.setdefault(bounds, []).append(position)
        receivers: dict[tuple[int, Bounds], int] = {}
        for position, wanted in enumerate(targets):
            origin = receivers.setdefault((self._owners[1][position], wanted), position)
            if origin == position:
                self._add(position, wanted, holders)
            else:
                self._origins[position] = origin

    def _add(self, target: int, wanted: Bounds, holders: dict[Bounds, list[int]]) -> None:
        first = len(self.pieces)
        # A part may be empty only along dimensions of size 0.
        overlaps = [(overlap(held, wanted), held) for held in holders]
        found = sorted(
            (part, held)
            for part, held in overlaps
            if all(start < end or low == high for (start, end), (low, high) in zip(part, wanted, strict=True))
        )
        for part, held in found:
            source = target if self.is_direct else self._choose(holders[held], target)
            cut = tuple((start - low, end - low) for (start, end), (low, _) in zip(part, held, strict=True))
            shape = tuple(end - start for start, end in part)
            self.pieces.append(ShardPiece(source, target, None if part == held else cut, shape))
        along = [{part[dimension] for part, _ in found} for dimension in range(len(wanted))]
        self._grids[target] = list(range(first, len(self.pieces))), tuple(map(len, along))

    @functools.cached_property
    def size(self) -> int:
        """The number of elements of all pieces together."""
        return sum(math.prod(piece.shape) for piece in self.pieces)

    def _choose(self, holders: Sequence[int], target: int) -> int:
        """Chooses the device that sends a shard. Holders in the target's process, or otherwise all, take turns."""
        near = [each for each in holders if self._owners[0][each] == self._owners[1][target]] or holders
        return near[len(self._grids) % len(near)]

    def cut(self, pieces: Sequence[int], positions: Sequence[int], type_at: TypeAt) -> Parts:
        """Returns a function that cuts these pieces out of the shards at these positions of the sending mesh."""
        wanted: dict[int, list[tuple[int, Bounds]]] = {}
        whole: list[tuple[int, int]] = []
        for place, number in enumerate(pieces):
            source, _, cut, _ = self.pieces[number]
            if cut is None:
                whole.append((place, positions.index(source)))
            else:
                wanted.setdefault(positions.index(source), []).append((place, cut))
        if not wanted:
            indices = [index for _, index in whole]
            return lambda shards: [shards[index] for index in indices]
        cutters: list[tuple[int, list[int], Callable[..., Any]]] = []
        for index, cuts in wanted.items():
            type_ = type_at(positions[index], [end - start for start, end in self._sources[positions[index]]])
            cutter = _cutter(tuple(cut for _, cut in cuts), type_)
            cutters.append((index, [place for place, _ in cuts], cutter))

        def run(shards: Sequence[Any]) -> list[Any]:
            parts: list[Any] = [None] * len(pieces)
            for place, index in whole:
                parts[place] = shards[index]
            for index, places, cutter in cutters:
                for place, part in zip(places, cutter(shards[index]), strict=True):
                    parts[place] = part
            return parts

        return run

    def join(self, pieces: Sequence[int], positions: Sequence[int], type_at: TypeAt) -> Parts:
        """Returns a function that makes the shards at these positions of the receiving mesh out of these pieces."""
        firsts = [position for position in positions if position in self._grids]
        others = [position for position in positions if position in self._origins]
        joined = self._join(pieces, firsts, type_at)
        if not others:
            return joined
        origins = [firsts.index(self._origins[position]) for position in others]
        order = [[*firsts, *others].index(position) for position in positions]
        copy = batch_copy([type_at(position, ()).sharding for position in others])

        def run(parts: Sequence[Any]) -> list[Any]:
            shards = joined(parts)
            shards = [*shards, *copy([shards[index] for index in origins])]
            return [shards[index] for index in order]

        return run

    def _join(self, pieces: Sequence[int], positions: Sequence[int], type_at: TypeAt) -> Parts:
        """Returns a function that makes the shards of the devices that receive pieces."""
        places = {number: place for place, number in enumerate(pieces)}
        joiners: list[tuple[list[int], Callable[..., Any]]] = []
        for position in positions:
            numbers, grid = self._grids[position]
            types = tuple(type_at(position, self.pieces[number].shape) for number in numbers)
            joiners.append(([places[number] for number in numbers], _joiner(grid, types)))
        if all(joiner is _itself for _, joiner in joiners):
            order = [where[0] for where, _ in joiners]
            return lambda parts: [parts[place] for place in order]
        return lambda parts: [joiner(*[parts[place] for place in where]) for where, joiner in joiners]


Layout = tuple[TensorSpec, tuple[tuple[str, int], ...], int]
"""The type of a value, the axes of its mesh with their sizes, and the number of devices of the mesh."""


def route_of(program: Program, channel: int, owners: Sequence[Sequence[int]] | None = None) -> Route:
    """Returns the route of a channel. owners: for each mesh the process of each device, if there are several."""
    hop = program.hops[channel]
    ends = (tuple(owners[hop.source]), tuple(owners[hop.target])) if owners else None
    return _route(_layout(program, hop.source, hop.operand), _layout(program, hop.target, hop.result), ends)


def channel_bytes(program: Program, channel: int) -> int:
    """Returns the bytes that all devices together send over a channel.

    A part counts once for each receiving device, although a process with several such devices receives the part once
    and copies it.
    """
    hop = program.hops[channel]
    return program.registers[hop.source][hop.operand].dtype.itemsize * route_of(program, channel).size


def _layout(program: Program, mesh: int, register: int) -> Layout:
    sizes = tuple(program.axis_sizes[mesh].items())
    return program.registers[mesh][register], sizes, program.partitions[mesh]


@functools.lru_cache(maxsize=1024)
def _route(source: Layout, target: Layout, owners: Owners | None) -> Route:
    return Route(_shards(*source), _shards(*target), owners)


def _shards(spec: TensorSpec, sizes: Sequence[tuple[str, int]], devices: int) -> list[Bounds]:
    """Returns the part of a value that each device of a mesh has."""
    extents = dict(sizes)
    places = itertools.product(*(range(size) for _, size in sizes)) if sizes else [()] * devices
    return [_shard(spec, extents, dict(zip(extents, place, strict=True))) for place in places]


def _shard(spec: TensorSpec, sizes: dict[str, int], place: dict[str, int]) -> Bounds:
    bounds: list[tuple[int, int]] = []
    for extent, axes in zip(spec.shape, spec.axes, strict=True):
        index, count = 0, 1
        for axis in axes:
            if isinstance(axis, SubAxis):
                size, inner = axis.size, sizes[axis.name] // (axis.pre_size * axis.size)
                here = place[axis.name] // inner % size
            else:
                size, here = sizes[axis], place[axis]
            index, count = index * size + here, count * size
        bounds.append((extent * index // count, extent * (index + 1) // count))
    return tuple(bounds)


@_compat.device_cache
def _cutter(cuts: tuple[Bounds, ...], type_: Any) -> Callable[..., Any]:
    def cut(shard: jax.Array) -> list[jax.Array]:
        return [lax.slice(shard, *zip(*bounds, strict=True)) for bounds in cuts]

    return _compiled(cut, type_)


@_compat.device_cache
def _joiner(grid: tuple[int, ...], types: tuple[Any, ...]) -> Callable[..., Any]:
    """Returns a function that joins parts in row-major order. `grid` is their number along each dimension."""

    def join(*parts: jax.Array) -> jax.Array:
        for dimension in reversed(range(len(grid))):
            count = grid[dimension]
            groups = [parts[start : start + count] for start in range(0, len(parts), count)]
            parts = tuple(lax.concatenate(group, dimension) for group in groups)
        return parts[0]

    return _compiled(join, *types) if math.prod(grid) > 1 else _itself


def _itself(part: Any) -> Any:
    return part


def _compiled(function: Callable[..., Any], *types: Any) -> Callable[..., Any]:
    """Compiles `function` in another thread, so that the caller's mesh and precision settings don't apply."""

    def compile_() -> Callable[..., Any]:
        with jax.enable_x64(True):
            return jax.jit(function).lower(*types).compile()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(compile_).result()
