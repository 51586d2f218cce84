"""A memory limit once tasks are compiled: their temporaries count too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.program.verify_program import SMALLER
from jaxpp.ir.errors import LimitError, ProgramError

_MOST_COMPILES = 4
"""How often a program is compiled to find what leaves room for the temporaries of its tasks."""

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
    """Compile a program; where its temporaries are too much, again with limits that leave room for them.

    The last that is tried is the one that needs the least without its temporaries: it is what a refusal speaks of.

    Args:
        limits: of the devices, as the option of `verify-program`; empty: none.
        make: compiles the program that is within such limits without its temporaries.
        memory: what one needs of each mesh, without temporaries and with them; None of one that is not known.
        may_choose: whether another limit may give another program.
        location: where the user wrote the loop over microbatches.
        hint: what to do about a program that needs too much.

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
        if is_least or None in needs.needed:  # a process that runs nothing of it can't choose
            break
        try:
            made, is_least = _made(make, needs.with_room if len(tried) < _MOST_COMPILES - 1 else "1")
        except ProgramError:
            break
    raise min(tried, key=lambda each: each.worst).refusal(location, hint, is_least=may_choose and is_least)


def _made(make: Callable[[str], _Made], limits: str) -> tuple[_Made, bool]:
    """What is within these limits; or what comes nearest to them, and True."""
    try:
        return make(limits), False
    except LimitError as error:
        if not error.least:
            raise
        return make(" ".join(map(str, error.least))), True


@dataclass(frozen=True)
class _Needs:
    """What a compiled program needs of each mesh, where it is limited.

    Attributes:
        limits: of the devices, as the option of `verify-program`.
        peaks: what the program needs without temporaries.
        needed: with them; None of a mesh that other processes compile for.
    """

    limits: str
    peaks: Sequence[int]
    needed: Sequence[int | None]

    @property
    def fits(self) -> bool:
        """Whether each known mesh is within its limit."""
        return all(need is None or need <= limit for need, limit in zip(self.needed, self._each, strict=False))

    @property
    def with_room(self) -> str:
        """The limits for the program alone with which there is room for these temporaries."""
        temporaries = [(need or 0) - peak for need, peak in zip(self.needed, self.peaks, strict=True)]
        idle = [0] * (len(self._each) - len(temporaries))
        pairs = zip(self._each, [*temporaries, *idle], strict=True)
        return " ".join(str(max(limit - size, 1)) for limit, size in pairs)

    @property
    def worst(self) -> tuple[int, int]:
        """The most that a mesh needs above its limit, and the number of this mesh."""
        pairs = zip(self.needed, self._each, strict=False)
        return max(((need or 0) - limit, mesh) for mesh, (need, limit) in enumerate(pairs))

    def refusal(self, location: ir.Location | None, hint: str, *, is_least: bool) -> LimitError:
        """The error about the mesh that needs most above its limit; `is_least`: where nothing needs less."""
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
        words = [int(word) for word in self.limits.split()]
        return words * len(self.peaks) if len(words) == 1 else words
