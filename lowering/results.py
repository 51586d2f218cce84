"""The results of the function that `treduce` maps, and the operations that reduce them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxpp.lowering.locations import here
from jaxpp.lowering.prefixes import entries_per_result
from jaxpp.lowering.reductions import Add, Concat, Count, Max, Mean, Op, divided, type_for_op
from jaxpp.lowering.structures import leaf_names

_COUNTS = frozenset(map(np.dtype, ("int32", "uint32", "int64", "uint64", "float32", "float64")))


@dataclass(frozen=True)
class Reduced:
    """A leaf of the result of the user's function, and the operation that reduces it."""

    name: str
    aval: Any
    op: Op

    @property
    def is_void(self) -> bool:
        """Whether it is the gradient of an integer or a boolean, which holds nothing (`allow_int`)."""
        return self.aval.dtype == jax.dtypes.float0

    def void(self, length: int) -> np.ndarray:
        """Returns a float0 array, which holds nothing either, in the shape of the accumulator."""
        of_one = jax.ShapeDtypeStruct(self.aval.shape, jnp.bool_)
        return np.zeros(jax.eval_shape(partial(self.op.state, length, of_one)).shape, jax.dtypes.float0)

    def initial(self, length: int) -> jax.Array:
        """Returns the accumulator before the first microbatch."""
        aval = self.aval
        op = type(self.op).__name__
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            raise TypeError(f"{here()}{op}: {self.name} is {aval.dtype}; reduce jax.random.key_data of it")
        if isinstance(self.op, Count) and (aval.shape or aval.dtype not in _COUNTS):
            raise TypeError(
                f"{here()}{op}: {self.name} is {aval.dtype}{list(aval.shape)}, expected a scalar of int32 or float32 "
                "(or of 64 bits), such as jnp.sum(mask, dtype=jnp.int32)"
            )
        if isinstance(self.op, Add) and aval.dtype == jnp.bool_:
            raise TypeError(f"{here()}{op}: {self.name} is bool; use Max, or convert it to a number")
        if isinstance(self.op, Max) and jnp.issubdtype(aval.dtype, jnp.complexfloating):
            raise TypeError(
                f"{here()}Max: {self.name} is {aval.dtype}; complex numbers have no order, reduce jnp.abs of it"
            )
        return jnp.asarray(self.op.state(length, type_for_op(aval)))

    def updated(self, state: jax.Array, value: jax.Array, index: jax.Array) -> jax.Array:
        """Returns the accumulator after one more microbatch."""
        new = jnp.asarray(self.op.update(state, value, index))
        if (new.shape, new.dtype) != (state.shape, state.dtype):
            before, after = (f"{x.dtype}{list(x.shape)}" for x in (state, new))
            raise TypeError(
                f"{here()}{type(self.op).__name__}: the accumulator of {self.name} is {before}, its update is {after}"
            )
        return new


def reduced_results(avals: Sequence[Any], shapes: Any, operation: Any, caller: str) -> list[Reduced]:
    """Returns every leaf of the result of the user's function, with its operation.

    Args:
        avals: the types of the leaves.
        shapes: the result, with shapes as leaves.
        operation: the user's operations, a prefix of the result, or None.
        caller: the name of the public function, for errors.

    Raises:
        ValueError: the operations don't fit the result, or None is not enough; a `Count` has no `Mean`, or there are
            several.
        TypeError: an entry is no operation.
    """
    if operation is None:
        operation = _default_operation(shapes, caller)
    what = f"{here()}{caller}: operation {operation} does not"
    ops = entries_per_result(operation, shapes, _is_operation, what, "operation")
    paths = leaf_names("result", shapes)
    for name, op in zip(paths, ops, strict=True):
        if not _is_operation(op):
            raise TypeError(
                f"{here()}{caller}: the operation for {name} is {op!r}; expected Add, Mean, Count, Max, Concat(axis) "
                "or an Op"
            )
    made = [op() if isinstance(op, type) else op for op in ops]
    results = [Reduced(name, aval, op) for name, aval, op in zip(paths, avals, made, strict=True)]
    _check_counts(results, caller)
    return results


def finished(results: Sequence[Reduced], states: Sequence[Any], length: int) -> list[Any]:
    """Returns the results of `treduce`, from the accumulators after the last microbatch.

    A `Mean` is divided once, by the sum of the `Count`, or by the number of microbatches if there is none.
    """
    pairs = list(zip(results, states, strict=True))
    count = next((state for result, state in pairs if isinstance(result.op, Count)), length)
    return [
        divided(state, count) if isinstance(result.op, Mean) and not result.is_void else state
        for result, state in pairs
    ]


def _check_counts(results: Sequence[Reduced], caller: str) -> None:
    """Refuses two counts, and a count by which no mean is divided."""
    counts = [result.name for result in results if isinstance(result.op, Count)]
    if len(counts) > 1:
        raise ValueError(
            f"{here()}{caller}: {len(counts)} results have the operation Count, {counts[0]} and {counts[1]}; "
            "expected one, by which each Mean is divided: give Add to the others"
        )
    if counts and not any(isinstance(result.op, Mean) for result in results):
        raise ValueError(
            f"{here()}{caller}: {counts[0]} has the operation Count, and no result has Mean; give Mean to what is "
            "divided by the count, as in operation=((jaxpp.Mean, jaxpp.Count), jaxpp.Mean), or Add to the count"
        )


def _default_operation(shapes: Any, caller: str) -> Any:
    """Returns the default: stack the loss and sum the rest of a pair, as of `jax.value_and_grad`; sum anything else.

    A loss is a scalar, so a pair that begins with anything else may be a pair of gradients: the user has to decide.
    """
    if not isinstance(shapes, tuple) or len(cast("tuple[Any, ...]", shapes)) != 2:
        return Add
    losses = jax.tree.leaves(cast("tuple[Any, Any]", shapes)[0])
    if losses and losses[0].shape:
        raise ValueError(
            f"{here()}{caller}: the function returns a pair that begins with {losses[0].dtype}{list(losses[0].shape)}, "
            "expected the scalar loss of (loss, gradients); give operation=(jaxpp.Concat(), jaxpp.Add) to stack the "
            "first of the two and sum the second, or operation=jaxpp.Add to sum both"
        )
    return Concat(), Add


def _is_operation(x: Any) -> bool:
    return hasattr(x, "state") and hasattr(x, "update")
