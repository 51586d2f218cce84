"""The kinds of arguments: calls whose arguments have equal kinds share one compiled step."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxpp.runtime.processes.fetch import Handle


def check_hashable(static: Sequence[tuple[int | str, type, Any]], names: Sequence[str]) -> None:
    """Raises TypeError for a static argument that is not hashable.

    Args:
        static: the name or index, the type and the value of each static argument.
        names: the names of the positional parameters, for errors.
    """
    for name, kind, value in static:
        try:
            hash(value)
        except TypeError as error:
            if any(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(value)):
                which = f"{name} (`{names[name]}`)" if isinstance(name, int) and name < len(names) else str(name)
                raise TypeError(
                    f"argument {which} holds arrays and cannot be static: take it out of static_argnums or "
                    "static_argnames"
                ) from None
            raise TypeError(
                f"static argument {name} is a {kind.__name__} that is not hashable ({error}); "
                "give hashable values, such as tuples for lists"
            ) from None


def kind_of(leaf: Any) -> Any:
    """Returns the kind of an argument's leaf: shape, dtype and weak type of an array, otherwise its Python type.

    The dtype is the one that JAX computes with: without x64, int64 arrays of numpy are of the kind of int32 arrays.
    """
    try:
        dtype = leaf.dtype if isinstance(leaf, jax.Array) else jax.dtypes.canonicalize_dtype(leaf.dtype, True)
        return leaf.shape, dtype, getattr(leaf, "weak_type", False)
    except AttributeError:
        return type(leaf)


def described_leaf(leaf: Any) -> Any:
    """Returns the type and sharding of a handle, so that a step can be lowered for it; any other leaf as it is."""
    if not isinstance(leaf, Handle):
        return leaf
    weak = bool(getattr(leaf.aval, "weak_type", False))
    return jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype, sharding=leaf.sharding, weak_type=weak)


def are_there(
    shardings: Sequence[NamedSharding | None],
    given: Sequence[NamedSharding | None],
    places: Mapping[int, NamedSharding],
) -> bool:
    """Whether all arguments of a call are where a step wants them, as its own results are, or as they once were.

    Args:
        shardings: the shardings of the arguments, None for an array that no step has placed.
        given: the shardings of the arguments for which the step was compiled.
        places: the shardings that the step wants, by the index of the argument.
    """
    return all(
        now == then or (now is not None and now == places.get(number))
        for number, (now, then) in enumerate(zip(shardings, given, strict=True))
    )
