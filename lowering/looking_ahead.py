"""`check_slices`: whether slices of a sequence read only what stands before them."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxpp.lowering.locations import here

_found: ContextVar[list[Any] | None] = ContextVar("jaxpp_arrays_with_noise", default=None)
"""The arrays that got noise so far; None where nothing is checked."""

_DIFFERS: Final = 1e-6
"""By what share of the largest value of an array results may differ, by rounding: masked noise does nothing at all."""

_NOISE: Final = 4.0
"""The standard deviation of the noise: large, so that a key that is not masked gets much of the attention."""


def check_slices(loss: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Check that no slice of `jaxpp.scan_slices` attends to what stands behind it.

    Under `jax.jit` and under a schedule such a slice reads rows of keys and values that no slice has written yet:
    zeros, where a whole sequence has keys. No error tells that. Here `loss` runs operation by operation (a small
    example is enough), and its slices once more with noise in place of these zeros, which a mask hides.

        jaxpp.check_slices(loss, params, text)

    Keys and values are the floating-point arrays that slices hand on and of which an axis has as many positions as the
    sequence. Take an example in which no other axis of what is handed on is that long.

    Args:
        loss: a function that calls `scan_slices`: the loss of a microbatch, or an output; not its gradient.
        args: its arguments.
        kwargs: likewise.

    Raises:
        ValueError: a slice looks ahead; says the line of `scan_slices`, which slice it is, and what changes. Or there
            is nothing to check, or `scan_slices` is called inside `jax.grad`, `jax.vmap` or `jax.checkpoint`.
    """
    token = _found.set(found := [])
    try:
        with jax.disable_jit():
            loss(*args, **kwargs)
    finally:
        _found.reset(token)
    if not found:
        raise ValueError(
            "check_slices: nothing to check: no scan_slices was called that hands on keys and values, arrays of which "
            "an axis has the positions of the whole sequence"
        )


def check_ahead(scanned: Callable[[Any], tuple[Any, Any]], init: Any, size: int, made: Any) -> None:
    """Scan again with noise for rows of zeros of the whole sequence; raise ValueError where slices make something else.

    scanned: the scan, of what the first slice takes. size: the positions of the sequence. made: what `init` gives.
    """
    noisy = _found.get()
    if noisy is None:
        return
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((init, made))):
        raise ValueError(
            f"{here()}scan_slices: check_slices can't see numbers inside jax.grad, jax.vmap or jax.checkpoint: "
            "give it the loss without them"
        )
    rng = np.random.default_rng(0)

    def with_noise(leaf: Any) -> Any:
        value = jnp.asarray(leaf)
        if size not in value.shape or not jnp.issubdtype(value.dtype, jnp.inexact):
            return leaf
        noisy.append(value)
        return jnp.where(value == 0, jnp.asarray(_NOISE * rng.standard_normal(value.shape), value.dtype), value)

    others = dict(jax.tree_util.tree_leaves_with_path(scanned(jax.tree.map(with_noise, init))[1]))
    for path, expected in jax.tree_util.tree_leaves_with_path(made):
        differs = _differs(expected, others[path])
        if differs.any():
            raise ValueError(
                f"{here()}scan_slices: slice {np.argmax(differs)} looks ahead: what it returns"
                f"{jax.tree_util.keystr(path)} changes with rows that no slice has written yet; mask keys and values "
                "behind each position: jnp.arange(length) <= start + position"
            )


def _differs(one: jax.Array, other: jax.Array) -> NDArray[np.bool_]:
    """For each slice whether it made something else."""
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = map(jax.random.key_data, (one, other))
    expected, found = (np.asarray(each).astype(np.complex128) for each in (one, other))
    most = np.max(abs(expected), where=np.isfinite(expected), initial=0.0)
    close = np.isclose(found, expected, rtol=0.0, atol=_DIFFERS * most, equal_nan=True)
    return np.array([not each.all() for each in close])
