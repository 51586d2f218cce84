"""Targets have as many devices as JAX has on such hardware."""

import pytest

import jaxpp


@pytest.mark.parametrize(
    ("name", "devices", "gib"),
    [("v4:2x2x1", 4, 32), ("v5e:2x2", 4, 16), ("v5p:2x2x1", 4, 95), ("v6e:2x2", 4, 32), ("tpu7x:2x2x1", 8, 96)],
)
def test_chips_as_jax_shows_them(name: str, devices: int, gib: int) -> None:
    try:
        found = jaxpp.target(name)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    assert (len(found.devices), found.chip.memory_bytes) == (devices, gib << 30)
