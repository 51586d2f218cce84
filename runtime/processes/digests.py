"""Digests of the arguments of a step that are arrays of the host: every process should be given the same numbers."""

import os
import zlib
from typing import Any

import numpy as np

SAMPLES = 512
"""The digest of a large array is made of at least so many of its elements, in each step of others."""

LARGE = 4096
"""An array of more elements is large."""

PRIME = 0x9E3779B1
"""Larger than the stride of any array, so that its multiples reach every start."""

CHOICES = ("sample", "all", "none")
"""Which elements of a large array go into its digest; "none": no argument has a digest."""


def sampling() -> str:
    """The one of CHOICES that the variable JAXPP_CHECK_ARGUMENTS holds. Raises ValueError for another one."""
    found = os.environ.get("JAXPP_CHECK_ARGUMENTS", CHOICES[0])
    if found not in CHOICES:
        raise ValueError(f"JAXPP_CHECK_ARGUMENTS is {found!r}; give one of {', '.join(CHOICES)}")
    return found


def digest(value: np.ndarray[Any, Any], dtype: np.dtype[Any], step: int, whole: bool = False) -> int:
    """32 bits that depend on the numbers of an array, and not on how they lie in memory.

    dtype: what the array will be converted to.
    step: of a large array it chooses the elements.
    whole: take all elements of a large array, too.
    """
    if value.size > LARGE and not whole:
        stride = value.size // SAMPLES
        start = step * PRIME % stride  # after `stride` steps each element has been read
        if value.flags.c_contiguous:
            value = value.reshape(-1)[start::stride]
        else:
            value = value[np.unravel_index(np.arange(start, value.size, stride), value.shape)]
    return zlib.crc32(value.astype(dtype, copy=False).tobytes())
