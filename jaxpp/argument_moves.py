"""Arguments that were left on other meshes, because the step ran in another way before."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxpp._compat import key_implementation
from jaxpp.backend import key_types
from jaxpp.lowering.lower import Lowered
from jaxpp.runtime.processes.fetch import move


class Moves:
    """Moves the arguments of a step from where it has had them earlier to where it has them now.

    In one process steps do that by themselves; over several, arrays go through the memory of the hosts, in calls that
    all processes make together. So nothing is moved here but what lies where the step itself wanted it before: other
    arrays of the caller's are taken, or refused, as ever; so are, in several processes, those that only one of them may
    have: a batch of its own.

    lowered: the step.
    """

    def __init__(self, lowered: Lowered) -> None:
        self._keys = key_types(lowered.in_avals)
        self._donated = lowered.donated
        self._fed = set(lowered.feeds.values())
        self._wanted: Mapping[int, NamedSharding] = {}
        self._known: dict[int, list[NamedSharding]] = {}
        self._seen: dict[int, Any] = {}
        """The sharding object of each argument that was right the last time: comparing shardings takes longer."""
        self._moved: dict[int, tuple[weakref.ref[Any], jax.Array]] = {}
        """Arguments that are not donated come again: moved once."""

    def go_to(self, wanted: Mapping[int, NamedSharding]) -> None:
        """From now on, arguments are wanted there, by their numbers."""
        self._wanted = wanted
        self._seen.clear()
        self._moved.clear()
        for number, sharding in wanted.items():
            self._known.setdefault(number, []).append(sharding)

    def of(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], list[jax.Array]]:
        """The arguments where they are wanted, and of the donated ones those that were left behind for that."""
        found, left = list(leaves), list[jax.Array]()
        for number, wanted in self._wanted.items():
            leaf = leaves[number]
            if not isinstance(leaf, jax.Array) or leaf.sharding is self._seen.get(number) or leaf.is_deleted():
                continue
            bits = jax.random.key_data(leaf) if number in self._keys else leaf
            if bits.sharding.is_equivalent_to(wanted, bits.ndim):
                self._seen[number] = leaf.sharding
            elif self._was_ours(number, bits):
                found[number] = self._move(number, leaf, bits, wanted)
                # Where devices are in both, the moved array has the same buffers there.
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
        """The argument where it is wanted."""
        known = self._moved.get(number)
        if known is not None and known[0]() is leaf:
            return known[1]
        moved = move(bits, wanted)
        if number in self._keys:
            moved = jax.random.wrap_key_data(moved, impl=key_implementation(self._keys[number]))
        if not self._donated[number]:
            self._moved[number] = weakref.ref(leaf, lambda _: self._moved.pop(number, None)), moved
        return moved
