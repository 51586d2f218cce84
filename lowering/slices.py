"""`scan_slices`: a loop over slices of a sequence."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpp.lowering.locations import here
from jaxpp.lowering.marks import is_array


def scan_slices(
    fn: Callable[[Any, Any, jax.Array], tuple[Any, Any]], init: Any, xs: Any, slices: int, axis: int = 1
) -> tuple[Any, Any]:
    """Scan over slices of a sequence, each of which takes what the one before it hands on: keys and values.

    A schedule with slices (`jaxpp.Seq1F1B`) runs each slice of a stage as a task of its own, where `fn` has the stage
    marks (Seq1F1B, arXiv 2406.03488). Under any other schedule, and under plain `jax.jit`, it is a `jax.lax.scan`:

        length = xs.shape[axis] // slices
        for i in range(slices):
            carry, y = fn(carry, xs[:, i * length : (i + 1) * length], i * length)

    Args:
        fn: takes what is handed on, one slice of `xs` and the position where it starts (an int32 scalar); returns what
            it hands on, of the shapes that it took (keys and values of the whole sequence, in which it writes its own
            rows, and which it masks), and any pytree of arrays (the loss of the slice). It marks the end of every
            stage, the last one too.
        init: what the first slice takes: a pytree of arrays, such as zeros.
        xs: a pytree of arrays, all of the same size along `axis`.
        slices: how many, a divisor of this size.
        axis: the sequence axis of every leaf of `xs`.

    Returns:
        What the last slice hands on, and what `fn` returns besides, stacked along a new first axis, as of `lax.scan`.

    Raises:
        ValueError: `slices` does not divide the sequence, a leaf lacks the axis, or they differ along it.
        TypeError: `slices` or `axis` is no whole number; `fn` returns no pair; a leaf is not an array; what is handed
            on changes its shape or type.
    """
    length = _length(xs, slices, axis)

    def on_slice(carry: Any, x: tuple[jax.Array, Any]) -> tuple[Any, Any]:
        number, part = x
        found = fn(carry, part, number * length)
        if not isinstance(found, (tuple, list)) or len(found) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            expected = "fn returns what it hands on, and what is stacked"
            raise TypeError(f"{here()}scan_slices: {expected}: a pair, found {type(found).__name__}")
        _check_carry(carry, found[0])
        return found[0], found[1]

    return jax.lax.scan(
        on_slice, init, (jnp.arange(slices, dtype=jnp.int32), jax.tree.map(partial(_cut, slices=slices, axis=axis), xs))
    )


def _cut(leaf: Any, *, slices: int, axis: int) -> jax.Array:
    """The slices of an array, along a new first axis."""
    leaf = jnp.asarray(leaf)
    axis %= leaf.ndim
    shape = (*leaf.shape[:axis], slices, leaf.shape[axis] // slices, *leaf.shape[axis + 1 :])
    return jnp.moveaxis(leaf.reshape(shape), axis, 0)


def _length(xs: Any, slices: int, axis: int) -> int:
    """The positions of a slice."""
    for name, number in (("slices", slices), ("axis", axis)):
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            raise TypeError(f"{here()}scan_slices: {name} must be a whole number, found {number!r}")
    if slices < 1:
        raise ValueError(f"{here()}scan_slices: slices must be at least 1, found {slices}")
    sizes: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(xs):
        name = f"xs{jax.tree_util.keystr(path)}"
        if not is_array(leaf):
            raise TypeError(f"{here()}scan_slices: {name} is of type {type(leaf).__name__}, not an array")
        shape = jax.typeof(leaf).shape
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"{here()}scan_slices: {name} has shape {shape}, so no sequence axis {axis}")
        sizes[name] = shape[axis]
    if not sizes:
        raise ValueError(f"{here()}scan_slices: xs holds no array")
    first, size = next(iter(sizes.items()))
    for name, other in sizes.items():
        if other != size:
            raise ValueError(
                f"{here()}scan_slices: {name} has {other} positions along axis {axis}, but {first} has {size}"
            )
    if size % slices:
        raise ValueError(
            f"{here()}scan_slices: {slices} slices don't divide the {size} positions of {first}: pad the sequence to a "
            f"multiple of {slices}, or take other slices"
        )
    return size // slices


def _check_carry(old: Any, new: Any) -> None:
    """Raise TypeError where `fn` hands on something else than it took."""
    before, after = (dict(jax.tree_util.tree_leaves_with_path(each)) for each in (old, new))
    if before.keys() != after.keys():
        trees = (jax.tree.structure(each) for each in (old, new))
        raise TypeError(f"{here()}scan_slices: what a slice takes is {next(trees)}, what it hands on is {next(trees)}")
    for path, leaf in after.items():
        found, expected = (jnp.asarray(each).aval for each in (leaf, before[path]))
        if found.shape != expected.shape:
            hint = (
                "keep keys and values in arrays of the whole sequence, write the rows of a slice with "
                "lax.dynamic_update_slice, and mask those behind it"
            )
        elif found.dtype != expected.dtype and not expected.weak_type:  # which lax.scan promotes
            hint = f"start with {found.dtype}, or hand on {expected.dtype}"
        else:
            continue
        raise TypeError(
            f"{here()}scan_slices: carry{jax.tree_util.keystr(path)} changes from {expected.str_short()} to "
            f"{found.str_short()}: {hint}"
        )
