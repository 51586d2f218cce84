"""The text form of a schedule: a grid of meshes and time slots.

    schedule: 1f1b
    placement: 0 1
    mesh 0: 0F0 0F1 .   0B0 0F2 0B1 .   0B2
    mesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2

The grid has one row per mesh, and one column per time slot of a run in which every cell takes one slot.

- A cell is `<stage><kind><microbatch>`. The kind is F, B (full backward), I (input gradient), W (weight gradient), or
  the full name of another kind. `0F2.1` is slice 1 of the sequence of microbatch 2.
- Fused tasks are joined by `+`. A `.` is a bubble; readers of the grid ignore it.
- `placement:` gives the mesh of each stage: `0+1` is on two meshes, one of which runs each task.
- `after: . . 0+1` gives the stages that each stage reads, where stages are no chain. Here the third reads the others.
- `kind NAME: ...` declares a user's kind and its needs (see `jaxpp.schedules.model.kinds`).
- `skipped: 0W* 1W3` names tasks that are left out on purpose. Here these are the weight gradients of stage 0 for all
  microbatches, and of stage 1 for microbatch 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from jaxpp.schedules.errors import ScheduleError, marked
from jaxpp.schedules.model.graph import Graph
from jaxpp.schedules.model.kinds import LETTERS, Kind
from jaxpp.schedules.model.run import time_slots
from jaxpp.schedules.model.task import Placement, Task

_CELL: Final = re.compile(r"([0-9]{1,9})([FBIW]|[a-z]+(?:_[a-z]+)*)([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_ALL: Final = re.compile(r"([0-9]{1,9})([FBIW]|[a-z]+(?:_[a-z]+)*)\*")
_HOMES: Final = re.compile(r"[0-9]{1,9}(?:\+[0-9]{1,9})*")
_ROW: Final = re.compile(r"mesh +([0-9]{1,9})")
_KINDS: Final = {letter: kind for kind, letter in LETTERS.items()}
_READ: Final = re.compile(rf"\.|{_HOMES.pattern}")
_BUBBLE: Final = "."


@dataclass(frozen=True, slots=True)
class Grid:
    """The content of a schedule's text; `rows` holds the cells of each mesh."""

    name: str
    placement: Placement
    rows: list[list[tuple[Task, ...]]]
    kinds: list[Kind]
    skipped: frozenset[Task]


def print_grid(name: str, graph: Graph, kinds: Sequence[Kind], skipped: Set[Task]) -> str:
    """Returns the text of a schedule. If it deadlocks, tasks that never run are at the end of their rows."""
    rows = time_slots(graph, lambda cell: "+".join(map(str, cell)), _BUBBLE)
    widths = [0] * max(map(len, rows))
    for row in rows:
        widths[: len(row)] = map(max, map(len, row), widths)
    lines = [f"schedule: {name}", f"placement: {graph.placement}"]
    if graph.placement.after:
        lines.append(f"after: {' '.join('+'.join(map(str, read)) or _BUBBLE for read in graph.placement.after)}")
    lines += (f"kind {kind}" for kind in kinds)
    if skipped:
        lines.append(f"skipped: {' '.join(_print_skipped(graph, skipped))}")
    digits = len(str(len(rows) - 1))
    for mesh, row in enumerate(rows):
        cells = " ".join(map(str.ljust, row, widths))
        lines.append(f"mesh {mesh:{digits}}: {cells}".rstrip())
    return "\n".join(lines)


