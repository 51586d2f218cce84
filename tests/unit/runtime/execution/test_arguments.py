"""Arguments whose shape, dtype and sharding are right, and whose bytes lie in another way, or elsewhere."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding
from unit.runtime.programs import Pipeline


def in_columns(array: Any, sharding: Any = None) -> jax.Array:
    """The array with its last dimension the slowest, where it is or with this sharding."""
    array = jnp.asarray(array) if sharding is None else jax.device_put(array, sharding)
    return jax.device_put(array, Format(Layout(tuple(reversed(range(array.ndim)))), array.sharding))


def on_host(array: Any, sharding: Any) -> jax.Array:
    return jax.device_put(array, sharding.with_memory_kind("pinned_host"))


def moved(array: Any, _: Any) -> jax.Array:
    """On another device than the program's; JAX itself reads such an array wrongly there (0.10.2, CPU)."""
    return jax.device_put(in_columns(array), jax.devices()[5])


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "columns": in_columns,
    "columns elsewhere": lambda array, _: in_columns(array, SingleDeviceSharding(jax.devices()[5])),
    "columns, moved": moved,
    "host": on_host,
    "columns on the host": lambda array, sharding: in_columns(array, sharding.with_memory_kind("pinned_host")),
    "not committed": lambda array, _: jnp.array(array),
    "Fortran": lambda array, _: np.asfortranarray(array),
    "Fortran, shared": lambda array, _: jnp.from_dlpack(np.asfortranarray(array)),
    "backwards": lambda array, _: array[::-1].copy()[::-1],
    "every second": lambda array, _: np.repeat(array, 2, axis=-1)[..., ::2],
    "float64": lambda array, _: array.astype(np.float64),
}


@pytest.fixture(scope="module", params=[1, 2])
def compiled(request: pytest.FixtureRequest) -> tuple[Pipeline, Any, Any]:
    """A program, its executable, and the shardings of its arguments."""
    pipeline = Pipeline(2, 2, data=request.param)
    executable = pipeline.executable()
    return pipeline, executable, [door.whole.sharding for door, _ in executable._doors]


@pytest.mark.parametrize("change", CHANGES)
def test_bytes_that_lie_otherwise(compiled: tuple[Pipeline, Any, Any], change: str) -> None:
    pipeline, executable, shardings = compiled
    arguments = pipeline.arguments()
    changed = [CHANGES[change](*each) for each in zip(arguments, shardings, strict=True)]
    for found, argument in zip(changed, arguments, strict=True):
        np.testing.assert_array_equal(found, argument)
    results = executable(changed)
    for found, expected in zip(results, executable(arguments), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.format.layout.major_to_minor == tuple(range(found.ndim))
    assert all(each.is_deleted() for each in changed[:2] if isinstance(each, jax.Array))  # they are donated


def test_results_laid_out_anew_go_back_in() -> None:
    """They keep the type and the sharding that the step gave them, also as objects."""
    pipeline = Pipeline(2, 2)
    executable = pipeline.executable()
    first = executable(pipeline.arguments())
    again = executable([*map(in_columns, first[:-1]), pipeline.arguments()[-1]])
    expected = executable([*executable(pipeline.arguments())[:-1], pipeline.arguments()[-1]])
    for found, right in zip(again, expected, strict=True):
        np.testing.assert_array_equal(found, right)


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "byte order": (
        lambda array: array.astype(">f4"),
        TypeError,
        "argument `batch` is a numpy array of '>f4', in another byte order than this machine's: "
        "give x.astype('float32')",
    ),
    "objects": (
        lambda array: array.astype(object),
        TypeError,
        "argument `batch` is a numpy array of object, which JAX does not have: convert it to a dtype of jax.numpy",
    ),
    "keys": (
        lambda _: jax.random.key(0),
        ValueError,
        "argument `batch` is key<fry>[]; the program was compiled for float32[2, 8, 32]",
    ),
    "masked": (lambda array: np.ma.masked_array(array), ValueError, "numpy masked arrays are not supported"),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_is_refused(compiled: tuple[Pipeline, Any, Any], change: str) -> None:
    pipeline, executable, _ = compiled
    *weights, batch = pipeline.arguments()
    made, kind, text = REFUSED[change]
    with pytest.raises(kind) as caught:
        executable([*weights, made(batch)])
    assert text in str(caught.value)


def test_a_deleted_array() -> None:
    pipeline = Pipeline(1, 1)
    weight, batch = pipeline.arguments()
    gone = jnp.array(batch)
    gone.delete()
    with pytest.raises(RuntimeError, match=r"argument `batch` was donated to an earlier call: its array is deleted"):
        pipeline.executable()([weight, gone])
