"""`expect`: the usual result of a step, and another result for the few steps in which a condition fails."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from jaxpp._system import setting
from jaxpp.lowering.locations import here
from jaxpp.lowering.structures import check_leaves

T = TypeVar("T")


@dataclass(frozen=True)
class _Assumed:
    """The conditions that one trace assumes to hold; a condition from an inner trace can't leave that trace."""

    conditions: list[jax.Array]
    trace: Any


_assumed: ContextVar[_Assumed | str | None] = ContextVar("jaxpp_assumed", default=None)


def expect(condition: Any, usual: T, otherwise: Callable[[], T]) -> T:
    """Returns `usual` where `condition` holds, otherwise `otherwise()`: `jax.numpy.where` on each leaf.

    A condition on the gradients of all stages, such as a finite norm or one below a limit, holds back every mesh until
    all have sent their parts. `jaxpp.optimistic` instead assumes that it holds, and rolls back if it does not.

        norm = optax.tree.norm(gradients)
        gradients = jaxpp.expect(norm <= 1, gradients, lambda: jax.tree.map(lambda g: g / norm, gradients))

    Args:
        condition: a boolean scalar of a step; not of a microbatch, inside of `treduce`.
        usual: a pytree of arrays.
        otherwise: a function without arguments that returns a pytree of the same structure and types.

    Raises:
        ValueError: it is called inside of `treduce`; under `jaxpp.optimistic` inside of `jax.jit`, `scan`, `cond` or
            `vmap`; or the two differ in their structure.
        TypeError: the condition is no boolean scalar, `otherwise` no function, a leaf no array, or the two differ in a
            type.
    """
    if not callable(otherwise):
        found = type(otherwise).__name__
        raise TypeError(f"{here()}expect: otherwise is a function without arguments, found {found}")
    check_leaves("expect", "the condition", condition)
    check_leaves("expect", "the usual", usual)
    aval = jax.typeof(condition)
    if aval.shape or aval.dtype != jnp.bool_:
        raise TypeError(f"{here()}expect: the condition is {aval.str_short()}, expected a boolean scalar")
    assumed = _assumed.get()
    if isinstance(assumed, str):
        raise ValueError(f"{here()}expect: it stands {assumed}; call it on what that returns")
    if assumed is not None and assumed.trace != get_opaque_trace_state():
        raise ValueError(
            f"{here()}expect: it stands inside of jax.jit, scan, cond or vmap, which hide the condition from "
            "jaxpp.optimistic; call it in the step itself"
        )
    with setting(_assumed, None):  # conditions inside of `otherwise` matter only there
        other = otherwise() if assumed is None else jax.eval_shape(otherwise)
    check_leaves("expect", "the other", other)
    trees = [jax.tree.structure(each) for each in (usual, other)]
    if trees[0] != trees[1]:
        words = [str(tree).removeprefix("PyTreeDef")[:200] for tree in trees]
        raise ValueError(f"{here()}expect: usually it is {words[0]}, otherwise {words[1]}")
    for one, two in zip(jax.tree.leaves(usual), jax.tree.leaves(other), strict=True):
        types = [jax.typeof(each).str_short() for each in (one, two)]
        if types[0] != types[1]:
            raise TypeError(f"{here()}expect: usually it is {types[0]}, otherwise {types[1]}")
    if assumed is None:
        return jax.tree.map(partial(jnp.where, condition), usual, other)
    assumed.conditions.append(jnp.asarray(condition))
    return usual


@contextmanager
def assumptions() -> Generator[list[jax.Array]]:
    """Makes calls of `expect` that are traced inside assume their conditions; yields the list of these conditions."""
    assumed = _Assumed([], get_opaque_trace_state())
    with setting(_assumed, assumed):
        yield assumed.conditions


def no_expectations() -> AbstractContextManager[None]:
    """Refuses `expect` inside of a microbatch."""
    return setting(_assumed, "inside of treduce")
