"""The times of a mesh's cells and the lives of its activations, for rewrites that move activations."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.memory import Sizes, changes
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Cell, Task, Unit


class Life(NamedTuple):
    """An activation, and the positions of the cells that make it and that first read it."""

    unit: Unit
    made: int
    read: int


@dataclass(frozen=True)
class Timeline:
    """The cells of one mesh that take its turn, with their times under the default `Costs`.

    Positions count only these cells, without cells that run beside the mesh.

    Attributes:
        starts: the start of each cell.
        ends: the end of each cell.
        alive: for each cell the number of the mesh's live activations. An activation that leaves the mesh is alive
            until the end of the next cell.
        lives: the activations of the mesh that a later cell reads, in the order of their forwards.
        cells: all cells of the mesh, including cells beside it.
        places: for each cell that takes a turn, its index in `cells`.
    """

    starts: Sequence[float]
    ends: Sequence[float]
    alive: Sequence[int]
    lives: Sequence[Life]
    cells: Sequence[Cell]
    places: Sequence[int]

    def first_after(self, time: float) -> int:
        """Returns the first cell that starts at this time or later."""
        return bisect_left(self.starts, time - 1e-9)

    def with_tasks(self, before: Mapping[int, Sequence[Task]]) -> list[Cell]:
        """Returns all cells of the mesh with new tasks, by the position of the cell that they precede.

        The position after the last puts tasks at the end.
        """
        places = [*self.places, len(self.cells)]
        return with_tasks(self.cells, {places[at]: tasks for at, tasks in before.items()})


def timelines(schedule: Schedule) -> list[Timeline]:
    """Returns the timeline of each mesh. Tasks of kinds without a given time take practically no time."""
    graph, costs = schedule.graph, Costs()
    told = [kind for kind in graph.numbers if costs.is_told(kind, schedule)]
    run = simulate(schedule, Costs(kinds=dict.fromkeys(graph.numbers.keys() - told, 1e-12))).run
    found: list[Timeline] = []
    for mesh, (cells, row) in enumerate(zip(schedule.cells, graph.rows, strict=True)):
        heads = [number for number in row if graph.spans[number]]
        places = [place for place, head in enumerate(heads) if head not in graph.asides]
        own = [heads[place] for place in places]
        starts, ends = ([times[head] for head in own] for times in (run.starts, run.ends))
        alive, lives = _alive(schedule, mesh, own), _lives(schedule, [cells[place] for place in places])
        found.append(Timeline(starts, ends, alive, lives, cells, places))
    return found


def _alive(schedule: Schedule, mesh: int, heads: Sequence[int]) -> list[int]:
    """Returns the number of live activations of a mesh in the cells that begin with these tasks.

    Activations that will be recomputed count from their forward on.
    """
    graph, ones = schedule.graph, [1.0] * schedule.stages
    change = [0.0] * (len(heads) + 2)
    for number, start, end in changes(graph, mesh, Sizes(ones, ones, ones)):
        if number in graph.rows[mesh]:
            at = bisect_left(heads, number) if number in graph.asides else bisect_right(heads, number) - 1
            change[at] += start
            change[at + 1] += end
    return [round(each) for each in itertools.accumulate(change[: len(heads)])]


def _lives(schedule: Schedule, cells: Iterable[Cell]) -> list[Life]:
    made: dict[Unit, int] = {}
    read: dict[Unit, int] = {}
    for at, cell in enumerate(cells):
        for task in cell:
            rule = schedule.rules[task.kind]
            if rule.holds:
                read.setdefault(task.unit, at)
            elif rule.makes:
                made[task.unit] = at
    return [Life(unit, at, read[unit]) for unit, at in made.items() if unit in read]


def with_tasks(cells: Sequence[Cell], before: Mapping[int, Sequence[Task]]) -> list[Cell]:
    """Returns the cells of a mesh with new tasks, by the index of the cell that they precede."""
    row: list[Cell] = []
    for at in range(len(cells) + 1):
        row += [(task,) for task in before.get(at, ())]
        row += cells[at : at + 1]
    return row