def parse_grid(text: str) -> Grid:
    """Reads the text that `print_grid` prints; blank lines, other blanks and bubbles do not matter.

    Raises:
        ScheduleError: when the text is wrong. The message has the line, the reason, and for a row a mark at the cell.
    """
    names: list[str] = []
    placements: list[Placement] = []
    has_after = False
    kinds: list[Kind] = []
    rows: list[list[tuple[Task, ...]]] = []
    skipped: list[str] = []
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
            elif key == "after" and placements and not has_after:
                has_after = True
                placements = [replace(placements[0], after=_parse_after(value))]
            elif key.startswith("kind "):
                kinds.append(Kind.parse(f"{key.removeprefix('kind ')}:{value}"))
            elif match := _ROW.fullmatch(key):
                if int(match[1]) != len(rows):
                    raise ScheduleError(f"expected the row of mesh {len(rows)}, found that of mesh {match[1]}")
                rows.append(_parse_row(f"{key}:", value.split()))
            elif key == "skipped" and not skipped:
                skipped = value.split()
                _parse_skipped(skipped, 1, 1)
            elif line.strip():
                once = "'schedule:', 'placement:' or, behind it, 'after:' (each once)"
                found = f"found {line.strip()[:40]!r}"
                raise ScheduleError(f"expected {once}, 'kind NAME:' or 'mesh NUMBER:', {found}")
        except ScheduleError as error:
            raise ScheduleError(f"line {number}: {error}") from None
    if not names or not placements:
        raise ScheduleError(f"the text of a schedule needs a line '{'placement' if names else 'schedule'}: ...'")
    tasks = [task for row in rows for cell in row for task in cell]
    microbatches = 1 + max((task.microbatch for task in tasks), default=-1)
    slices = 1 + max((task.slice for task in tasks), default=0)
    # `0W*` means all units, but a huge number in a small grid must not list them all: such a grid is wrong anyway.
    if microbatches * slices > len(tasks):
        microbatches, slices = (1, 1) if tasks else (0, 0)
    return Grid(names[0], placements[0], rows, kinds, _parse_skipped(skipped, microbatches, slices))


def _parse_placement(value: str) -> Placement:
    words = value.split()
    for stage, word in enumerate(words):
        if not _HOMES.fullmatch(word):
            reason = f"stage {stage} must have a mesh number, or several joined by '+', found {word[:40]!r}"
            raise ScheduleError(f"{reason}\n{marked('placement:', words, stage)}")
    return Placement(tuple(tuple(map(int, word.split("+"))) for word in words))


def _parse_after(value: str) -> tuple[tuple[int, ...], ...]:
    words = value.split()
    for stage, word in enumerate(words):
        if not _READ.fullmatch(word):
            reason = f"stage {stage} must have the stages that it reads, joined by '+', or '.', found {word[:40]!r}"
            raise ScheduleError(f"{reason}\n{marked('after:', words, stage)}")
    return tuple(() if word == _BUBBLE else tuple(map(int, word.split("+"))) for word in words)


def _print_skipped(graph: Graph, skipped: Set[Task]) -> list[str]:
    """Returns the words for the skipped tasks, with `0W*` for all microbatches of a stage."""
    units = (1 + max((task.microbatch for task in graph.tasks), default=-1)) * graph.slices
    groups: dict[tuple[int, str], list[Task]] = {}
    for task in sorted(skipped, key=lambda task: (task.stage, task.kind, task.microbatch, task.slice)):
        groups.setdefault((task.stage, task.kind), []).append(task)
    words: list[str] = []
    for (stage, kind), tasks in groups.items():
        inside = all(task.microbatch * graph.slices + task.slice < units for task in tasks)
        whole = len(tasks) == units and inside and all(task.slice < graph.slices for task in tasks)
        words += [f"{stage}{LETTERS.get(kind, kind)}*"] if whole else map(str, tasks)
    return words


def _parse_skipped(words: list[str], microbatches: int, slices: int) -> frozenset[Task]:
    tasks: list[Task] = []
    for index, word in enumerate(words):
        if match := _ALL.fullmatch(word):
            stage, kind = int(match[1]), _KINDS.get(match[2], match[2])
            tasks += [Task(kind, stage, mb, part) for mb in range(microbatches) for part in range(slices)]
        else:
            tasks += _parse_cell(word, "skipped:", words, index)
    return frozenset(tasks)


def _parse_row(label: str, words: list[str]) -> list[tuple[Task, ...]]:
    cells: list[tuple[Task, ...]] = []
    for index, word in enumerate(words):
        if word == _BUBBLE:
            continue
        cells.append(_parse_cell(word, label, words, index))
    return cells


def _parse_cell(word: str, label: str, words: list[str], index: int) -> tuple[Task, ...]:
    matches = [_CELL.fullmatch(part) for part in word.split("+")]
    tasks = tuple(Task(_KINDS.get(m[2], m[2]), int(m[1]), int(m[3]), int(m[4] or 0)) for m in matches if m)
    if len(tasks) < len(matches):
        reason = f"cannot read {word[:40]!r}: a cell is <stage><kind><microbatch>, like 0F3, 2W1, or fused 0F3+1B2"
        raise ScheduleError(f"{reason}\n{marked(label, words, index)}")
    return tasks
