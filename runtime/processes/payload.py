"""The arrays that one transfer between two processes carries."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpp import _compat
from jaxpp.runtime.processes.wire import SMALL, WireError


class Payload:
    """The arrays that one transfer carries: their types, and their bytes in sequence.

    types: the types of the arrays, as `jax.ShapeDtypeStruct`s on one device each.
    size: the bytes of all arrays together.
    is_on_cpu: whether all arrays are on CPU devices.
    is_small: whether the transfer goes over a wire, if there is one. Both ends get the same answer.
    """

    def __init__(self, types: Sequence[Any]) -> None:
        self.types = list(types)
        sizes = [math.prod(each.shape) * each.dtype.itemsize for each in types]
        self.size = sum(sizes)
        devices = [device for each in types for device in each.sharding.device_set]
        self.is_on_cpu = all(device.platform == "cpu" for device in devices)
        self.is_small = self.size <= SMALL and self.is_on_cpu
        starts = itertools.accumulate(sizes[:-1], initial=0)
        self._layout = [
            (each.shape, each.dtype, start, _compat.placer(each, each.sharding))
            for each, start in zip(types, starts, strict=True)
        ]

    def unpack(self, data: bytes) -> list[Any]:
        """Makes the arrays on their devices from their bytes in sequence. Raises WireError for a wrong length."""
        if len(data) != self.size:
            raise WireError(f"{len(data)} bytes came, {self.size} were expected")
        with _compat.OwnTransfers():
            return [place(np.ndarray(shape, dtype, data, start)) for shape, dtype, start, place in self._layout]
