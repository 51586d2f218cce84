"""`scan_slices`: a loop over slices of a sequence."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpp.lowering.locations import check_whole, here
from jaxpp.lowering.marks import marks_of_slice
from jaxpp.lowering.structures import is_array
from jaxpp.models.looking_ahead import check_ahead


def scan_slices(
    fn: Callable[[Any, Any, jax.Array], tuple[Any, Any]],
    init: Any,
    xs: Any,
    slices: int | None = None,
    axis: int = 1,
    *,
    cuts: Sequence[int] | None = None,
) -> tuple[Any, Any]:
    """Scans over slices of a sequence; each slice takes the carry of the slice before it: keys and values.

    A schedule with slices (`seq1f1b`) runs each slice of a stage as a task of its own, if `fn` has the stage
    marks (Seq1F1B, arXiv 2406.03488). Under any other schedule, and under plain `jax.jit`, it is a `jax.lax.scan`:

        length = xs.shape[axis] // slices
        for i in range(slices):
            carry, y = fn(carry, xs[:, i * length : (i + 1) * length], i * length)

    Later slices attend to more, and take longer. `cuts`, in place of `slices`, are the lengths of slices that take
    equal times: later slices are shorter. Each then has its own programs. They are found by
    `jaxpp.schedules.model.sequence_cuts.equal_cuts`.

    Args:
        fn: takes the carry, one slice of `xs` and the position where it starts (an int32 scalar). Returns the next
            carry, of the same shapes, and any pytree of arrays (the loss of the slice). The carry is keys and values of
            the whole sequence, in which `fn` writes the rows of its slice, and which it masks. `fn` marks the end of
            every stage, the last one too.
        init: the carry of the first slice: a pytree of arrays, such as zeros.
        xs: a pytree of arrays, all of the same size along `axis`.
        slices: the number of slices, a divisor of this size.
        axis: the sequence axis of every leaf of `xs`.
        cuts: the number of positions of each slice, together this size. The second result of `fn` is stacked, so all
            slices must return the same shapes. Return the sum of the losses of a slice and not their mean, in which the
            positions of short slices would count for more.

    Returns:
        The carry of the last slice, and the second results of `fn`, stacked along a new first axis, as from `lax.scan`.

    Raises:
        ValueError: `slices` does not divide the sequence, `cuts` do not add up to it, both or neither are given; a leaf
            lacks the axis, or leaves differ along it.
        TypeError: `slices`, `axis` or one of `cuts` is no whole number; `fn` returns no pair; a leaf is not an array;
            the carry changes its shape or type, or the second result does between slices.
    """
    if (slices is None) == (cuts is None):
        found = "neither" if slices is None else "both"
        raise ValueError(f"{here()}scan_slices: expected slices, how many, or cuts, their lengths; found {found}")
    checked = partial(_checked, fn)
    if cuts is not None:
        lengths = _lengths(xs, cuts, axis)
        found = _unrolled(checked, init, xs, lengths, axis)
    else:
        assert slices is not None
        lengths = [_length(xs, slices, axis)] * slices
        found = _rolled(checked, init, xs, lengths, axis)
    check_ahead(checked, init, _parts(xs, lengths, axis), sum(lengths))
    return found


def _checked(fn: Callable[..., Any], carry: Any, part: Any, start: jax.Array) -> tuple[Any, Any]:
    """Returns the result of `fn`. Raises TypeError if it is no pair, or if the carry changes its structure or types."""
    found = fn(carry, part, start)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        kind = _type(found) if isinstance(found, jax.Array) else type(found).__name__
        kind += f" of {len(found)}" if isinstance(found, (tuple, list)) else ""
        expected = "fn returns what it hands on, and what is stacked"
        raise TypeError(f"{here()}scan_slices: {expected}: a pair, found {kind}")
    _check_carry(carry, found[0])
    return found[0], found[1]


def _rolled(fn: Callable[..., Any], carry: Any, xs: Any, lengths: Sequence[int], axis: int) -> tuple[Any, Any]:
    """Scans over equal slices."""

    def on_slice(carry: Any, x: tuple[jax.Array, Any]) -> tuple[Any, Any]:
        number, part = x
        return fn(carry, part, number * lengths[0])

    parts = jax.tree.map(partial(_cut, slices=len(lengths), axis=axis), xs)
    return jax.lax.scan(on_slice, carry, (jnp.arange(len(lengths), dtype=jnp.int32), parts))


def _unrolled(fn: Callable[..., Any], carry: Any, xs: Any, cuts: Sequence[int], axis: int) -> tuple[Any, Any]:
    """Scans over slices of these lengths, one after the other."""
    stacked: list[Any] = []
    carry = jax.tree.map(jnp.asarray, carry)
    for number, (part, start) in enumerate(_parts(xs, cuts, axis)):
        with marks_of_slice(number):
            carry, found = fn(carry, part, start)
        _check_stacked(stacked, found)
        stacked.append(found)
    return carry, jax.tree.map(_stack, *stacked)


def _parts(xs: Any, cuts: Sequence[int], axis: int) -> Iterator[tuple[Any, jax.Array]]:
    """Yields the slices of these lengths, and the start of each."""
    xs = jax.tree.map(jnp.asarray, xs)
    for start, length in zip(accumulate(cuts, initial=0), cuts, strict=False):
        take = partial(jax.lax.slice_in_dim, start_index=start, limit_index=start + length, axis=axis)
        yield jax.tree.map(take, xs), jnp.int32(start)


def _check_stacked(before: Sequence[Any], found: Any) -> None:
    """Raises TypeError if slices of different lengths return values of different shapes."""
    each = [*before[:1], found]
    trees = [jax.tree.structure(tree) for tree in each]
    if trees[0] != trees[-1]:
        raise _unlike("", trees[0], trees[-1], len(before))
    leaves = (jax.tree_util.tree_leaves_with_path(tree) for tree in (each[0], found))
    for (path, leaf), (_, other) in zip(*leaves, strict=True):
        if _type(leaf) != _type(other):
            raise _unlike(jax.tree_util.keystr(path), _type(leaf), _type(other), len(before))


def _unlike(where: str, first: object, other: object, number: int) -> TypeError:
    return TypeError(
        f"{here()}scan_slices: what is stacked{where} is {first} of slice 0 and {other} of slice {number}: "
        "return the same shapes for slices of any length, such as a sum"
    )


def _stack(*each: Any) -> jax.Array:
    return jnp.stack(each)


def _type(leaf: Any) -> str:
    return jnp.asarray(leaf).aval.str_short()


def _lengths(xs: Any, cuts: Sequence[int], axis: int) -> list[int]:
    """Returns the lengths of the slices. Raises ValueError or TypeError unless they add up to the sequence."""
    try:
        cuts = list(cuts)
    except TypeError:
        raise TypeError(f"{here()}scan_slices: cuts are the lengths of the slices, a list, found {cuts!r}") from None
    for cut in cuts:
        if isinstance(cut, bool) or not isinstance(cut, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            raise TypeError(f"{here()}scan_slices: cuts are whole numbers, the lengths of the slices, found {cut!r}")
    size = _length(xs, 1, axis)
    if min(cuts, default=0) < 1 or sum(cuts) != size:
        raise ValueError(
            f"{here()}scan_slices: expected cuts of at least 1 position, {size} together, "
            f"found {list(map(int, cuts))}, {sum(cuts)} together"
        )
    return list(map(int, cuts))


def _cut(leaf: Any, *, slices: int, axis: int) -> jax.Array:
    """Returns the slices of an array, along a new first axis."""
    leaf = jnp.asarray(leaf)
    axis %= leaf.ndim
    shape = (*leaf.shape[:axis], slices, leaf.shape[axis] // slices, *leaf.shape[axis + 1 :])
    return jnp.moveaxis(leaf.reshape(shape), axis, 0)


def _length(xs: Any, slices: int, axis: int) -> int:
    """Returns the number of positions of a slice. Raises ValueError or TypeError as `scan_slices` does."""
    check_whole("scan_slices", slices=slices, axis=axis)
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
    """Raises TypeError if `fn` returns a carry with another structure, shape or type than it took."""
    before, after = (dict(jax.tree_util.tree_leaves_with_path(each)) for each in (old, new))
    if before.keys() != after.keys():
        trees = (jax.tree.structure(each) for each in (old, new))
        raise TypeError(
            f"{here()}scan_slices: what a slice takes is {next(trees)}, what it hands on is {next(trees)}: "
            "hand on as many arrays as it takes, in the same structure"
        )
    for path, leaf in after.items():
        found, expected = (jnp.asarray(each).aval for each in (leaf, before[path]))
        if found.shape != expected.shape:
            hint = (
                "keep keys and values in arrays of the whole sequence, write the rows of a slice with "
                "lax.dynamic_update_slice, and mask those behind it"
            )
        elif found.dtype != expected.dtype and not expected.weak_type:  # lax.scan promotes weak types
            hint = f"start with {found.dtype}, or hand on {expected.dtype}"
        else:
            continue
        raise TypeError(
            f"{here()}scan_slices: carry{jax.tree_util.keystr(path)} changes from {expected.str_short()} to "
            f"{found.str_short()}: {hint}"
        )
