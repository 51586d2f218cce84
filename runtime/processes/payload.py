"""The arrays that one transfer between two processes carries."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpp import _compat
from jaxpp.runtime.processes.wire import SMALL, WireError


class Payload:
    """The arrays that one transfer carries: their types, and their bytes one after the other.

    types: of each of its arrays, all on one device each, as `jax.ShapeDtypeStruct`s.
    size: the bytes of all of them.
    is_on_cpu: whether all of them are on CPU devices.
    is_small: whether it goes over a wire, where there is one. Both ends come to the same answer.
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
        """The arrays on their devices, given the bytes of one after the other. Raises WireError for another length."""
        if len(data) != self.size:
            raise WireError(f"{len(data)} bytes came, {self.size} were expected")
        with _compat.OwnTransfers():
            return [place(np.ndarray(shape, dtype, data, start)) for shape, dtype, start, place in self._layout]
