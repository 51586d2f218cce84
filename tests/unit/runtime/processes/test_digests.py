"""Digests of arrays of the host."""

import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxpp.runtime.processes.digests import LARGE, digest, sampling

F4 = np.dtype(np.float32)


@pytest.mark.parametrize("size", [LARGE // 8, LARGE * 8])
def test_the_layout_in_memory_makes_no_difference(size: int) -> None:
    array = np.arange(size, dtype="f4").reshape(8, -1)
    copies = [
        np.asfortranarray(array),
        np.repeat(array, 2, axis=1)[:, ::2],
        array.astype("f8"),
        array[::-1].copy()[::-1],
    ]
    assert {digest(each, F4, 3) for each in copies} == {digest(array, F4, 3)}
    assert digest(array + 1, F4, 3) != digest(array, F4, 3)
    assert digest(array, F4, 3, whole=True) == digest(copies[0], F4, 3, whole=True)


def test_every_type_and_shape() -> None:
    for value in (np.float32(2), np.zeros((0, 3)), np.ones(3, ml_dtypes.bfloat16), np.ones(3, ml_dtypes.int4), True):
        array = np.asarray(value)
        assert digest(array, array.dtype, 0) == digest(array.copy(), array.dtype, 7)


def test_the_samples_of_many_steps_are_all_of_a_large_array() -> None:
    array = np.zeros(LARGE * 2, "f4")
    other = array.copy()
    other[4711] = 1
    assert digest(array, F4, 0, whole=True) != digest(other, F4, 0, whole=True)
    assert any(digest(array, F4, step) != digest(other, F4, step) for step in range(16))


def test_a_large_array_takes_no_longer_than_a_small_one() -> None:
    array: Any = np.lib.stride_tricks.as_strided(np.ones(1, "f4"), (1 << 20, 1 << 20), (0, 0))  # of 4 TB
    begin = time.monotonic()
    digest(array, F4, 5)
    assert time.monotonic() - begin < 10


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampling() == "sample"
    monkeypatch.setenv("JAXPP_CHECK_ARGUMENTS", "some")
    with pytest.raises(ValueError, match=r"^JAXPP_CHECK_ARGUMENTS is 'some'; give one of sample, all, none$"):
        sampling()
