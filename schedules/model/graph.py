"""A schedule as a graph of numbered tasks, which the check, the merged order, the grid and the simulator use.

Tasks are numbered mesh by mesh in the order in which they run. A mesh is therefore a range of numbers, and a fused cell
is a run of neighbouring numbers. Building the graph and running it (`jaxpp.schedules.model.run`) take time linear in
the number of tasks and needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from jaxpp.schedules.model.kinds import ALL, COMPUTE, Kind
from jaxpp.schedules.model.task import Cell, Placement, Task

CellRows: TypeAlias = tuple[tuple[Cell, ...], ...]
"""For each mesh its cells, in order."""

TaskNumbers: TypeAlias = Sequence[int]


@dataclass(frozen=True)
class Graph:
    """Numbered tasks, and the tasks and transfers that each waits for.

    Attributes:
        placement: which mesh holds which stage.
        rules: the rules of each kind, by name.
        cells: for each mesh its cells, the tuples of tasks that run as one.
        slices: the number of slices into which the sequence of a microbatch is cut.
        tasks: the task of each number.
        rows: for each mesh the numbers of its tasks.
        needs: for each task the numbers of the tasks that it needs.
        lacking: for each task that lacks a need, the needed tasks that the schedule does not have.
        spans: for the first task of each cell, the number of tasks fused in it; 0 for the others.
        numbers: for each kind, the number of the task at `key(task)`.
        tracks: for each task the resources that it uses besides the turn of its mesh, such as the copy to the host.
        asides: the tasks that run beside their mesh, without its turn.
        sources: for each task that takes memory from a peer, the number of the task there. It is its own transfer.
        transfers: (number of a task, mesh that its result goes to), once for each mesh that needs it.
        borders: for each transfer the lower of the two stages between which it goes, or -1 within one stage.
        waits: for the first task of each cell the tasks and transfers that it waits for, apart from the end of the
            previous cell. An entry is the number of a task, or `len(tasks)` + the index of a transfer.
    """

    placement: Placement
    rules: Mapping[str, Kind]
    cells: CellRows
    slices: int
    tasks: list[Task]
    rows: list[range]
    spans: list[int]
    numbers: dict[str, dict[int, int]]
    tracks: dict[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    asides: set[int] = field(default_factory=set[int])
    sources: dict[int, int] = field(default_factory=dict[int, int])
    needs: list[TaskNumbers] = field(default_factory=list)
    lacking: dict[int, list[Task]] = field(default_factory=dict)
    transfers: list[tuple[int, int]] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)
    waits: list[TaskNumbers] = field(default_factory=list)

    @cached_property
    def homes(self) -> list[int]:
        """The mesh that runs each task."""
        return [mesh for mesh, row in enumerate(self.rows) for _ in row]

    @cached_property
    def heads(self) -> list[int]:
        """The first task of each cell."""
        return [number for number, span in enumerate(self.spans) if span]

    @cached_property
    def cell_of(self) -> list[int]:
        """The index in `heads` of the cell of each task."""
        return [cell for cell, head in enumerate(self.heads) for _ in range(self.spans[head])]

    def key(self, task: Task) -> int:
        """Returns the key of the task in `numbers[task.kind]`."""
        return (task.microbatch * self.slices + task.slice) * self.placement.stages + task.stage

    def place(self, number: int) -> tuple[int, int]:
        """Returns the (mesh, position) of the cell that holds the task; it is slow, and only for messages."""
        mesh = next(mesh for mesh, row in enumerate(self.rows) if number in row)
        row = self.rows[mesh]
        return mesh, sum(self.spans[other] > 0 for other in range(row.start, number + 1)) - 1


def build_graph(placement: Placement, rules: Mapping[str, Kind], cells: CellRows, skipped: Set[Task]) -> Graph:
    """Numbers the tasks and finds their needs.

    A kind without a rule needs nothing, and no task waits for a task in `skipped`.
    """
    slices = 1 + max((task.slice for row in cells for cell in row for task in cell), default=0)
    graph = Graph(placement, rules, cells, slices, [], [], [], {})
    _number(graph)
    _find_needs(graph, skipped)
    _find_waits(graph)
    return graph


def _number(graph: Graph) -> None:
    stages, slices, tasks, spans = graph.placement.stages, graph.slices, graph.tasks, graph.spans
    tracks = {name: rule.uses for name, rule in graph.rules.items() if rule.uses != (COMPUTE,)}
    for row in graph.cells:
        first = len(tasks)
        for cell in row:
            for task in cell:
                kind, number = task.kind, len(tasks)
                table = graph.numbers.get(kind)
                if table is None:
                    table = graph.numbers[kind] = {}
                table[(task.microbatch * slices + task.slice) * stages + task.stage] = number
                if kind in tracks:
                    graph.tracks[number] = tuple(name for name in tracks[kind] if name != COMPUTE)
                    if COMPUTE not in tracks[kind]:
                        graph.asides.add(number)
                spans.append(0)
                tasks.append(task)
            spans[-len(cell)] = len(cell)
            if len(cell) > 1 and tracks:
                _share_tracks(graph, range(len(tasks) - len(cell), len(tasks)))
        graph.rows.append(range(first, len(tasks)))


def _share_tracks(graph: Graph, cell: range) -> None:
    """Gives each task of a fused cell the resources of all its tasks, because they run as one."""
    used = tuple(dict.fromkeys(name for number in cell for name in graph.tracks.get(number, ())))
    graph.tracks.update(dict.fromkeys(cell, used) if used else {})
    if not graph.asides.issuperset(cell):
        graph.asides.difference_update(cell)


def _find_needs(graph: Graph, skipped: Set[Task]) -> None:
    stages, slices = graph.placement.stages, graph.slices
    microbatches = 1 + max((task.microbatch for task in graph.tasks), default=-1)
    numbers = graph.numbers
    # For each offset of a need and each stage, the stages of the needed tasks.
    steps = {need.stage for rule in graph.rules.values() for need in rule.needs}
    near = {step: [graph.placement.near(stage, step) for stage in range(stages)] for step in steps}
    # Optional needs of kinds that this schedule does not have are left out.
    tables = {
        name: [
            (near[need.stage], need.microbatch, need.slice, [numbers[k] for k in need.kinds if k in numbers], need)
            for need in rule.needs
            if not (need.optional and numbers.keys().isdisjoint(need.kinds)) and not (slices == 1 and need.slice)
        ]
        for name, rule in graph.rules.items()
    }
    moving = {name for name, rule in graph.rules.items() if rule.moves}
    # A short grid can name microbatch 999999999: of so many units, all but a few are missing.
    all_units = range(min(microbatches * slices, len(graph.tasks) + len(skipped) + 1))
    for number, task in enumerate(graph.tasks):
        found: list[int] = []
        for stages_near, which, slice_offset, alternatives, need in tables.get(task.kind, ()):
            found_stages = stages_near[task.stage] if task.stage < stages else ()
            if which == ALL:
                units = all_units
            else:
                microbatch, part = task.microbatch + int(which), task.slice + slice_offset
                if not (0 <= part < slices and 0 <= microbatch < microbatches):
                    continue
                units = (microbatch * slices + part,)
            for key in [unit * stages + stage for stage in found_stages for unit in units]:
                for table in alternatives:
                    if key in table:
                        found.append(table[key])
                        break
                else:
                    unit, stage = divmod(key, stages)
                    needed = [Task(kind, stage, unit // slices, unit % slices) for kind in need.kinds]
                    if not (need.optional or (skipped and not skipped.isdisjoint(needed))):
                        graph.lacking.setdefault(number, []).append(needed[0])
        graph.needs.append(found)
        if task.kind in moving and found:
            graph.sources[number] = found[0]


def _find_waits(graph: Graph) -> None:
    meshes, base = len(graph.rows), len(graph.tasks)
    tasks, asides, sources, borders = graph.tasks, graph.asides, graph.sources, graph.borders
    transfers, all_waits = graph.transfers, graph.waits
    nothing: TaskNumbers = ()
    known: dict[int, int] = {}
    for mesh, row in enumerate(graph.rows):
        start, stop = row.start, row.stop
        head = after = start
        for number in row:
            if number == after:
                head = number
                after = number + graph.spans[number]
            waits = nothing
            for need in graph.needs[number]:
                if start <= need < stop:
                    # Earlier tasks of the mesh have ended by then, except those that run beside it.
                    if need >= after or (need < head and need in asides):
                        waits = (*waits, need)
                    continue
                if sources and sources.get(number) == need:
                    waits = (*waits, need)
                    continue
                key = need * meshes + mesh
                transfer = known.get(key)
                if transfer is None:
                    transfer = known[key] = len(transfers)
                    transfers.append((need, mesh))
                    borders.append(-1)
                if borders[transfer] < 0 and tasks[need].stage != tasks[number].stage:
                    borders[transfer] = min(tasks[need].stage, tasks[number].stage)
                waits = (*waits, base + transfer)
            all_waits.append(waits)
            if number > head and waits:
                all_waits[head] = (*all_waits[head], *waits)
