"""Applies a memory limit to a compiled program, whose tasks also need memory for temporaries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.program.verify_program import SMALLER, limits_of, worst
from jaxpp.ir.errors import LimitError, ProgramError

_MOST_COMPILES = 4
"""The most programs that are compiled in the search for one whose temporaries fit."""

_Made = TypeVar("_Made")


def compile_within(
    limits: str,
    make: Callable[[str], _Made],
    memory: Callable[[_Made], tuple[Sequence[int], Sequence[int | None]]],
    *,
    may_choose: bool = True,
    location: ir.Location | None = None,
    hint: str = SMALLER,
) -> _Made:
    """Compiles a program; while its temporaries don't fit, compiles again within limits that leave room for them.

    At most `_MOST_COMPILES` programs are compiled. The last one is the program that needs the least memory without its
    temporaries. The error reports the program with the smallest excess.

    Args:
        limits: the limits of the devices, as the option of `verify-program`; empty for none.
        make: compiles a program that is within such limits without its temporaries.
        memory: returns the bytes that a program needs on each mesh, without temporaries and with them. The latter are
            None for a mesh that this process does not compile for.
        may_choose: whether another limit may give another program.
        location: the position of the user's loop over microbatches.
        hint: the advice for a program that needs too much.

    Raises:
        LimitError: a mesh needs more than its limit.
    """
    made = make(limits)
    if not limits:
        return made
    tried, is_least = list[_Needs](), not may_choose
    while True:
        needs = _Needs(limits, *memory(made))
        if needs.fits:
            return made
        tried.append(needs)
        if is_least or None in needs.needed:  # a process that does not know all needs can't choose
            break
        try:
            made, is_least = _made(make, needs.with_room if len(tried) < _MOST_COMPILES - 1 else "1")
        except ProgramError:
            break
    raise min(tried, key=lambda each: each.worst).refusal(location, hint, is_least=may_choose and is_least)


def _made(make: Callable[[str], _Made], limits: str) -> tuple[_Made, bool]:
    """Returns the program within these limits, and False. If no program is, returns the nearest program, and True."""
    try:
        return make(limits), False
    except LimitError as error:
        if not error.least:
            raise
        return make(" ".join(map(str, error.least))), True


@dataclass(frozen=True)
class _Needs:
    """The memory that a compiled program needs on each mesh, and the limits.

    Attributes:
        limits: the limits of the devices, as the option of `verify-program`.
        peaks: the bytes that the program needs on each mesh without temporaries.
        needed: the bytes with temporaries; None for a mesh that other processes compile for.
    """

    limits: str
    peaks: Sequence[int]
    needed: Sequence[int | None]

    @property
    def fits(self) -> bool:
        """Whether each known mesh is within its limit."""
        return self.worst[0] <= 0

    @property
    def with_room(self) -> str:
        """The limits for a program without temporaries that leave room for the temporaries of this one."""
        meshes = zip(self._each, self.needed, self.peaks, strict=True)
        return " ".join(str(max(limit + peak - (need or 0), 1)) for limit, need, peak in meshes)

    @property
    def worst(self) -> tuple[float, int]:
        """The most bytes by which a mesh exceeds its limit, and the index of this mesh."""
        return worst([need or 0 for need in self.needed], self._each)

    def refusal(self, location: ir.Location | None, hint: str, *, is_least: bool) -> LimitError:
        """Returns the error for the mesh that exceeds its limit most; `is_least`: no other program needs less."""
        _, mesh = self.worst
        needed = self.needed[mesh] or 0
        return LimitError(
            f"mesh {mesh} needs {'at least ' if is_least else ''}{needed:,} bytes on each device, "
            f"{needed - self.peaks[mesh]:,} of them for temporaries of its compiled tasks; its memory limit is "
            f"{self._each[mesh]:,}",
            location=location,
            hint=hint,
            least=self.peaks,
        )

    @property
    def _each(self) -> list[int]:
        return limits_of(self.limits, len(self.peaks))
