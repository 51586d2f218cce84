"""The batch of `treduce`: its microbatches, and how one of them is taken."""

import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from jaxpp.lowering.locations import check_whole, here, is_ours
from jaxpp.lowering.structures import check_leaves, leaf_names

_OF_SHAPES = re.compile("shape|dim|ax[ei]s|rank|unpack|broadcast|size|length|index|concatenat|contract", re.IGNORECASE)
"""Finds a word of a message about shapes."""


def microbatch_count(batch: Any, axis: int, microbatches: int | None) -> int:
    """Returns the number of microbatches of a batch: `microbatches`, or without it the size of the axis.

    Raises:
        ValueError: the batch is empty, its leaves differ in size or lack the axis, or `microbatches` don't divide it.
        TypeError: `axis` or `microbatches` is no whole number, or a leaf is not an array.
    """
    check_whole("treduce", axis=axis)
    if microbatches is None:
        return _size(batch, axis, "microbatches")
    check_whole("treduce", microbatches=microbatches)
    count = int(microbatches)
    if count < 1:
        raise ValueError(f"{here()}treduce: {count} microbatches; at least 1 is needed")
    rows = _size(batch, axis, "rows", count)
    if rows % count:
        fewer, more = rows // count * count, -(-rows // count) * count
        sizes = f"{fewer} or {more}" if fewer else str(more)
        raise ValueError(
            f"{here()}treduce: the batch has {rows} rows along axis {axis}, which {count} microbatches can't share "
            f"equally; expected {sizes} rows: leave out rows, or add rows that a mask leaves out of the loss"
        )
    for name, leaf in zip(leaf_names("batch", batch), jax.tree.leaves(batch), strict=True):
        _check_shares(name, jax.typeof(leaf), axis, count)
    if rows == count:
        _warn_of_single_rows(batch, axis, count)
    return count


@contextmanager
def explained(microbatch: Any, axis: int, length: int, is_split: bool) -> Generator[None]:
    """Adds to an error that the user's function raises for a microbatch which shape `treduce` gave to it.

    The function fails on rows where it expects microbatches, and the other way round.

    Args:
        microbatch: what the function takes.
        axis: the axis of the batch from which it was taken.
        length: the number of microbatches.
        is_split: whether `treduce` split rows into microbatches.
    """
    try:
        yield
    except (TypeError, ValueError, IndexError) as error:
        is_of_jax = isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError))  # about what is not known
        if _OF_SHAPES.search(str(error)) and not is_of_jax and not is_ours(error):
            name, leaf = leaf_names("the microbatch", microbatch)[0], jax.tree.leaves(microbatch)[0]
            if is_split:
                did = f"split axis {axis} of the batch into {length} microbatches"
                hint = f"the axis has microbatches already, leave out microbatches={length}"
            else:
                did = f"took the {length} entries along axis {axis} of the batch for microbatches"
                hint = "they are rows, give treduce microbatches=N"
            type_ = jax.typeof(leaf).str_short()
            error.add_note(f"jaxpp: treduce {did}, so its function got {name} as {type_}; if {hint}")
        raise


def take(batch: Any, index: jax.Array, axis: int, microbatches: int | None) -> Any:
    """Returns a microbatch: the entry of each leaf at `index` along `axis`.

    With `microbatches` the axis has all rows of the batch. It becomes two axes, the rows of a microbatch before the
    microbatches: row r belongs to microbatch r modulo their number. A device that has consecutive rows then has the
    same share of each microbatch. So no row moves, and the microbatches are the same on any number of devices.
    """
    if microbatches is not None:
        batch = jax.tree.map(partial(_in_two, axis=axis, count=int(microbatches)), batch)
        axis += axis >= 0
    return jax.tree.map(partial(_take, index=index, axis=axis), batch)


