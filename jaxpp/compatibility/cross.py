"""Sums, stacks and placement of values on several meshes, for scripts written for NVIDIA's JaxPP.

A step needs none of these functions. In it, under plain `jax.jit` too, `+`, `jnp.stack` and any other operation may
take values of different meshes. Each operation is placed where the fewest bytes move.
"""

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxpp.lowering.structures import is_array


def cross_mpmd_all_reduce(*arrays: Any) -> jax.Array:
    """Returns the sum of arrays that may be on different meshes: `arrays[0] + arrays[1] + ...`, in this order.

    Differentiable; works inside and outside of `jax.jit`. Outside, the sum is where the first array is.

    Args:
        arrays: at least one array, all of one shape and dtype.

    Raises:
        ValueError: no array is given, or their shapes differ.
        TypeError: one is not an array, or their dtypes differ.
    """
    return reduce(operator.add, _alike("cross_mpmd_all_reduce", arrays))


def cross_mpmd_stack(arrays: Sequence[Any], axis: int = 0) -> jax.Array:
    """Stacks arrays that may be on different meshes along a new axis: `jnp.stack(arrays, axis)`.

    Differentiable; works inside and outside of `jax.jit`. Outside, the stack is where the first array is.

    Args:
        arrays: n arrays of one shape and dtype. Arrays of shape (a, b) become (n, a, b), with `axis=1` (a, n, b).
        axis: the position of the new axis in the result; negative ones count from its end.

    Raises:
        ValueError: no array is given, their shapes differ, or the result has no such axis.
        TypeError: one is not an array, or their dtypes differ.
    """
    found = _alike("cross_mpmd_stack", arrays)
    ndim = found[0].ndim + 1
    if not -ndim <= axis < ndim:
        raise ValueError(f"cross_mpmd_stack: axis {axis} of a result of {ndim} dimensions")
    return jnp.stack(found, axis)


def place_with(value: Any, like: Any) -> jax.Array:
    """Returns `value` on the devices of `like`.

    Inside a step, or any other traced function, `value` is returned as it is: each value is placed where it is used.
    Outside, the array is copied to the mesh of `like`. It keeps its sharding if the two meshes have the same axes;
    otherwise it is replicated.

    Args:
        value: an array.
        like: an array of any shape.

    Raises:
        TypeError: one of them is not an array.
    """
    for name, each in (("value", value), ("like", like)):
        if not is_array(each):
            raise TypeError(f"place_with: {name} is of type {type(each).__name__}, not an array")
    if isinstance(value, jax.core.Tracer) or isinstance(like, jax.core.Tracer) or not isinstance(like, jax.Array):
        return jnp.asarray(value)
    return _moved(jnp.asarray(value), like)


def _alike(caller: str, arrays: Sequence[Any]) -> list[jax.Array]:
    """Checks the arrays; returns them on the devices of the first one, unless they are traced."""
    if not arrays:
        raise ValueError(f"{caller}: no arrays; expected at least one")
    for k, each in enumerate(arrays):
        if not is_array(each):
            raise TypeError(f"{caller}: array {k} is of type {type(each).__name__}, not an array")
    types = [jax.typeof(each) for each in arrays]
    for k, each in enumerate(types):
        if each.dtype != types[0].dtype:
            raise TypeError(f"{caller}: array {k} is {each.dtype}, array 0 is {types[0].dtype}; expected one dtype")
        if each.shape != types[0].shape:
            raise ValueError(f"{caller}: array {k} has shape {each.shape}, array 0 has {types[0].shape}")
    found = [jnp.asarray(each) for each in arrays]
    if any(isinstance(each, jax.core.Tracer) for each in found):
        return found
    return [found[0], *(_moved(each, found[0]) for each in found[1:])]


def _moved(value: jax.Array, like: jax.Array) -> jax.Array:
    """Returns a concrete array on the devices of `like`, as `place_with`."""
    if value.sharding.device_set == like.sharding.device_set:
        return value
    if not isinstance(like.sharding, NamedSharding):
        return jax.device_put(value, next(iter(like.sharding.device_set)))
    mesh, spec = like.sharding.mesh, PartitionSpec()
    if isinstance(value.sharding, NamedSharding) and value.sharding.mesh.shape == mesh.shape:
        spec = value.sharding.spec
    return jax.device_put(value, NamedSharding(mesh, spec))
