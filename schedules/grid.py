"""The text form: a rank x time grid.

    schedule: 1f1b
    placement: 0 1
    mesh 0: 0F0 0F1 .   0B0 0F2 0B1 .   0B2
    mesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2

One row per mesh, one column per time slot of a run in which every cell takes one slot. A cell is
`<stage><kind><microbatch>` with F, B (full backward), I (input gradient), W (weight gradient) or a user's kind written
out; tasks fused into one are joined by `+`; `.` is a bubble, there for the eye alone. `placement:` gives the mesh of
each stage. A line `kind NAME: ...` declares a user's kind and what it needs (see `jaxpp.schedules.kinds`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jaxpp.schedules.errors import ScheduleError, marked
from jaxpp.schedules.graph import NEVER, Graph, sweep
from jaxpp.schedules.kinds import LETTERS, Kind
from jaxpp.schedules.task import Placement, Task

_CELL: Final = re.compile(r"([0-9]{1,9})([FBIW]|[a-z]+(?:_[a-z]+)*)([0-9]{1,9})")
_HOMES: Final = re.compile(r"[0-9]{1,9}(\+[0-9]{1,9})*")
_ROW: Final = re.compile(r"mesh +([0-9]{1,9})")
_KINDS: Final = {letter: kind for kind, letter in LETTERS.items()}
_BUBBLE: Final = "."


@dataclass(frozen=True, slots=True)
class Grid:
    """What stands in the text of a schedule; `rows` holds the cells of each mesh."""

    name: str
    placement: Placement
    rows: list[list[tuple[Task, ...]]]
    kinds: list[Kind]


def print_grid(name: str, graph: Graph, kinds: Sequence[Kind]) -> str:
    """The text of a schedule; one that deadlocks is printed too, with what never runs at the end of its row."""
    rows = _time_slots(graph)
    widths = [0] * max(map(len, rows))
    for row in rows:
        widths[: len(row)] = map(max, map(len, row), widths)
    lines = [f"schedule: {name}", f"placement: {graph.placement}", *(f"kind {kind}" for kind in kinds)]
    digits = len(str(len(rows) - 1))
    for mesh, row in enumerate(rows):
        cells = " ".join(map(str.ljust, row, widths))
        lines.append(f"mesh {mesh:{digits}}: {cells}".rstrip())
    return "\n".join(lines)


def _time_slots(graph: Graph) -> list[list[str]]:
    """For each mesh what stands in each time slot; a fused cell takes one slot as a whole."""
    starts, _ = sweep(graph, [min(span, 1) for span in graph.spans])
    rows: list[list[str]] = []
    number = 0
    for row in graph.cells:
        slots: list[str] = []
        for cell in row:
            if starts[number] != NEVER:
                slots += [_BUBBLE] * (int(starts[number]) - len(slots))
            slots.append("+".join(map(str, cell)))
            number += len(cell)
        rows.append(slots)
    return rows


def parse_grid(text: str) -> Grid:
    """Read what `print_grid` prints; blank lines, indentation and the number of blanks and bubbles do not matter.

    Raises:
        ScheduleError: the line, the reason, and in a row the cell marked.
    """
    names: list[str] = []
    placements: list[Placement] = []
    kinds: list[Kind] = []
    rows: list[list[tuple[Task, ...]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if not line.isascii():
                culprit = next(letter for letter in line if not letter.isascii())
                raise ScheduleError(f"text must be ASCII, found {culprit!r}")
            key, _, value = line.strip().partition(":")
            if key == "schedule" and not names:
                names.append(value.strip())
            elif key == "placement" and not placements:
                placements.append(_parse_placement(value))
            elif key.startswith("kind "):
                kinds.append(Kind.parse(f"{key.removeprefix('kind ')}:{value}"))
            elif match := _ROW.fullmatch(key):
                if int(match[1]) != len(rows):
                    raise ScheduleError(f"expected the row of mesh {len(rows)}, found that of mesh {match[1]}")
                rows.append(_parse_row(f"{key}:", value.split()))
            elif line.strip():
                expected = "expected 'schedule:' or 'placement:' (each once), 'kind NAME:' or 'mesh NUMBER:'"
                raise ScheduleError(f"{expected}, found {line.strip()[:40]!r}")
        except ScheduleError as error:
            raise ScheduleError(f"line {number}: {error}") from None
    if not names or not placements:
        raise ScheduleError(f"the text of a schedule needs a line '{'placement' if names else 'schedule'}: ...'")
    return Grid(names[0], placements[0], rows, kinds)


def _parse_placement(value: str) -> Placement:
    words = value.split()
    for stage, word in enumerate(words):
        if not _HOMES.fullmatch(word):
            reason = f"stage {stage} must have a mesh number, or several joined by '+', found {word[:40]!r}"
            raise ScheduleError(f"{reason}\n{marked('placement:', words, stage)}")
    return Placement(tuple(tuple(map(int, word.split("+"))) for word in words))


def _parse_row(label: str, words: list[str]) -> list[tuple[Task, ...]]:
    cells: list[tuple[Task, ...]] = []
    for index, word in enumerate(words):
        if word == _BUBBLE:
            continue
        matches = [_CELL.fullmatch(part) for part in word.split("+")]
        tasks = tuple(Task(_KINDS.get(m[2], m[2]), int(m[1]), int(m[3])) for m in matches if m)
        if len(tasks) < len(matches):
            reason = f"cannot read {word[:40]!r}: a cell is <stage><kind><microbatch>, like 0F3, 2W1, or fused 0F3+1B2"
            raise ScheduleError(f"{reason}\n{marked(label, words, index)}")
        cells.append(tasks)
    return cells
