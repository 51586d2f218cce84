"""Operations that reduce the results of the microbatches to one: sums, means, maxima, stacks, and those of users.

The protocol is that of NVIDIA's JaxPP, so operations written for it work here.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpp.lowering.locations import here


class Op(ABC):
    """Base class of an operation that accumulates one result over the microbatches.

    Subclasses define `state` and `update`; `operation` takes the class or an instance of it. A schedule may run the
    microbatches of a stage in another order, or on several meshes. An `update` must then be of one of three forms, as
    in `Add`, `Max` and `Concat`: `state + x`, `maximum(state, x)`, or `x` written to the row of this microbatch.
    """

    @abstractmethod
    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        """Returns the accumulator before the first microbatch.

        Args:
            n: the number of microbatches.
            a: shape, dtype and (with Explicit mesh axes) sharding of one microbatch's result.
        """
        ...

    @abstractmethod
    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        """Returns the accumulator after one more microbatch.

        Args:
            state: the accumulator.
            update: the microbatch's result.
            index: the index of the microbatch, an int32 scalar.
        """
        ...


@dataclass(frozen=True)
class Add(Op):
    """The sum over the microbatches. Shape and dtype stay. Starts from zeros."""

    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        return filled(a.shape, 0, a)

    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        return jax.lax.add(state, update)


@dataclass(frozen=True)
class Mean(Add):
    """The mean: the sum over the microbatches, divided once, after the last one.

    It is divided by the number of microbatches or, if another result has the operation `Count`, by the sum of that. A
    total count of zero gives NaN, as 0 / 0 does. The mean of whole numbers is float32; other types stay.
    """


@dataclass(frozen=True)
class Count(Add):
    """The sum over the microbatches of a scalar, by which each `Mean` of the same `treduce` is divided.

    It counts what the loss sums over, such as the valid tokens of a microbatch; or it is the sum of their weights. The
    function then returns sums, not means: a microbatch without valid tokens adds 0 to the sums and to the count.
    """


@dataclass(frozen=True)
class Max(Op):
    """The elementwise maximum over the microbatches. Shape and dtype stay. Starts from the dtype's lowest value."""

    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        return filled(a.shape, _lowest(a.dtype), a)

    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        return jax.lax.max(state, update)


@dataclass(frozen=True)
class Concat(Op):
    """The results of all microbatches, stacked along a new axis: scalars become an array of shape (M,).

    A result of shape (a, b) becomes (M, a, b) with `axis=0`, (a, M, b) with `axis=1`, (a, b, M) with `axis=-1`.
    """

    axis: int = 0

    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        axis = self._position(len(a.shape))
        return filled((*a.shape[:axis], n, *a.shape[axis:]), 0, a, new_axis=axis)

    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        axis = self._position(update.ndim)
        return jax.lax.dynamic_update_index_in_dim(state, update, index, axis, allow_negative_indices=False)

    def _position(self, ndim: int) -> int:
        if not -ndim - 1 <= self.axis <= ndim:
            raise ValueError(
                f"{here()}Concat(axis={self.axis}): a result of {ndim} dimensions can be stacked along 0 to {ndim}"
            )
        return self.axis % (ndim + 1)


def divided(total: jax.Array, count: jax.Array | int) -> jax.Array:
    """Returns the mean of a sum. Types of fewer than 32 bits, which can't hold large counts, divide in float32."""
    is_float = jnp.issubdtype(total.dtype, jnp.inexact)
    wide = total.dtype if is_float and total.dtype.itemsize >= 4 else jnp.dtype("float32")
    mean = total.astype(wide) / jnp.asarray(count).astype(wide)
    return mean.astype(total.dtype) if is_float else mean


def type_for_op(aval: Any) -> jax.ShapeDtypeStruct:
    """Returns the type of a traced value as an `Op` gets it: with its sharding where mesh axes are Explicit."""
    sharding = None if aval.sharding.mesh.empty else aval.sharding
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)


def filled(shape: tuple[int, ...], value: Any, like: jax.ShapeDtypeStruct, new_axis: int | None = None) -> jax.Array:
    """Returns an array of one value with the dtype of `like`, and with its sharding if it has one (Explicit axes).

    Args:
        shape: the shape.
        value: the value.
        like: the type.
        new_axis: the position of a dimension that `shape` has and `like` lacks; it is not sharded.
    """
    sharding: Any = like.sharding
    if sharding is not None and new_axis is not None:
        spec = [*sharding.spec, *[None] * (len(like.shape) - len(sharding.spec))]
        spec.insert(new_axis, None)
        sharding = sharding.update(spec=jax.sharding.PartitionSpec(*spec))
    return jax.lax.full(shape, value, like.dtype, sharding=sharding)


def _lowest(dtype: Any) -> Any:
    if dtype == jnp.bool_:
        return False
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).min
    infinite = bool(np.isneginf(np.float32(-np.inf).astype(dtype)))
    return -np.inf if infinite else jnp.finfo(dtype).min
