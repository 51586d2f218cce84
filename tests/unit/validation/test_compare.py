"""How far rounding moves a result, where some of its numbers aren't finite."""

import numpy as np
import pytest

from jaxpp.validation.compare import Expected


@pytest.mark.parametrize("kind", ["f", "D"])
def test_noise_is_that_of_finite_numbers(kind: str) -> None:
    """Neither infinities nor NaNs count, and numpy warns of none, which would end a test."""
    value = np.array([1, np.inf, -np.inf, np.nan, 2], kind)
    moved = np.array([1, np.inf, np.inf, 1, 2.5], kind)
    assert Expected.of(value, moved).noise == 0.5
    assert Expected.of(value[1:4], moved[1:4]).noise == 0
    assert Expected.of(value[:0], moved[:0]).noise == 0
