"""Random inputs for a module, and the comparison of the results of two modules."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

HostArray = npt.NDArray[Any]

# The allowed difference, relative to an array's largest value, by the coarsest type in which the module computes.
_TOLERANCES = {"xf8": 0.2, "xbf16": 2e-2, "xf16": 5e-3, "xf32": 1e-5, "<f8": 0.2, "<bf16": 2e-2, "<f16": 5e-3}
_NOISE_FACTOR = 8
_MOST_NOISE = 100
"""The most that rounding may add, in multiples of the tolerance. A result that moves further was not compared."""
_FINEST = 1e-5


def coarsest_tolerance(types: Iterable[str]) -> float:
    """Returns the relative tolerance for a module whose values have these types."""
    seen = set(types)
    found = [tolerance for mark, tolerance in _TOLERANCES.items() if any(mark in type_ for type_ in seen)]
    return max(found, default=_FINEST)


def random_inputs(
    shapes: Mapping[int, tuple[tuple[int, ...], "np.dtype[Any]"]], seed: int, *, positive: bool = False
) -> dict[int, HostArray]:
    """Makes an array for each shape and type: integers from 0 to 7, booleans, normal numbers or their absolute values.

    Arrays of two and more dimensions are divided by the square root of the longest dimension. Weights of that size keep
    the activations out of saturation, so that no gradient vanishes.
    """
    generator = np.random.default_rng(seed)
    return {number: _random(generator, *shapes[number], positive=positive) for number in sorted(shapes)}


def _random(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: "np.dtype[Any]", *, positive: bool
) -> HostArray:
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if is_integer(dtype):
        return generator.integers(0, 2 if dtype.name in ("int2", "uint2") else 8, shape).astype(dtype)
    scale = max(shape) ** -0.5 if len(shape) > 1 and max(shape) else 1.0
    numbers = generator.standard_normal(shape) * scale
    if positive:
        return np.abs(numbers).astype(dtype)
    if dtype.kind == "c":
        return (numbers + 1j * generator.standard_normal(shape) * scale).astype(dtype)
    return np.asarray(numbers, dtype)


def enlarged(inputs: Mapping[int, HostArray]) -> dict[int, HostArray]:
    """Returns the inputs with arrays of floating point numbers four times as large, so that gradients are clipped."""
    return {
        number: value if not is_inexact(value.dtype) or not value.ndim else value * value.dtype.type(4)
        for number, value in inputs.items()
    }


def is_integer(dtype: "np.dtype[Any]") -> bool:
    """Whether a type holds integers; also for types that numpy itself does not know, such as int4."""
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def is_inexact(dtype: "np.dtype[Any]") -> bool:
    """Whether a type holds numbers that are rounded: neither integers nor booleans."""
    return not is_integer(dtype) and dtype.kind != "b"


def perturbed(inputs: Mapping[int, HostArray], seed: int) -> dict[int, HostArray]:
    """Returns the inputs with about the last bit of each float32 or float64 number changed at random."""
    generator = np.random.default_rng(seed + 1)
    return {n: nudged(value, generator) if value.dtype.kind == "f" else value for n, value in inputs.items()}


def perturbed_narrow(inputs: Mapping[int, HostArray], seed: int) -> dict[int, HostArray]:
    """Returns the inputs with the last bit of each number changed whose type numpy lacks, such as bfloat16.

    Empty if there is none. Such a change is as large as the rounding of any operation in this type.
    """
    generator = np.random.default_rng(seed + 1)
    narrow = {n: value for n, value in inputs.items() if value.dtype.kind == "V" and is_inexact(value.dtype)}
    return {**inputs, **{n: nudged(value, generator) for n, value in narrow.items()}} if narrow else {}


def nudged(value: HostArray, generator: np.random.Generator) -> HostArray:
    """Returns an array of floating point numbers with about the last bit of each of them changed at random."""
    eps = float(ml_dtypes.finfo(value.dtype).eps)
    return (value.astype(np.float64) * (1 + eps * generator.choice((-1, 1), value.shape))).astype(value.dtype)


@dataclass(frozen=True)
class Expected:
    """A result of the first module, and how far rounding moves it.

    noise: the largest difference from the result of inputs with changed last bits, where both are finite.
    """

    value: HostArray
    noise: float

    @classmethod
    def of(cls, value: HostArray, moved: HostArray, narrow: HostArray | None = None) -> "Expected":
        """Makes it from the result, and from the results of the perturbed inputs.

        narrow: the result of `perturbed_narrow`. Its difference counts once, and not `_NOISE_FACTOR` times.
        """
        if not is_inexact(value.dtype):
            return cls(value, 0.0)
        wide, other = _widen(value), _widen(moved)
        finite = np.isfinite(wide) & np.isfinite(other)
        noise = _largest(wide[finite] - other[finite])
        return cls(value, noise if narrow is None else max(noise, cls.of(value, narrow).noise / _NOISE_FACTOR))

    @property
    def scale(self) -> float:
        """The largest finite number of the result."""
        wide = _widen(self.value)
        return _largest(wide[np.isfinite(wide)])

    def is_compared(self, tolerance: "Tolerance") -> bool:
        """Whether a wrong result would show: the expected one is finite somewhere, and rounding does not hide it."""
        if not is_inexact(self.value.dtype) or not self.value.size:
            return True
        finite = np.isfinite(_widen(self.value)).any()
        return bool(finite) and tolerance.noise(self) <= _MOST_NOISE * tolerance.relative * self.scale

    @property
    def is_finite(self) -> bool:
        """Whether all of its numbers are finite; true for an empty array."""
        return bool(np.isfinite(_widen(self.value)).all())


@dataclass(frozen=True)
class Tolerance:
    """The difference that two results may have.

    relative: the allowed difference, relative to the array's largest value.
    exact: whether rounding allows no further difference.
    """

    relative: float
    exact: bool = False

    def noise(self, expected: Expected) -> float:
        """Returns the difference that rounding adds."""
        return 0.0 if self.exact else _NOISE_FACTOR * expected.noise

    def allowed(self, expected: Expected) -> float:
        """Returns the largest allowed difference from `expected`."""
        return self.relative * expected.scale + self.noise(expected)


def same_bits(one: HostArray, other: HostArray) -> bool:
    """Whether two arrays have the same type, shape and bytes."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def compare(wanted: Expected, actual: HostArray, tolerance: Tolerance) -> tuple[float, str]:
    """Returns the largest difference, relative to the largest expected value, and an error message or "".

    The difference is infinite if one number is finite and the other is not. Where all expected values are 0, it is not
    relative. For booleans and integers it is 0.0 or 1.0: whether any element differs.
    """
    expected = wanted.value
    if not is_inexact(expected.dtype):
        wrong = expected != actual
        if not wrong.any():
            return 0.0, ""
        first = np.unravel_index(np.argmax(wrong), expected.shape)
        return 1.0, f"differs in {np.count_nonzero(wrong)} of {wrong.size} numbers, {_at(first, expected, actual)}"
    wide, other = _widen(expected), _widen(actual)
    finite = np.isfinite(wide)
    nan = np.isnan(wide)
    special = (finite != np.isfinite(other)) | (nan != np.isnan(other)) | (~finite & ~nan & (wide != other))
    if special.any():
        first = np.unravel_index(np.argmax(special), expected.shape)
        return np.inf, f"is NaN or infinite at other places, {_at(first, expected, actual)}"
    with np.errstate(invalid="ignore"):
        distance = np.where(finite, np.abs(wide - other), 0.0)
    worst, scale, allowed = float(distance.max(initial=0.0)), wanted.scale, tolerance.allowed(wanted)
    if worst > allowed:
        first = np.unravel_index(np.argmax(distance), expected.shape)
        return worst, f"differs by {worst:.3g}, {_at(first, expected, actual)}; allowed {allowed:.2g}"
    return worst / scale if scale else worst, ""


def _largest(numbers: HostArray) -> float:
    return float(np.abs(numbers).max(initial=0.0))


def _widen(value: HostArray) -> HostArray:
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def _at(index: tuple[Any, ...], expected: HostArray, actual: HostArray) -> str:
    place = f" at [{', '.join(str(int(i)) for i in index)}]" if index else ""
    return f"{expected[index]:.6g} before and {actual[index]:.6g} after{place}"


@dataclass(frozen=True)
class Difference:
    """A result that differs from that of the first module.

    Attributes:
        title: the name of the result.
        problem: the difference in words: its size, its place, and the allowed one.
        number: the number of the result; None if the whole module has the problem.
        size: the largest difference; infinite if only one of the two numbers is finite.
        line: the user's line of the problem, where the whole module has it, or "".
    """

    title: str
    problem: str
    number: int | None = None
    size: float = math.inf
    line: str = ""

    def __str__(self) -> str:
        return f"{self.title} {self.problem}"
