"""Random keys and their bits."""

import jax
import numpy as np
import pytest

from jaxpp import _keys


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_keys_and_their_bits(generator: str) -> None:
    key = jax.random.key(3, impl=generator)
    bits = _keys.bits_of(key)
    assert _keys.is_key(key)
    assert not _keys.is_key(bits)
    assert _keys.generator_of(key) == generator
    type_ = jax.ShapeDtypeStruct(key.shape, key.dtype)
    expected = jax.random.key_data(key)
    assert (_keys.bits_of(type_).shape, _keys.bits_of(type_).dtype) == (expected.shape, expected.dtype)
    for like in (key, type_, jax.typeof(key)):
        assert jax.random.key_data(_keys.keys_of(np.asarray(bits), like)).tolist() == expected.tolist()


def test_other_values_stay() -> None:
    for value in (3, np.float32(1), np.arange(2), "x"):
        assert not _keys.is_key(value)
        assert _keys.bits_of(value) is value
        assert _keys.keys_of(value, value) is value
