"""The values that costs are made of, numbers and lists of numbers, and their checks.

All functions raise `ScheduleError` for a wrong value; `what` names the value in the message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias, cast

from jaxpp.schedules.errors import ScheduleError, is_bool
from jaxpp.schedules.model.kinds import KIND_NAME

PerStage: TypeAlias = float | Sequence[float]
"""A number for one microbatch on a whole mesh, which its stages share, or a list with a number per stage."""

PerMesh: TypeAlias = float | Sequence[float]
"""A number for every mesh, or a list with a number per mesh."""

PerPair: TypeAlias = float | Sequence[Sequence[float]]
"""A number for every pair of meshes, or rows[from mesh][to mesh]."""


def positive(value: object, what: str, *, infinite: bool = False) -> float:
    """Returns `value` as a number above 0.

    Raises:
        ScheduleError: when it is not one.
    """
    return number(value, what, positive=True, infinite=infinite)


def number(value: object, what: str, *, positive: bool, infinite: bool = False) -> float:
    """Returns `value` as a finite number, above 0 or at least 0; with `infinite`, also infinity.

    Raises:
        ScheduleError: when it is not one.
    """
    try:
        found = float(cast("float", value)) if not (isinstance(value, (str, bytes)) or is_bool(value)) else math.nan
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if (0 < found if positive else 0 <= found) and (found < math.inf or infinite):
        return found
    raise ScheduleError(f"{what} must be {'a positive number' if positive else '0 or more'}, found {value!r}")


def per_stage(value: object, what: str, *, positive: bool) -> PerStage:
    """Returns a number, or a tuple with a number per stage."""
    if not is_list(value):
        return number(value, what, positive=positive)
    numbers = list(cast("Sequence[object]", value))
    if not numbers:
        raise ScheduleError(f"{what}: expected a number, or one per stage, found none")
    return tuple(number(each, f"{what} of stage {stage}", positive=positive) for stage, each in enumerate(numbers))


def per_pair(value: object, what: str, *, positive: bool) -> PerPair:
    """Returns a number, or a matrix of numbers [from mesh][to mesh]."""
    if not is_list(value):
        return number(value, what, positive=positive, infinite=positive)
    rows = list(cast("Sequence[object]", value))
    matrix: list[tuple[float, ...]] = []
    for start, row in enumerate(rows):
        cells = list(cast("Sequence[object]", row)) if is_list(row) else []
        if len(cells) != len(rows):
            raise ScheduleError(f"{what}: expected a row and a column per mesh, found row {start} of {row!r}")
        # A mesh sends nothing to itself, so the diagonal is not used.
        matrix.append(
            tuple(
                number(cell, f"{what} from mesh {start} to mesh {end}", positive=positive, infinite=positive)
                if start != end
                else number(cell, f"{what} of mesh {start} to itself", positive=False, infinite=True)
                for end, cell in enumerate(cells)
            )
        )
    return tuple(matrix)


def per_mesh(value: object, what: str, *, infinite: bool) -> PerMesh:
    """Returns a number above 0, or a tuple with such a number per mesh."""
    if not is_list(value):
        return number(value, what, positive=True, infinite=infinite)
    return tuple(
        number(each, f"{what} of mesh {mesh}", positive=True, infinite=infinite)
        for mesh, each in enumerate(cast("Sequence[object]", value))
    )


def per_fused(value: object) -> float | dict[str, float]:
    """Returns a number, or a number for each pair of kinds; the kinds of a pair are sorted by name."""
    if not isinstance(value, Mapping):
        return number(value, "fused", positive=True)
    found: dict[str, float] = {}
    for name, factor in cast("Mapping[object, object]", value).items():
        kinds = str(name).split("+")
        if len(kinds) != 2 or not all(map(KIND_NAME.fullmatch, kinds)):
            raise ScheduleError(f"fused: expected pairs of kinds, such as 'forward+backward', found {name!r}")
        pair = "+".join(sorted(kinds))
        if pair in found:
            raise ScheduleError(f"fused: {name!r} is given twice: the order of a pair does not matter")
        found[pair] = number(factor, f"fused {name}", positive=True)
    return found


def factors(value: object) -> tuple[float, ...]:
    """Returns the size of each microbatch."""
    if not is_list(value):
        raise ScheduleError(f"microbatches must be a size for each microbatch, found {value!r}")
    sizes = cast("Sequence[object]", value)
    return tuple(number(size, f"the size of microbatch {at}", positive=True) for at, size in enumerate(sizes))


def shares(value: object, what: str = "slices") -> tuple[float, ...] | tuple[tuple[float, ...], ...]:
    """Returns the share of each slice in a microbatch, or a tuple of such shares for each stage.

    An empty tuple means equal slices. The shares of a microbatch must add up to 1.
    """
    given = list(cast("Sequence[object]", value)) if is_list(value) else []
    if given and all(map(is_list, given)):
        rows = [
            _of_slices(cast("Sequence[object]", row), f" in stage {stage}", positive=False)
            for stage, row in enumerate(given)
        ]
        if any(not math.isclose(sum(row), 1, rel_tol=1e-6) or len(row) != len(rows[0]) for row in rows):
            raise ScheduleError(f"{what} must be parts that make 1 together, as many for each stage, found {value!r}")
        return tuple(rows)
    found = _of_slices(given, "", positive=True)
    if not is_list(value) or (found and not math.isclose(sum(found), 1, rel_tol=1e-6)):
        raise ScheduleError(f"{what} must be parts of a microbatch that make 1 together, found {value!r}")
    return found


def _of_slices(row: Sequence[object], where: str, *, positive: bool) -> tuple[float, ...]:
    return tuple(number(each, f"the share of slice {at}{where}", positive=positive) for at, each in enumerate(row))


def of_stages(slices: tuple[float, ...] | tuple[tuple[float, ...], ...], stages: int) -> tuple[tuple[float, ...], ...]:
    """Returns the share of each slice for each stage; `slices` may give one row for all stages."""
    rows = tuple(each for each in slices if isinstance(each, tuple))
    return rows or (tuple(each for each in slices if not isinstance(each, tuple)),) * stages


def is_list(value: object) -> bool:
    """Whether a value is a list, a tuple, or another object with a length and positions, such as a NumPy array."""
    has_length = hasattr(value, "__len__") and getattr(value, "shape", True) != ()
    return has_length and not isinstance(value, (str, bytes, Mapping, Set))
