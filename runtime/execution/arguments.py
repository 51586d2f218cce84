"""Takes in the arguments of a step: checks them, and places them on the meshes that use them."""

import contextlib
from collections.abc import Callable, Container, Generator, Sequence
from typing import Any

import jax
import numpy as np

from jaxpp import _compat
from jaxpp.ir.errors import described_value
from jaxpp.ir.program import Argument
from jaxpp.runtime.execution.shardings import Placed, SubmeshShardings
from jaxpp.runtime.processes.arrays import batch_copy, in_default_layout, put

DONATED = "was donated to an earlier call: its array is deleted; use what that call returned in its place"


class Door:
    """Takes in one argument of a step: checks it, and places it on the meshes that use it.

    The executables check nothing themselves: a wrong shape would crash the process.

    places: the (mesh, register) pairs of the argument on devices of this process.
    is_whole: whether there is only one place, and no other known mesh has the argument. It then needs no split.
    note: if set, called with the number, the value and the dtype of an argument that is a numpy array.
    """

    def __init__(self, number: int, name: str, argument: Argument, shardings: SubmeshShardings) -> None:
        self.number, self.name, self.spec = number, name, argument.spec
        self.note: Callable[[int, np.ndarray[Any, Any], np.dtype[Any]], None] | None = None
        meshes = tuple(mesh for mesh, _ in argument.registers)
        self.whole = shardings.place(argument.spec, meshes, argument.stacked)
        self.shape: tuple[int, ...] = self.whole.aval.shape
        self.shard_numbers = [numbers for numbers in shardings.shard_numbers(meshes) if numbers]
        self.places = [place for place in argument.registers if shardings.is_here(place[0])]
        self.pieces = [shardings.place(argument.spec, (mesh,)) for mesh, _ in self.places]
        self.is_whole = len(self.places) == sum(map(shardings.knows, meshes)) == 1
        are_shared = shardings.are_shared(meshes)
        self._cut = _into_blocks(self.pieces) if are_shared and argument.stacked else None
        self._own = _own_buffers(self.pieces, self.shard_numbers) if are_shared and argument.donated else None
        self.seen_aval: Any = self.whole.aval
        self.seen_sharding: Any = self.whole.sharding
        self._has_layouts = len(self.shape) > 1 and bool(self.places)
        self._seen_layouts: tuple[Any, ...] = ()

    def enter(self, value: Any) -> Any:
        """Returns `value` as a `jax.Array` with this argument's sharding, or `value` itself if it has that sharding.

        Raises TypeError for a value that is not an array, ValueError for another shape or dtype, RuntimeError for a
        donated array. Under a `jax.transfer_guard` it raises as `jax.jit` does for an argument that has to be moved.
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
            raise RuntimeError(f"argument `{self.name}` {DONATED}")
        aval: Any = value.aval
        if aval is not self.seen_aval:
            self.check(value)
            self.seen_aval = aval
        sharding = value.sharding
        if sharding is not self.seen_sharding:
            # `committed` makes no difference: an uncommitted array with the right sharding is on the right device.
            if not sharding.is_equivalent_to(self.whole.sharding, value.ndim):
                return self._move(value)
            self.seen_sharding = sharding
        # An array of the same type and sharding may have another memory layout, which programs would misread.
        if self._has_layouts and (layout := _compat.layout_of(value)) not in self._seen_layouts:
            if not _compat.is_default_layout(value):
                return in_default_layout(value)
            self._seen_layouts = (layout,)
        return value

    def split(self, whole: Any) -> list[Any]:
        """Returns the arrays of the single meshes, in the order of `places`.

        They share the buffers of `whole`, unless meshes that share devices would donate one buffer twice.
        """
        if self._cut is not None:
            return list(self._cut(whole))
        shards = _compat.shards(whole)
        pieces = [
            piece.join([shards[number] for number in numbers])
            for piece, numbers in zip(self.pieces, self.shard_numbers, strict=True)
        ]
        return pieces if self._own is None else self._own(pieces)

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
        """Raises TypeError for a value that is not an array, ValueError for another shape or dtype."""
        try:
            found: Any = jax.typeof(value)
        except TypeError:
            raise TypeError(f"argument `{self.name}` is {described_value(value)}") from None
        if found.shape != self.shape or found.dtype != self.spec.dtype:
            raise ValueError(
                f"argument `{self.name}` is {found.dtype.name}{list(found.shape)}; "
                f"the program was compiled for {self.spec.dtype.name}{list(self.shape)}"
            )


def check_donated_once(arguments: Sequence[Any], donated: Container[int], name: Callable[[int], str]) -> None:
    """Raises ValueError if an array that is donated is given twice.

    name: returns the name of an argument in messages.
    """
    first: dict[int, int] = {}
    for number, value in enumerate(arguments):
        other = first.setdefault(id(value), number)
        if other != number and hasattr(value, "is_deleted") and (other in donated or number in donated):
            raise ValueError(
                f"arguments `{name(other)}` and `{name(number)}` are one array, which is donated: before the first "
                "step, make one of them a copy, as by jax.tree.map(jnp.copy, tree)"
            )


def _into_blocks(pieces: Sequence[Placed]) -> Callable[[Any], Sequence[Any]]:
    """Returns a function that cuts stacked layers into blocks, where one mesh has all blocks."""
    rows = pieces[0].aval.shape[0]

    def blocks(whole: Any) -> list[Any]:
        return [whole[number * rows : (number + 1) * rows] for number in range(len(pieces))]

    return jax.jit(blocks, out_shardings=[piece.sharding for piece in pieces])


def _own_buffers(pieces: Sequence[Placed], shard_numbers: Sequence[Sequence[int]]) -> Callable[[list[Any]], list[Any]]:
    """Returns a function that copies each array whose shards an earlier array also has."""
    firsts = {tuple(shards): number for number, shards in reversed([*enumerate(shard_numbers)])}
    again = [number for number in range(len(pieces)) if number not in firsts.values()]
    copy = batch_copy([pieces[number].sharding for number in again], always=True)

    def own(arrays: list[Any]) -> list[Any]:
        for number, copied in zip(again, copy([arrays[number] for number in again]), strict=True):
            arrays[number] = copied
        return arrays

    return own


@contextlib.contextmanager
def _implicitly() -> Generator[None]:
    """Makes `jax.transfer_guard` treat `jax.device_put` as an implicit transfer, as the user does not call it."""
    with contextlib.ExitStack() as stack:
        for guard in (jax.transfer_guard_host_to_device, jax.transfer_guard_device_to_device):
            if guard.value in ("log", "disallow"):
                stack.enter_context(guard(f"{guard.value}_explicit"))
        yield
