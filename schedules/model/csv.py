"""PyTorch's pipelining tables: a row per rank (mesh), a cell per task.

    0F0,0F1,,0B0,0B1
    ,1F0,1B0,1F1,1B1

A cell is `<stage><op><microbatch>` with F, B (full backward), I (input gradient) or W (weight gradient). An empty cell
is a bubble, and `(0F3;3B1)OVERLAP_F_B` is a fused task. Rows may have different lengths. A table may also have cells
that communicate: SEND_F, RECV_F, SEND_B, RECV_B, and, without a microbatch, UNSHARD, RESHARD, REDUCE_GRAD.

Tasks that PyTorch has no word for are written as in the text form: `2F5.1` for a slice of the sequence, `0offload3`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.graph import Graph
from jaxpp.schedules.model.kinds import LETTERS, Kind, rules_of
from jaxpp.schedules.model.run import cells_of_graph, run, time_slots
from jaxpp.schedules.model.task import Placement, Task

_NUMBER: Final = "0|[1-9][0-9]{0,8}"
_TASK: Final = re.compile(
    rf"(?P<stage>{_NUMBER})(?P<kind>[FBIW]|[a-z]+(?:_[a-z]+)*)(?P<mb>{_NUMBER})(?:\.(?P<slice>{_NUMBER}))?"
)
_COPY: Final = re.compile(
    rf"(?P<stage>{_NUMBER})(?P<op>SEND_F|RECV_F|SEND_B|RECV_B)(?P<mb>{_NUMBER})(?:\.(?P<slice>{_NUMBER}))?"
)
_SHARDS: Final = re.compile(rf"(?P<stage>{_NUMBER})(?:UNSHARD|RESHARD|REDUCE_GRAD)(?:{_NUMBER})?")
_FUSED: Final = re.compile(r"\((?P<parts>[^()]*)\)OVERLAP_F_B")
_STEPS: Final = {"forward": 1, "backward": -1, "input_grad": -1}
_KINDS: Final = {letter: kind for kind, letter in LETTERS.items()}
_EXPECTED: Final = (
    "a cell is <stage><op><microbatch>, like 0F3, 2W1 or 1SEND_F0, fused (0F3;3B1)OVERLAP_F_B, or 0UNSHARD; the ops "
    "are F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, REDUCE_GRAD"
)


@dataclass(frozen=True, slots=True)
class Table:
    """The content of a table.

    Attributes:
        rows: the cells of each mesh.
        columns: the column of each of these cells, from 1 on.
        copies: for each mesh, the column of each cell that sends or receives, such as "0SEND_F3".
        communicates: whether the table has cells that communicate.
    """

    rows: list[list[tuple[Task, ...]]]
    columns: list[list[int]]
    copies: list[dict[str, int]]
    communicates: bool

    def where(self, mesh: int, column: int) -> str:
        """Returns a place for error messages: `row 2 (mesh 1), column 5`."""
        return f"row {mesh + 1} (mesh {mesh}), column {column}"


def parse_csv(text: str) -> Table:
    """Reads a table, with or without communication.

    Raises:
        ScheduleError: when a cell has an unknown form (the message has its row and column), or the table is empty.
    """
    try:
        found = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""), strict=True)]
    except csv.Error as error:
        raise ScheduleError(f"not a table of comma-separated values: {error}") from None
    while found and not any(found[-1]):
        found.pop()
    if not found:
        raise ScheduleError("the table is empty: expected a row of tasks for each rank")
    table = Table([], [], [], any(map(_communicates, found)))
    for mesh, words in enumerate(found):
        table.rows.append([])
        table.columns.append([])
        table.copies.append({})
        for column, word in enumerate(words, 1):
            if word:
                _read_cell(table, mesh, column, word)
        if not table.rows[mesh]:
            raise ScheduleError(f"row {mesh + 1} has no task: expected a row of tasks for each rank")
    return table


def placement_of(table: Table, kinds: Iterable[Kind] = ()) -> Placement:
    """Returns the meshes of each stage: the rows where it runs, beginning with the row of its first microbatch.

    Tasks of kinds that may run on a mesh without their stage are ignored.

    Raises:
        ScheduleError: when the table has no task of a stage below its highest.
    """
    away = {name for name, rule in rules_of(kinds).items() if rule.stands != "home"}
    homes: dict[int, dict[int, tuple[int, int]]] = {}
    for mesh, row in enumerate(table.rows):
        for task in (task for cell in row for task in cell if task.kind not in away):
            first = (task.microbatch, mesh)
            held = homes.setdefault(task.stage, {})
            held[mesh] = min(held.get(mesh, first), first)
    for stage in range(len(homes)):
        if stage not in homes:
            raise ScheduleError(f"stage {stage} has no task, but stage {max(homes)} has: number the stages from 0")
    return Placement(tuple(tuple(sorted(homes[stage], key=homes[stage].__getitem__)) for stage in range(len(homes))))


def check_copies(table: Table, graph: Graph) -> None:
    """Checks the sends and receives: each value is sent once after it is made, and received once before it is used.

    A table without communication passes.

    Raises:
        ScheduleError: when a cell is missing or wrong; the message names it, with the row and column of a wrong cell.
    """
    if not table.communicates:
        return
    messages = _messages(graph)
    wanted: list[set[str]] = [set() for _ in table.rows]
    for message in messages:
        wanted[message.source].add(message.send)
        wanted[message.target].add(message.receive)
    for mesh, found in enumerate(table.copies):
        for word, column in found.items():
            if word not in wanted[mesh]:
                raise ScheduleError(f"{table.where(mesh, column)}: {word!r} moves nothing from one mesh to another")
        for word in sorted(wanted[mesh] - found.keys()):
            raise ScheduleError(f"row {mesh + 1} (mesh {mesh}): {word!r} is missing")
    _check_order(table, messages)


def print_csv(graph: Graph, communicate: bool) -> str:
    """Returns the table of a schedule; its columns are the time slots of a run in which every cell takes one.

    Raises:
        ScheduleError: when its stages are a graph, or, with `communicate`, a value moves for which a table has no
            cells.
    """
    if graph.placement.after:
        raise ScheduleError("a table says nothing of stages that are a graph: write the grid")
    if communicate:
        rows = _with_copies(graph)
    else:
        slots = time_slots(graph, _word, "")
        width = max(map(len, slots))
        rows = [row + [""] * (width - len(row)) for row in slots]
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(rows)
    return lines.getvalue()


def _communicates(words: Sequence[str]) -> bool:
    return any(_COPY.fullmatch(word) or _SHARDS.fullmatch(word) for word in words)


def _read_cell(table: Table, mesh: int, column: int, word: str) -> None:
    if _COPY.fullmatch(word):
        if word in table.copies[mesh]:
            first = table.copies[mesh][word]
            raise ScheduleError(f"{table.where(mesh, column)}: {word!r} is there twice, first in column {first}")
        table.copies[mesh][word] = column
        return
    if _SHARDS.fullmatch(word):
        return
    fused = _FUSED.fullmatch(word)
    parts = [part.strip() for part in fused["parts"].split(";")] if fused else [word]
    matches = [_TASK.fullmatch(part) for part in parts]
    tasks = tuple(
        Task(_KINDS.get(m["kind"], m["kind"]), int(m["stage"]), int(m["mb"]), int(m["slice"] or 0))
        for m in matches
        if m
    )
    if len(tasks) < len(parts) or (fused and len(tasks) < 2):
        raise ScheduleError(f"{table.where(mesh, column)}: cannot read {word[:40]!r}: {_EXPECTED}")
    table.rows[mesh].append(tasks)
    table.columns[mesh].append(column)


@dataclass(frozen=True, slots=True)
class _TableMessage:
    """A value that one mesh sends to another: the two meshes, and the tasks that make it and use it."""

    source: int
    target: int
    made: Task
    needed: Task

    @property
    def what(self) -> str:
        part = f".{self.made.slice}" if self.made.slice else ""
        return f"{'F' if self.made.kind == 'forward' else 'B'}{self.made.microbatch}{part}"

    @property
    def send(self) -> str:
        return f"{self.made.stage}SEND_{self.what}"

    @property
    def receive(self) -> str:
        return f"{self.needed.stage}RECV_{self.what}"


def _messages(graph: Graph) -> list[_TableMessage]:
    """Returns the messages of a schedule, one for each value that is sent.

    Raises:
        ScheduleError: when a value goes to several meshes, or is neither an output for the next stage nor a gradient
            for the previous stage.
    """
    homes = graph.homes
    messages: dict[tuple[int, str], _TableMessage] = {}
    for number, needs in enumerate(graph.needs):
        for need in needs:
            if homes[need] == homes[number] or graph.sources.get(number) == need:  # the task is its own message
                continue
            message = _TableMessage(homes[need], homes[number], graph.tasks[need], graph.tasks[number])
            step = _STEPS.get(message.made.kind)
            other = messages.setdefault((message.source, message.send), message)
            if step != message.needed.stage - message.made.stage or other != message:
                what = f"{message.needed.words} on mesh {message.target} needs {message.made.words} of mesh"
                raise ScheduleError(f"{what} {message.source}, for which a table has no cells that send and receive")
    return list(messages.values())


def _check_order(table: Table, messages: Sequence[_TableMessage]) -> None:
    """Checks that values are made before they are sent, and received before they are used.

    Raises:
        ScheduleError: when a send or a receive is in a wrong column.
    """
    columns = [
        {task: column for cell, column in zip(row, at, strict=True) for task in cell}
        for row, at in zip(table.rows, table.columns, strict=True)
    ]
    for message in messages:
        sent, made = table.copies[message.source][message.send], columns[message.source][message.made]
        if sent < made:
            late = f"comes before {message.made}, in column {made}"
            raise ScheduleError(f"{table.where(message.source, sent)}: {message.send!r} {late}")
        received, needed = table.copies[message.target][message.receive], columns[message.target][message.needed]
        if received > needed:
            late = f"needs {message.receive!r}, which comes later, in column {received}"
            raise ScheduleError(f"{table.where(message.target, needed)}: '{message.needed}' {late}")


def _word(cell: Sequence[Task]) -> str:
    return str(cell[0]) if len(cell) == 1 else f"({';'.join(map(str, cell))})OVERLAP_F_B"


def _with_copies(graph: Graph) -> list[list[str]]:
    """Returns the rows with sends and receives.

    Both cells of a message are written together with the task that makes it. So any two meshes agree on the order of
    the messages between them.
    """
    times = cells_of_graph(graph, [1.0] * len(graph.tasks), one_track=True)
    starts = run(times, times.rows).starts
    heads = [(start, graph.homes[head], head) for start, head in zip(starts, graph.heads, strict=True)]
    sends: dict[Task, _TableMessage] = {message.made: message for message in _messages(graph)}
    rows: list[list[str]] = [[] for _ in graph.rows]
    for _, mesh, head in sorted(heads):
        cell = graph.tasks[head : head + graph.spans[head]]
        rows[mesh].append(_word(cell))
        for message in (sends[task] for task in cell if task in sends):
            rows[mesh].append(message.send)
            rows[message.target].append(message.receive)
    return rows
