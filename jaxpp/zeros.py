"""Zeros in place of arguments of which only shapes are known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpp._keys import is_key


def array_of(leaf: Any) -> Any:
    """Returns the leaf; for a `jax.ShapeDtypeStruct` or another description of an array it returns zeros.

    Zeros are an array of the host, which takes no memory before it is read. Each device gets only its part.
    """
    if isinstance(leaf, jax.Array | np.ndarray) or not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        return leaf
    return jnp.zeros(leaf.shape, leaf.dtype) if is_key(leaf) else np.zeros(leaf.shape, leaf.dtype)
