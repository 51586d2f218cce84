"""The leaves of a state: their names, the arrays that a checkpoint stores of them, and its notes about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from jaxpp._keys import bits_of, generator_of, is_key
from jaxpp.runtime.execution.arguments import DONATED

NAME_KEYS, NUMBER_KEYS = (DictKey, GetAttrKey), (SequenceKey, FlattenedIndexKey)
NUMBERS = {number.__name__: number for number in (bool, int, float, complex)}


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree in order, under the names that orbax gives them: `layers.0.weight`.

    Raises:
        ValueError: two leaves have the same name, because a key of a dictionary contains a dot.
    """
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in found:
            raise ValueError(f"two leaves of the state have the name {name}; rename one")
        found[name] = leaf
    return found


def like_tree(tree: Any, leaves: Mapping[str, Any]) -> Any:
    """Returns the named leaves in the tree's structure, or in a flat dictionary if orbax could not restore the tree.

    Orbax can't restore a node whose keys are partly names and partly integers. The keys of children without leaves
    count too, as in nnx modules.
    """
    kinds: dict[Any, type] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(tree, is_leaf=ocp.utils.is_empty_or_leaf):
        for depth, key in enumerate(path):
            kind = str if isinstance(key, NAME_KEYS) else int if isinstance(key, NUMBER_KEYS) else None
            if kind is None or kinds.setdefault(path[:depth], kind) is not kind:
                return dict(leaves)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves.values())


def number_type(leaf: Any) -> str | None:
    """Returns the name of the type of a Python number; None for anything else, including numpy scalars."""
    if isinstance(leaf, np.generic):  # np.float64 is a float
        return None
    return next((name for name, kind in NUMBERS.items() if isinstance(leaf, kind)), None)


@dataclass(frozen=True)
class Held:
    """The description of one leaf of a checkpoint: the stored array's shape and dtype, and the notes about it.

    Orbax stores arrays of at least one element. All other facts are notes, in JSON.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: str | None = None  # the generator, if the array has the bits of random keys
    number: str | None = None  # the name of the type, if the leaf is a Python number
    is_weak: bool = False  # whether the leaf is a `jax.Array` with a weak type
    is_empty: bool = False  # whether the array has no elements, so that orbax stores nothing

    def __str__(self) -> str:
        return text(self.shape, self.dtype, self.key)

    def note(self) -> dict[str, Any]:
        """Returns the notes on the leaf, for JSON; empty for an ordinary array."""
        found: dict[str, Any] = {"key": self.key, "number": self.number, "weak": self.is_weak}
        if self.is_empty:
            found["empty"] = [list(self.shape), self.dtype.name]
        return {name: value for name, value in found.items() if value}


def text(shape: tuple[int, ...], dtype: np.dtype[Any], key: str | None) -> str:
    """Describes an array for messages: `float32[4, 8]`."""
    return f"{dtype.name}{list(shape)}" + (f" (keys of {key})" if key else "")


def from_note(note: dict[str, Any], stored: Any) -> Held:
    """Returns the description of a leaf, from its note and from orbax's metadata of the array, if one is stored."""
    is_empty = "empty" in note
    shape, dtype = note["empty"] if is_empty else (stored.shape, stored.dtype)
    return Held(tuple(shape), jnp.dtype(dtype), note.get("key"), note.get("number"), note.get("weak", False), is_empty)


def to_store(name: str, leaf: Any) -> tuple[Any, Held]:
    """Returns the array to store for a leaf, and the description of it.

    A leaf that is not a `jax.Array` is converted by `np.asarray`. It must be the same in every process.

    Raises:
        RuntimeError: the array was donated.
        TypeError: the leaf is neither an array of numbers nor a number, or the file format lacks its dtype.
    """
    key, number, array = None, number_type(leaf), leaf
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            raise RuntimeError(f"`{name}` {DONATED}")
        if is_key(leaf):
            key, array = generator_of(leaf), bits_of(leaf)
    else:
        array = np.asarray(leaf)
        if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
            raise TypeError(
                f"`{name}` is of type {type(leaf).__name__}; a checkpoint holds arrays of numbers, and numbers"
            )
    try:
        tensorstore.dtype(array.dtype)
    except ValueError:
        raise TypeError(f"`{name}` is {array.dtype.name}, which the file format does not have; cast it") from None
    is_weak = key is None and getattr(leaf, "weak_type", False)
    return array, Held(array.shape, jnp.dtype(array.dtype), key, number, is_weak, array.size == 0)
