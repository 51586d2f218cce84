"""What the calls of a step have in common that one compiled step serves: the kinds of their arguments."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxpp.runtime.processes.fetch import Handle


def check_hashable(static: Sequence[tuple[int | str, type, Any]], names: Sequence[str]) -> None:
    """Refuse a static argument that is not hashable; `names` are those of the positional parameters."""
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
    """What two arguments must have in common to share a compiled step."""
    try:
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    except AttributeError:
        return type(leaf)


def described_leaf(leaf: Any) -> Any:
    """A leaf as a step is lowered for it: of a handle its type and sharding."""
    if not isinstance(leaf, Handle):
        return leaf
    weak = bool(getattr(leaf.aval, "weak_type", False))
    return jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype, sharding=leaf.sharding, weak_type=weak)