def _check_shares(name: str, aval: Any, axis: int, count: int) -> None:
    """Refuses rows that are sharded over Explicit axes of which the devices can't share each microbatch equally.

    JAX can't split such rows. (If the axes are Auto, the rows move, and a warning names them.)
    """
    if aval.sharding.mesh.empty or (over := aval.sharding.spec[axis]) is None:
        return
    names = over if isinstance(over, tuple) else (over,)
    devices, rows = prod(aval.sharding.mesh.shape[each] for each in names), aval.shape[axis] // count
    if rows % devices:
        raise ValueError(
            f"{here()}treduce: {name} is sharded over {', '.join(map(repr, names))} along axis {axis}: {devices} "
            f"devices can't share the rows of a microbatch, {rows}, equally; expected a multiple of {devices} rows for "
            "each microbatch"
        )


def _warn_of_single_rows(batch: Any, axis: int, count: int) -> None:
    """Warns of a batch with as many rows as microbatches, if these rows may be microbatches of several rows already.

    Each leaf has an axis of rows then, and an example is no scalar, so a leaf has at least one more axis. A batch of
    tokens, [rows, length], gets no warning: one sequence for each microbatch is usual.
    """
    types = [jax.typeof(leaf) for leaf in jax.tree.leaves(batch)]
    ranks = [len(type_.shape) for type_ in types]
    if min(ranks) < 2 or max(ranks) < 3:
        return
    name, found = leaf_names("batch", batch)[0], types[0].str_short()
    warnings.warn(
        f"{here()}treduce: microbatches={count} of the {count} rows along axis {axis} have one row each ({name} is "
        f"{found}); if the axis has microbatches already, leave out microbatches={count}; if one row each is right, "
        f"jnp.expand_dims(leaf, {axis + 1 if axis >= 0 else axis - 1}) for each leaf instead of microbatches={count} "
        "silences this warning",
        stacklevel=100,  # beyond the stack: the message has the user's line
    )


def _in_two(leaf: Any, *, axis: int, count: int) -> jax.Array:
    """Returns a leaf whose rows along `axis` are [rows of a microbatch, microbatches]."""
    shape = jax.typeof(leaf).shape
    axis %= len(shape)
    return jax.lax.reshape(jnp.asarray(leaf), (*shape[:axis], shape[axis] // count, count, *shape[axis + 1 :]))


def _take(leaf: Any, *, index: jax.Array, axis: int) -> jax.Array:
    leaf = jnp.asarray(leaf)
    return jax.lax.dynamic_index_in_dim(leaf, index, axis, keepdims=False, allow_negative_indices=False)


def _size(batch: Any, axis: int, unit: str, microbatches: int | None = None) -> int:
    """Returns the size that every leaf of `batch` has along `axis`; `unit` is what the axis counts."""
    sizes: list[tuple[str, int]] = []
    check_leaves("treduce", "batch", batch)
    for name, leaf in zip(leaf_names("batch", batch), jax.tree.leaves(batch), strict=True):
        if jax.typeof(leaf).dtype == jax.dtypes.float0:
            raise TypeError(f"{here()}treduce: {name} is of type float0, not an array")
        shape = jax.typeof(leaf).shape
        if not -len(shape) <= axis < len(shape):
            lacking = f"microbatch axis {axis}" if microbatches is None else f"axis {axis} of rows"
            raise ValueError(f"{here()}treduce: {name} has shape {shape}, so no {lacking}")
        sizes.append((name, shape[axis]))
    if not sizes:
        raise ValueError(f"{here()}treduce: the batch holds no array")
    first, length = sizes[0]
    for name, size in sizes:
        if size != length:
            message = f"{name} has {size} {unit} along axis {axis}, but {first} has {length}"
            if microbatches in (size, length):
                message += (
                    f"; microbatches={microbatches} splits the rows of every leaf: for random keys give one of each "
                    "row, jax.random.split(key, rows)"
                )
            raise ValueError(f"{here()}treduce: {message}")
    if length == 0:
        raise ValueError(f"{here()}treduce: the batch is empty: {first} has size 0 along axis {axis}")
    return length
