"""A schedule as a graph of numbers: what the check, the merged order, the grid and a simulator walk over.

Tasks are numbered mesh by mesh in the order in which they run, so that a mesh is a range of numbers and a fused cell is
a run of neighbours. Building it and sweeping over it are linear in the number of tasks and needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from jaxpp.schedules.kinds import Kind
from jaxpp.schedules.task import Placement, Task

NEVER: Final = -1.0
"""Start of a task that never runs."""

Cells: TypeAlias = tuple[tuple[tuple[Task, ...], ...], ...]
"""For each mesh its cells in order; a cell is the tasks that run as one, mostly a single one."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Numbered tasks and what they wait for.

    Attributes:
        placement: which mesh holds which stage.
        rules: what each kind needs, by name.
        cells: for each mesh its cells, the tuples of tasks that run as one.
        tasks: the task of each number.
        rows: for each mesh the numbers of its tasks.
        needs: for each task the numbers of those it needs.
        lacking: for tasks that need something which the schedule does not have: what that is.
        spans: for the first task of each cell, the number of tasks fused in it; 0 for the others.
        numbers: for each kind, the number of the task at `microbatch * stages + stage`.
    """

    placement: Placement
    rules: Mapping[str, Kind]
    cells: Cells
    tasks: list[Task]
    rows: list[range]
    needs: list[list[int]]
    lacking: dict[int, list[Task]]
    spans: list[int]
    numbers: dict[str, dict[int, int]]

    def place(self, number: int) -> tuple[int, int]:
        """(mesh, position) of the cell that holds the task; a scan, for messages."""
        mesh = next(mesh for mesh, row in enumerate(self.rows) if number in row)
        row = self.rows[mesh]
        return mesh, sum(self.spans[other] > 0 for other in range(row.start, number + 1)) - 1


def build_graph(placement: Placement, rules: Mapping[str, Kind], cells: Cells) -> Graph:
    """Number the tasks and look up their needs; a kind without a rule needs nothing."""
    stages = placement.stages
    tasks: list[Task] = []
    rows: list[range] = []
    spans: list[int] = []
    numbers: dict[str, dict[int, int]] = {}
    for row in cells:
        first = len(tasks)
        for cell in row:
            for task in cell:
                numbers.setdefault(task.kind, {})[task.microbatch * stages + task.stage] = len(tasks)
                spans.append(0)
                tasks.append(task)
            spans[-len(cell)] = len(cell)
        rows.append(range(first, len(tasks)))

    tables = {
        name: [(need, [numbers.get(kind, {}) for kind in need.kinds]) for need in kind.needs]
        for name, kind in rules.items()
    }
    needs: list[list[int]] = []
    lacking: dict[int, list[Task]] = {}
    for number, task in enumerate(tasks):
        found: list[int] = []
        for need, alternatives in tables.get(task.kind, ()):
            stage = task.stage + need.offset
            if not 0 <= stage < stages:
                continue
            key = task.microbatch * stages + stage
            for table in alternatives:
                if key in table:
                    found.append(table[key])
                    break
            else:
                if not need.optional:
                    lacking.setdefault(number, []).append(Task(need.kinds[0], stage, task.microbatch))
        needs.append(found)
    return Graph(placement, rules, cells, tasks, rows, needs, lacking, spans, numbers)


def sweep(graph: Graph, durations: Sequence[float]) -> tuple[list[float], list[int]]:
    """Run every mesh in its order, each cell as soon as its mesh is free and its needs are done; a hop takes no time.

    Args:
        graph: the schedule. What is lacking is not waited for.
        durations: of each task; a fused cell takes the sum.

    Returns:
        The start of each task (`NEVER` where the schedule deadlocks), and for each mesh the number of the task that it
        is stuck at, or the end of its row.
    """
    needs, spans = graph.needs, graph.spans
    starts = [NEVER] * len(graph.tasks)
    ends = [NEVER] * len(graph.tasks)
    clocks = [0.0] * len(graph.rows)
    heads = [row.start for row in graph.rows]
    waiting: dict[int, list[int]] = {}
    runnable = list(range(len(graph.rows)))
    while runnable:
        mesh = runnable.pop()
        head, stop, clock = heads[mesh], graph.rows[mesh].stop, clocks[mesh]
        while head < stop:
            after = head + spans[head]
            start = clock
            blocker = None
            for number in range(head, after):
                for need in needs[number]:
                    if ends[need] > start:
                        start = ends[need]
                    elif ends[need] == NEVER and not head <= need < after:
                        blocker = need
            if blocker is not None:
                waiting.setdefault(blocker, []).append(mesh)
                break
            clock = start + sum(durations[head:after])
            for number in range(head, after):
                starts[number], ends[number] = start, clock
                runnable += waiting.pop(number, ())
            head = after
        heads[mesh], clocks[mesh] = head, clock
    return starts, heads
