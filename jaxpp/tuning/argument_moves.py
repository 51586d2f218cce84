"""Moves arguments that lie on other meshes because the step ran in another way before."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxpp._keys import bits_of, keys_of
from jaxpp.lowering.lower import Lowered
from jaxpp.runtime.processes.fetch import move


class Moves:
    """The moves of a step's arguments from the meshes of earlier choices to the meshes of the current one.

    In one process steps move their arguments themselves. Over several processes arrays go through the memory of the
    hosts, in calls that all processes make together. So this class moves an array only if it lies where the step itself
    wanted it before. The step then takes or refuses all other arrays of the caller. Among these are arrays that one
    process alone may have, such as its own batch.

    Args:
        lowered: the step.
    """

    def __init__(self, lowered: Lowered) -> None:
        self._donated = lowered.donated
        self._fed = set(lowered.feeds.values())
        self._wanted: Mapping[int, NamedSharding] = {}
        self._known: dict[int, list[NamedSharding]] = {}
        self._seen: dict[int, Any] = {}
        """The last sharding object of each argument that was right: comparing shardings takes longer."""
        self._moved: dict[int, tuple[weakref.ref[Any], jax.Array]] = {}
        """The moved copy of each argument that is not donated, as the same array may come again."""

    def go_to(self, wanted: Mapping[int, NamedSharding]) -> None:
        """Sets the sharding at which each argument is wanted from now on, by its index."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._seen.clear()
        self._moved.clear()
        for number, sharding in wanted.items():
            self._known.setdefault(number, []).append(sharding)

    def of(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], list[jax.Array]]:
        """Returns the arguments where they are wanted, and the donated ones that a move left behind."""
        found, left = list(leaves), list[jax.Array]()
        for number, wanted in self._wanted.items():
            leaf = leaves[number]
            if not isinstance(leaf, jax.Array) or leaf.sharding is self._seen.get(number) or leaf.is_deleted():
                continue
            bits = bits_of(leaf)
            if bits.sharding.is_equivalent_to(wanted, bits.ndim):
                self._seen[number] = leaf.sharding
            elif self._was_ours(number, bits):
                found[number] = self._move(number, leaf, bits, wanted)
                # On a device that has both, the moved array shares the buffers of the old one.
                if self._donated[number] and bits.sharding.device_set.isdisjoint(wanted.device_set):
                    left.append(leaf)
        return found, left

    def _was_ours(self, number: int, bits: jax.Array) -> bool:
        """Whether the argument lies where it was wanted before, in all processes."""
        if not any(bits.sharding.is_equivalent_to(known, bits.ndim) for known in self._known[number]):
            return False
        if jax.process_count() == 1 or number in self._fed:
            return True
        return len({device.process_index for device in bits.sharding.device_set}) > 1

    def _move(self, number: int, leaf: jax.Array, bits: jax.Array, wanted: NamedSharding) -> jax.Array:
        """Returns the argument at the wanted sharding."""
        known = self._moved.get(number)
        if known is not None and known[0]() is leaf:
            return known[1]
        moved = keys_of(move(bits, wanted), leaf)
        if not self._donated[number]:
            self._moved[number] = weakref.ref(leaf, lambda _: self._moved.pop(number, None)), moved
        return moved
