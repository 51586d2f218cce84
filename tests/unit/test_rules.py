"""Rules of JAX's checks for primitives: which errors `checkify` finds in them, and which keys they use."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from typing import Any

import jax
import pytest
from jax.experimental import checkify
from jax.extend.core import Primitive, jaxpr_as_fun

from jaxpp import _rules


def test_rules_of_a_primitive() -> None:
    """That of `checkify` gets the error before it; keys are handed on, or used by a function."""
    apply_p, same_p = Primitive("apply"), Primitive("same")
    apply_p.multiple_results = same_p.multiple_results = True
    apply_p.def_abstract_eval(lambda *_, body: body.out_avals)
    same_p.def_abstract_eval(lambda *values: values)

    def rule(checked: Any, error: Any, values: Any, *, body: Any) -> Any:
        assert error.get() is None
        return checked(body, *values)

    def use(key: Any, *, body: Any) -> Any:
        return jaxpr_as_fun(body)(key)

    _rules.register_checks(apply_p, rule)
    _rules.register_key_use(apply_p, use)
    _rules.register_key_use(same_p)

    def positive(x: Any) -> Any:
        checkify.check(x > 0, "it is {x}", x=x)
        return x

    body = jax.make_jaxpr(positive)(1.0)
    error, _ = jax.jit(checkify.checkify(lambda x: apply_p.bind(x, body=body)))(-2.0)
    assert error.get() == "it is -2.0 (`check` failed)"
    drawn = jax.make_jaxpr(jax.random.bits)(jax.random.key(0))

    def twice(key: Any, between: Any) -> Any:
        return apply_p.bind(*between(key), body=drawn), apply_p.bind(key, body=drawn)

    with jax.debug_key_reuse(True):
        for between in (lambda key: [key], same_p.bind):
            with pytest.raises(jax.errors.KeyReuseError):
                jax.jit(partial(twice, between=between))(jax.random.key(0))
