"""Kinds of tasks, and what each kind needs before it can run.

The dependences of a pipeline are a small table: one row per kind, one entry per thing it waits for. A user's own
operation (offload, recompute, ...) is one more row, and a row of the same name replaces a built-in one:

    offload = Kind.parse("offload: forward")
    reload = Kind.parse("reload: offload")
    backward = Kind.parse("backward: forward backward|input_grad@+1 ?reload")    # waits for its reload, if there is one
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from jaxpp.schedules.errors import ScheduleError

_NAME: Final = r"[a-z]+(?:_[a-z]+)*"
_NEED: Final = re.compile(rf"(?P<optional>\??)(?P<kinds>{_NAME}(?:\|{_NAME})*)(?:@(?P<offset>[+-][0-9]{{1,9}}))?")
_KIND: Final = re.compile(rf"(?P<name>{_NAME}) *:(?P<needs>.*)")

KIND_NAME: Final = re.compile(_NAME)
"""Lower-case words: no digits, so that a cell such as `3offload12` reads in one way."""

LETTERS: Final = {"forward": "F", "backward": "B", "input_grad": "I", "weight_grad": "W"}
"""Letters of the built-in kinds, as in PyTorch's pipelining tables; a user's kind stands under its full name."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a task waits for: a task of the same microbatch, `offset` stages further on.

    Attributes:
        kinds: any one of these will do; the first that the schedule has is taken.
        offset: the stage of the needed task, relative to the one that waits; past either end of the pipeline nothing
            is needed.
        optional: waited for where the schedule has it; otherwise its absence is an error.
    """

    kinds: tuple[str, ...]
    offset: int = 0
    optional: bool = False

    def __str__(self) -> str:
        """`?backward|input_grad@+1`: optional, alternatives, offset."""
        offset = f"@{self.offset:+d}" if self.offset else ""
        return f"{'?' if self.optional else ''}{'|'.join(self.kinds)}{offset}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task: its name and what such a task needs.

    Raises:
        ScheduleError: a name is not in lower case, or an offset is not a number.
    """

    name: str
    needs: tuple[Need, ...] = ()

    def __post_init__(self) -> None:
        if not KIND_NAME.fullmatch(self.name):
            raise ScheduleError(
                f"the kind of a task must be a name in lower case, such as 'offload', found {self.name!r}"
            )
        for need in self.needs:
            _parse_need(str(need))

    def __str__(self) -> str:
        """`backward: forward backward|input_grad@+1`, which `Kind.parse` reads."""
        return " ".join([f"{self.name}:", *map(str, self.needs)])

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Read `name: need need ...`.

        Raises:
            ScheduleError: the text is not of that form.
        """
        match = _KIND.fullmatch(text.strip())
        if match is None:
            raise ScheduleError(f"cannot read kind {text!r}: expected 'name: need need ...', the name in lower case")
        return cls(match["name"], tuple(_parse_need(word) for word in match["needs"].split()))


def _parse_need(word: str) -> Need:
    match = _NEED.fullmatch(word)
    if match is None:
        raise ScheduleError(f"cannot read need {word!r}: expected 'kind', 'kind|kind', 'kind@+1' or '?kind'")
    return Need(tuple(match["kinds"].split("|")), int(match["offset"] or 0), bool(match["optional"]))


BUILTIN_KINDS: Final = tuple(
    map(
        Kind.parse,
        (
            "forward: forward@-1",
            "backward: forward backward|input_grad@+1",
            "input_grad: forward backward|input_grad@+1",
            "weight_grad: input_grad",
        ),
    )
)
"""Activations flow up the stages, gradients down; a weight gradient waits for the input gradient of its own stage
(Zero Bubble, arXiv 2401.10241, section 2)."""
