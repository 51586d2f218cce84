"""Pytree prefixes: a tree that has one entry for each subtree of another."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax


def entries_per_leaf(prefix: Any, tree: Any, is_entry: Callable[[Any], bool]) -> list[Any]:
    """Returns for each leaf of `tree` the entry of `prefix`. Raises ValueError, in JAX's words, if it is no prefix.

    The result is a list and no tree, as a user's own node may refuse entries that are no arrays.
    """
    entries: list[Any] = []
    jax.tree.map(partial(_extend, entries), prefix, tree, is_leaf=is_entry)
    return entries


def entries_per_result(prefix: Any, results: Any, is_entry: Callable[[Any], bool], what: str, entry: str) -> list[Any]:
    """Returns `entries_per_leaf` for the results of a function.

    Args:
        prefix: the entries.
        results: the results of the function.
        is_entry: whether a node of `prefix` is an entry.
        what: the beginning of the error: "out_shardings do not".
        entry: the word for an entry in the error: "sharding".

    Raises:
        ValueError: `prefix` is no prefix of `results`.
    """
    try:
        return entries_per_leaf(prefix, results, is_entry)
    except ValueError:
        returned = str(jax.tree.structure(results)).removeprefix("PyTreeDef")
        raise ValueError(
            f"{what} fit what the function returns, {returned[:300]}; "
            f"give one {entry}, or a pytree of {entry}s that is a prefix of it"
        ) from None


def _extend(entries: list[Any], entry: Any, subtree: Any) -> None:
    entries.extend([entry] * len(jax.tree.leaves(subtree)))
