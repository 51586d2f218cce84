"""Pytree prefixes: a tree that has one entry for each subtree of another."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax


def entries_per_leaf(prefix: Any, tree: Any, is_entry: Callable[[Any], bool]) -> list[Any]:
    """For each leaf of `tree` the entry of `prefix`. Raises ValueError, in JAX's words, when it is no prefix of `tree`.

    The result is a list and no tree: a node of the user's own may refuse what is no array.
    """
    entries: list[Any] = []
    jax.tree.map(partial(_extend, entries), prefix, tree, is_leaf=is_entry)
    return entries


def entries_per_result(prefix: Any, results: Any, is_entry: Callable[[Any], bool], what: str, entry: str) -> list[Any]:
    """`entries_per_leaf` of what the user's function returns.

    Args:
        prefix: the entries.
        results: what the function returns.
        is_entry: whether a node of `prefix` is an entry.
        what: the begin of the message: "out_shardings do not".
        entry: what an entry is called there: "sharding".

    Raises:
        ValueError: it is no prefix.
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
