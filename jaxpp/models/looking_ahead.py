"""`check_slices`: checks that slices of a sequence read only earlier positions."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from jaxpp._system import setting
from jaxpp.lowering.locations import here


@dataclass
class _Findings:
    """The findings of `check_slices`: the number of scans over slices, and a message for each error."""

    scans: int = 0
    messages: list[str] = field(default_factory=list[str])


_findings: ContextVar[_Findings | None] = ContextVar("jaxpp_checks_slices", default=None)

_DIFFERS: Final = 1e-6
"""The share of an array's largest value by which results may differ, from rounding: masked noise changes nothing."""

_NOISE: Final = 4.0
"""The standard deviation of the noise: large, so that a key that is not masked gets much of the attention."""


def check_slices(loss: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Checks that no slice of `jaxpp.models.scan_slices` attends to later positions.

    Under `jax.jit` and under a schedule such a slice reads rows of keys and values that no slice has written yet. They
    are zeros where the whole sequence would have keys, and no error reports that. Here `loss` runs operation by
    operation, for which a small example is enough. Each slice runs again with noise in place of these zeros, which a
    mask hides. Slices may hand on anything besides keys and values: sums, counts, maxima, a state that each slice
    replaces.

        jaxpp.models.check_slices(loss, params, text)

    Args:
        loss: a function that calls `scan_slices`: the loss of a microbatch, its gradient, an output, a step.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        ValueError: a slice looks ahead; the message has the line of `scan_slices`, the index of the slice, and the
            values that change. Or `loss` calls no `scan_slices`.
        TypeError: `loss` is no function.
    """
    if not callable(loss):
        raise TypeError(f"check_slices: expected a function that calls jaxpp.models.scan_slices, found {loss!r}")
    found = _Findings()
    with setting(_findings, found):
        with jax.disable_jit():
            loss(*args, **kwargs)
        jax.effects_barrier()
    if not found.scans:
        raise ValueError(
            "check_slices: the function calls no jaxpp.models.scan_slices, so nothing was checked; "
            "if it scans over slices by lax.scan, write that as scan_slices"
        )
    if found.messages:
        raise ValueError(found.messages[0])


def check_ahead(fn: Callable[..., Any], init: Any, slices: Iterable[tuple[Any, jax.Array]], size: int) -> None:
    """Runs the slices under `check_slices` with noise in place of unwritten zeros, and records what the noise changes.

    Args:
        fn: takes the carried values, a slice and its start.
        init: the initial carried values.
        slices: each slice with its start; consumed only under `check_slices`.
        size: the number of positions of all slices together.
    """
    found = _findings.get()
    if found is None:
        return
    found.scans += 1
    parts = list(slices)
    first, tree = jax.tree.flatten(jax.tree.map(jnp.asarray, init))
    noise = list(map(_noise, first))

    def run(number: int, leaves: Sequence[jax.Array]) -> tuple[list[jax.Array], Any]:
        after, made = fn(tree.unflatten(leaves), *parts[number])
        return list(map(jnp.asarray, jax.tree.leaves(after))), made

    zeros = [None if other is None else leaf == 0 for leaf, other in zip(first, noise, strict=True)]
    usual, noisy = [first], [_put(noise, zeros, first)]
    returned: list[Any] = []
    for number in range(len(parts)):
        after, made = run(number, usual[-1])
        usual.append(after)
        returned.append(made)
        noisy.append(run(number, noisy[-1])[0])
    histories = zip(noise, zip(*usual, strict=True), zip(*noisy, strict=True), strict=True)
    masks = [_unwritten(*history, size) for history in histories]
    for number, mask in enumerate(zip(*masks, strict=True)):
        after, made = run(number, _put(noise, mask, usual[number]))
        after = _put(usual[number + 1], mask, after)  # removes the noise that is left
        handed = (tree.unflatten(leaves) for leaves in (usual[number + 1], after))
        names = _names("returns", made) + _names("hands on", init)
        note = partial(_note, found.messages, f"{here()}scan_slices: slice {number} looks ahead", names)
        # A callback, as these are tracers while the function is differentiated or mapped.
        jax.debug.callback(note, *map(_numbers, zip((returned[number], made), handed, strict=True)))


def _noise(leaf: jax.Array) -> np.ndarray[Any, Any] | None:
    """Returns noise for a floating-point array, otherwise None.

    The noise is negative, so that it does not change a running maximum that starts from zeros.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return None
    return (-_NOISE * abs(np.random.default_rng(0).standard_normal(leaf.shape))).astype(leaf.dtype)


def _put(values: Iterable[Any], masks: Iterable[Any], leaves: Iterable[jax.Array]) -> list[jax.Array]:
    """Returns the leaves, with `values` wherever the masks are true."""
    each = zip(values, masks, leaves, strict=True)
    return [leaf if value is None or mask is None else jnp.where(mask, value, leaf) for value, mask, leaf in each]


def _unwritten(noise: Any, usual: Sequence[jax.Array], noisy: Sequence[jax.Array], size: int) -> list[Any]:
    """Returns for each slice the mask of elements of keys and values that neither it nor an earlier slice writes.

    Args:
        noise: the noise that replaced zeros of the initial array; None for an array without noise.
        usual: the array before the first slice and after each slice.
        noisy: the same, if the zeros of the initial array are replaced by noise.
        size: the number of positions of the sequence.
    """
    if noise is None:
        return [None] * (len(usual) - 1)
    zeros = left = usual[0] == 0
    masks: list[jax.Array] = []
    for after in noisy[1:]:
        left = left & (after == noise)
        masks.append(left)
    written = zeros & ~left
    as_sums, as_rows = (abs(noisy[-1] - start - usual[-1]) for start in (noise, 0))
    is_sum = jnp.sum(jnp.where(written, as_sums, 0)) < jnp.sum(jnp.where(written, as_rows, 0))
    rows = ~is_sum & (written | (size in noise.shape))  # no slice writes padding
    return [mask & rows for mask in masks]


def _names(what: str, tree: Any) -> list[str]:
    return [f"what it {what}{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _numbers(tree: Any) -> list[Any]:
    """Returns the leaves as arrays of numbers; 0 for keys of random numbers."""
    leaves = map(jnp.asarray, jax.tree.leaves(tree))
    return [0 if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else leaf for leaf in leaves]


def _note(messages: list[str], says: str, names: list[str], usual: Sequence[Any], noisy: Sequence[Any]) -> None:
    """Records the first array that noise changes."""
    for name, *pair in zip(names, usual, noisy, strict=True):
        one, other = (np.asarray(each).astype(np.complex128) for each in pair)
        largest = np.max(abs(one[np.isfinite(one)]), initial=0.0)
        with np.errstate(invalid="ignore"):
            is_near = (one == other) | (abs(one - other) <= _DIFFERS * largest) | (np.isnan(one) & np.isnan(other))
        if not is_near.all():
            messages.append(
                f"{says}: {name} changes with rows that no slice has written yet; mask keys and values behind each "
                "position: jnp.arange(length) <= start + position"
            )
            return
