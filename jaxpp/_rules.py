"""Rules of JAX's checks for jaxpp's primitives. Like `_compat.py`, this file may use private names."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from jaxpp._versions import explained


@explained
def register_checks(primitive: Any, rule: Callable[..., Any]) -> None:
    """Makes `checkify` discharge the checks in a primitive by `rule(checked, error, values, **params)`.

    The rule returns the error and the results. It may call `checked(body, *operands)` for a closed jaxpr, which also
    returns an error and the results, and starts without an error.
    """
    from jax._src import checkify

    has_context = "ctx" in inspect.signature(checkify.checkify_jaxpr).parameters  # in 0.12

    def discharged(*arguments: Any, **params: Any) -> Any:
        context, (error, enabled, *values) = arguments[:has_context], arguments[has_context:]

        def checked(body: Any, *operands: Any) -> Any:
            return checkify.checkify_jaxpr(*context, body, enabled, checkify.init_error, *operands)

        return rule(checked, error, values, **params)

    checkify.error_checks[primitive] = discharged


@explained
def register_key_use(primitive: Any, function: Callable[..., Any] | None = None) -> None:
    """Tells `jax_debug_key_reuse` that a primitive uses keys as `function` does.

    Args:
        primitive: the primitive.
        function: takes the operands, and the parameters by name. None: the primitive returns its operands.
    """
    import jax
    from jax.experimental.key_reuse import _core

    def signature(eqn: Any) -> Any:
        if function is None:
            return _core.KeyReuseSignature(*(_core.Forward(number, number) for number in range(len(eqn.invars))))
        types = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in eqn.invars]
        return _core.function_type_signature(functools.partial(function, **eqn.params), *types)

    _core.key_reuse_signatures[primitive] = _core.DynamicKeyReuseSignature(signature)
