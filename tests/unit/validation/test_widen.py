"""A module in float32, beside the one that it was made of."""

# pyright: reportUnknownLambdaType=false

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpp._compat import own_copy
from jaxpp.validation.cpu import Runner
from jaxpp.validation.runnable import RunError
from jaxpp.validation.widen import widen


def looped(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, y: jnp.bfloat16(1.5) * jnp.sin(y), x)


def branched(x: Any) -> Any:
    return lax.cond(x[0] > 0, jnp.tanh, lambda y: y * jnp.bfloat16(0.3), x)


def scanned(x: Any) -> Any:
    return lax.scan(lambda total, y: (total + y, total * y), jnp.bfloat16(0), x)


FUNCTIONS: dict[str, Any] = {
    "products": lambda x: lax.dot(x, x, preferred_element_type=jnp.bfloat16),
    "reduced": lambda x: (jnp.max(x), jnp.argmax(x), jnp.cumsum(x), jnp.sort(x)),
    "windows": lambda x: lax.reduce_window(x, jnp.bfloat16(0), lax.add, (2,), (1,), "VALID"),
    "looped": looped,
    "branched": branched,
    "scanned": scanned,
    "gathered": lambda x: x[jnp.array([3, 1])].at[0].set(2),
    "half": lambda x: x.astype(jnp.float16) * jnp.float16(0.1),
}


def widened(function: Any, x: Any) -> list[np.ndarray]:
    module = own_copy(cast("Any", jax.jit(function).lower(x).compiler_ir()))
    assert widen(module)
    runner = Runner(1)
    with module.context:
        run = runner.compile(module, "main")
    return [np.asarray(each) for each in run([runner.put(np.asarray(x, np.float32))])]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_computes_what_the_function_does_in_float32(name: str) -> None:
    function, x = FUNCTIONS[name], jnp.asarray(np.random.default_rng(0).normal(size=7), jnp.bfloat16)
    found, narrow = widened(function, x), jax.tree.leaves(function(x))
    assert len(found) == len(narrow)
    for wide, rounded in zip(found, narrow, strict=True):
        assert wide.dtype == (np.float32 if jnp.issubdtype(rounded.dtype, jnp.floating) else rounded.dtype)
        np.testing.assert_allclose(wide, np.asarray(rounded, np.float64), rtol=0.05, atol=0.05)
    floats = [each for each in found if each.dtype == np.float32]
    assert name in ("gathered", "reduced") or any(np.any(each != np.asarray(each, jnp.bfloat16)) for each in floats)


def test_bits_stay_those_of_the_narrow_type() -> None:
    x = jnp.asarray([1.0, -2.5, 0.125], jnp.bfloat16)

    def flipped(x: Any) -> Any:
        bits = lax.bitcast_convert_type(x, jnp.uint16)
        return lax.bitcast_convert_type(bits ^ jnp.uint16(1 << 15), jnp.bfloat16) * 3, bits

    numbers, bits = widened(flipped, x)
    np.testing.assert_array_equal(numbers, [-3.0, 7.5, -0.375])
    np.testing.assert_array_equal(bits, lax.bitcast_convert_type(x, jnp.uint16))


def test_custom_calls_on_narrow_values_are_refused() -> None:
    called = jax.ffi.ffi_call("nobody", jax.ShapeDtypeStruct((2,), jnp.bfloat16))
    module = own_copy(cast("Any", jax.jit(called).lower(jnp.zeros(2, jnp.bfloat16)).compiler_ir()))
    with pytest.raises(RunError, match=r"nobody.* takes or makes bfloat16 or float16"):
        widen(module)
