"""Digests of a step's arguments that are numpy arrays. Every process should be given the same numbers."""

import os
import zlib
from typing import Any

import numpy as np

SAMPLES = 512
"""The least number of elements in the digest of a large array. Each step takes different elements."""

LARGE = 4096
"""An array of more elements is large."""

PRIME = 0x9E3779B1
"""A prime larger than the stride of any array, so that its multiples modulo the stride reach every start."""

CHOICES = ("sample", "all", "none")
"""How to choose the elements of a large array for its digest. With "none" no argument has a digest."""


def sampling() -> str:
    """Returns the value of JAXPP_CHECK_ARGUMENTS, one of CHOICES. Raises ValueError for any other value."""
    found = os.environ.get("JAXPP_CHECK_ARGUMENTS", CHOICES[0])
    if found not in CHOICES:
        raise ValueError(f"JAXPP_CHECK_ARGUMENTS is {found!r}; give one of {', '.join(CHOICES)}")
    return found


def digest(value: np.ndarray[Any, Any], dtype: np.dtype[Any], step: int, whole: bool = False) -> int:
    """Returns 32 bits that depend on the numbers of an array, and not on its memory layout.

    dtype: the dtype to which the array will be converted.
    step: chooses the elements of a large array.
    whole: whether to take all elements, even of a large array.
    """
    if value.size > LARGE and not whole:
        stride = value.size // SAMPLES
        start = step * PRIME % stride  # after `stride` steps every element has been read
        if value.flags.c_contiguous:
            value = value.reshape(-1)[start::stride]
        else:
            value = value[np.unravel_index(np.arange(start, value.size, stride), value.shape)]
    return zlib.crc32(value.astype(dtype, copy=False).tobytes())
