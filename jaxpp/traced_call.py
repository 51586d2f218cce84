"""The call of a step inside a JAX transformation: only the types of its results are known, and it can't run."""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxpp._compat import is_traced

step_p = Primitive("jaxpp_step")
step_p.multiple_results = True


def bind(leaves: Sequence[Any], results: Any) -> Any:
    """Returns traced results of the given types, which `jax.eval_shape` and jaxprs show."""
    types, tree = jax.tree.flatten(results)
    return jax.tree.unflatten(tree, step_p.bind(*leaves, types=tuple(map(jax.typeof, types))))


@step_p.def_abstract_eval
def _types(*_: Any, types: Sequence[Any]) -> list[Any]:
    return list(types)


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Raises TypeError: a step cannot be part of another program."""
    raise TypeError(
        "a step of mpmd_jit_with_loop was called inside jax.jit, jax.grad, jax.vmap or another transformation; "
        "it runs programs on several meshes, and must be called from outside"
    )


def check_outside() -> None:
    """Raises TypeError inside a JAX transformation."""
    if is_traced():
        refuse()


step_p.def_impl(refuse)
mlir.register_lowering(step_p, refuse)
ad.primitive_jvps[step_p] = refuse
batching.primitive_batchers[step_p] = refuse
