"""Random keys, which programs, files and other processes hold as their bits."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray


def is_key(value: Any) -> bool:
    """Whether the value is an array of random keys, or describes one."""
    return hasattr(value, "dtype") and bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def generator_of(keys: Any) -> str:
    """Returns the name of the generator of keys, as `jax.random.wrap_key_data` takes it."""
    return str(keys.dtype._impl.name)


def bits_of(value: Any) -> Any:
    """Returns the bits of random keys; of the type of keys the type of their bits; any other value itself."""
    if not is_key(value):
        return value
    is_type = isinstance(value, jax.ShapeDtypeStruct | ShapedArray)
    return jax.eval_shape(jax.random.key_data, value) if is_type else jax.random.key_data(value)


def keys_of(bits: Any, like: Any) -> Any:
    """Returns random keys with these bits, of the generator of `like`; `bits` itself if `like` is no key."""
    return jax.random.wrap_key_data(jnp.asarray(bits), impl=generator_of(like)) if is_key(like) else bits
