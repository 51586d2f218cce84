"""`check_slices`: whether slices of a sequence read only what stands before them."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from jaxpp.lowering.locations import here

_is_checking: ContextVar[bool] = ContextVar("jaxpp_checks_slices", default=False)

_DIFFERS: Final = 1e-3
"""By what share of the largest value of an array results may differ: noise that is masked does nothing at all."""


def check_slices(loss: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Check that no slice of `jaxpp.scan_slices` attends to what stands behind it.

    Under `jax.jit` and under a schedule such a slice reads rows of keys and values that no slice has written yet:
    zeros, where a whole sequence has keys. No error tells that. Here `loss` runs operation by operation (a small
    example is enough), and its slices once more with noise in place of these zeros, which a mask hides.

        jaxpp.check_slices(loss, params, text)

    Args:
        loss: a function that calls `scan_slices`: the loss of a microbatch, or an output; not its gradient.
        args: its arguments.
        kwargs: likewise.

    Raises:
        ValueError: a slice looks ahead; says the line of `scan_slices`, which slice it is, and what changes.
    """
    token = _is_checking.set(True)
    try:
        with jax.disable_jit():
            loss(*args, **kwargs)
    finally:
        _is_checking.reset(token)


def check_ahead(scanned: Callable[[Any], tuple[Any, Any]], init: Any, size: int, made: Any) -> None:
    """Scan again with noise for rows of zeros of the whole sequence; raise ValueError where slices make something else.

    scanned: the scan, of what the first slice takes. size: the positions of the sequence. made: what `init` gives.
    """
    if not _is_checking.get():
        return
    rng = np.random.default_rng(0)

    def noisy(leaf: Any) -> Any:
        value = jnp.asarray(leaf)
        if size not in value.shape or not jnp.issubdtype(value.dtype, jnp.inexact):
            return leaf
        return jnp.where(value == 0, jnp.asarray(rng.standard_normal(value.shape), value.dtype), value)

    found = dict(jax.tree_util.tree_leaves_with_path(scanned(jax.tree.map(noisy, init))[1]))
    for path, expected in jax.tree_util.tree_leaves_with_path(made):
        one, other = (np.asarray(each).astype(np.complex128) for each in (expected, found[path]))
        axes = tuple(range(1, one.ndim))
        differs = np.max(abs(one - other), axes) > _DIFFERS * np.max(abs(one), initial=0.0)
        if differs.any():
            raise ValueError(
                f"{here()}scan_slices: slice {np.argmax(differs)} looks ahead: what it returns"
                f"{jax.tree_util.keystr(path)} changes with rows that no slice has written yet; mask keys and values "
                "behind each position: jnp.arange(length) <= start + position"
            )
