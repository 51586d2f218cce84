"""Records of runs: the arguments, the results and the values of the tasks of a program, in memory and in files."""

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import ml_dtypes
import numpy as np

from jaxpp.ir.errors import one_line
from jaxpp.ir.program import TaskName
from jaxpp.validation.compare import Difference, Expected, HostArray, Tolerance, coarsest_tolerance, compare
from jaxpp.validation.observed import Observed, WrongValue, first_wrong

_ABOUT = "about"
_FORMAT = 1
"""The version of the files."""


@dataclass(frozen=True)
class Record:
    """One run of a program.

    Attributes:
        arguments: the arguments of the step by number.
        results: its results by number.
        values: the results of its tasks, in the order in which they were made.
        noise: for each result, how far rounding moves it.
        relative: the allowed difference, relative to an array's largest value.
    """

    arguments: Mapping[int, HostArray]
    results: Mapping[int, HostArray]
    values: Sequence[Observed]
    noise: Mapping[int, float]
    relative: float

    @classmethod
    def of(
        cls,
        arguments: Mapping[int, HostArray],
        results: Mapping[int, HostArray],
        moved: Mapping[int, HostArray],
        values: Sequence[Observed],
        types: Iterable[str],
    ) -> "Record":
        """Makes a record. moved: the results of arguments with changed last bits. types: those of the module."""
        noise = {number: Expected.of(value, moved[number]).noise for number, value in results.items()}
        return cls(arguments, results, values, noise, coarsest_tolerance(types))

    def differences(self, other: "Record", tolerance: Tolerance) -> list[Difference]:
        """Returns the results of another run that differ. Raises ValueError if its arguments or results are others."""
        for what, own, others in (
            ("argument", self.arguments, other.arguments),
            ("result", self.results, other.results),
        ):
            for number in sorted({*own, *others}):
                shapes = [
                    (each[number].dtype.name, each[number].shape) if number in each else None for each in (own, others)
                ]
                if shapes[0] != shapes[1]:
                    raise ValueError(f"{what} {number} is {_described(shapes[1])}, expected {_described(shapes[0])}")
        if not all(own.tobytes() == other.arguments[number].tobytes() for number, own in self.arguments.items()):
            raise ValueError("the arguments have other numbers: record both runs with the same arguments and --seed")
        found: list[Difference] = []
        for number, value in self.results.items():
            size, problem = compare(Expected(value, self.noise[number]), other.results[number], tolerance)
            if problem:
                found.append(Difference(f"result {number}", problem, number, size))
        return found

    def wrong_value(self, other: "Record", tolerance: Tolerance) -> WrongValue | None:
        """Returns the first value of another run that differs; None if the values can't be matched."""
        return first_wrong(self.values, other.values, tolerance)

    def to_bytes(self) -> bytes:
        """Returns the contents of its file, an archive of numpy."""
        values = {f"value{number}": each.value for number, each in enumerate(self.values)}
        arrays = {f"arg{number}": value for number, value in self.arguments.items()}
        arrays |= {f"result{number}": value for number, value in self.results.items()} | values
        about = {
            "format": _FORMAT,
            "relative": self.relative,
            "noise": {str(number): each for number, each in self.noise.items()},
            "types": {name: value.dtype.name for name, value in arrays.items()},
            "values": [_fields(each) for each in self.values],
        }
        return write_npz({**arrays, _ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8)})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Record":
        """Reads the contents of a file. Raises ValueError for any other data."""
        try:
            arrays = read_npz(io.BytesIO(data))
        except ValueError as error:
            raise ValueError(f"it is no record of a run: {error}") from None
        try:
            about = json.loads(arrays.pop(_ABOUT).tobytes())
            if about["format"] != _FORMAT:
                raise ValueError(f"it has format {about['format']}, expected {_FORMAT}: record it again")
            arrays = {name: value.view(_dtype(about["types"][name])) for name, value in arrays.items()}
            values = [_observed(each, arrays.pop(f"value{number}")) for number, each in enumerate(about["values"])]
            given, results = (
                {int(name.removeprefix(kind)): value for name, value in arrays.items() if name.startswith(kind)}
                for kind in ("arg", "result")
            )
            noise = {int(number): each for number, each in about["noise"].items()}
            return cls(given, results, values, noise, about["relative"])
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"it is no record of a run: {type(error).__name__}: {error}") from None


def is_record(data: bytes) -> bool:
    """Whether a file is an archive, as a record is, and no module."""
    return data.startswith(b"PK")


def write_npz(arrays: Mapping[str, Any]) -> bytes:
    """Returns the contents of a file of `numpy.savez` with named arrays."""
    written = io.BytesIO()
    named: dict[str, Any] = {**arrays}  # numpy's stub takes the names for options
    np.savez(written, **named)
    return written.getvalue()


def read_npz(file: str | IO[bytes]) -> dict[str, HostArray]:
    """Reads the arrays of a file of `numpy.savez`. Raises ValueError for any other file."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            return {name.removesuffix(".npy"): np.lib.format.read_array(archive.open(name)) for name in names}
    except Exception as error:  # of any kind: zipfile, the decompressors and numpy meet whatever bytes they find
        raise ValueError(one_line(str(error))) from None


def _described(shape: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if shape is None else f"{shape[0]}{list(shape[1])}"


def _dtype(name: str) -> "np.dtype[Any]":
    """Returns a type by its name; numpy's files do not name the types of JAX, such as bfloat16."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _fields(each: Observed) -> list[Any]:
    return [each.place, each.task, each.unit, sorted(each.behind), each.operation, each.line, each.words, each.noise]


def _observed(fields: Sequence[Any], value: HostArray) -> Observed:
    place, task, unit, behind, operation, line, words, noise = map(_frozen, fields)
    return Observed(
        place, TaskName(*task) if task else None, unit, value, frozenset(behind), operation, line, words, noise=noise
    )


def _frozen(value: Any) -> Any:
    """Returns tuples for the lists that JSON has instead."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
