"""When the cells of a mesh run, and how long activations wait there: what rewrites that move them look at."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.simulate import simulate
from jaxpp.schedules.task import Cell, Task, Unit


class Life(NamedTuple):
    """An activation, and the positions of the cells that make it, first need it again, and let it go."""

    unit: Unit
    made: int
    read: int
    freed: int


@dataclass(frozen=True)
class Timeline:
    """The cells of one mesh: when they run, each task one unit of time and a backward two, and what they keep."""

    starts: Sequence[float]
    ends: Sequence[float]
    lives: Sequence[Life]

    @cached_property
    def alive(self) -> list[int]:
        """How many activations are alive in each cell."""
        changes = [0] * (len(self.starts) + 1)
        for life in self.lives:
            changes[life.made] += 1
            changes[life.freed + 1] -= 1
        return list(itertools.accumulate(changes))

    def first_after(self, time: float) -> int:
        """The position of the first cell that starts at this time, or later."""
        return bisect_left(self.starts, time - 1e-9)


def timelines(schedule: Schedule) -> list[Timeline]:
    """When the cells of each mesh run; those beside it take no time, nor do those that nothing tells the time of."""
    graph, costs = schedule.graph, Costs()
    told = [kind for kind in graph.numbers if costs.is_told(kind, schedule)]
    run = simulate(schedule, Costs(kinds=dict.fromkeys(graph.numbers.keys() - told, 1e-12))).run
    found: list[Timeline] = []
    for cells, row in zip(schedule.cells, graph.rows, strict=True):
        starts: list[float] = []
        ends: list[float] = []
        for number in (number for number in row if graph.spans[number]):
            aside = number in graph.asides
            clock = ends[-1] if ends else 0.0
            starts.append(clock if aside else run.starts[number])
            ends.append(clock if aside else run.ends[number])
        found.append(Timeline(starts, ends, _lives(schedule, cells)))
    return found


def _lives(schedule: Schedule, cells: Sequence[Cell]) -> list[Life]:
    """The activations of a mesh, in the order of their forwards; those that no backward needs are none."""
    made: dict[Unit, int] = {}
    read: dict[Unit, int] = {}
    freed: dict[Unit, int] = {}
    for at, cell in enumerate(cells):
        for task in cell:
            rule = schedule.rules[task.kind]
            if rule.holds:
                read.setdefault(task.unit, at)
                freed[task.unit] = at
            elif rule.makes:
                made[task.unit] = at
    return [Life(unit, at, read[unit], freed[unit]) for unit, at in made.items() if unit in read]


def with_tasks(cells: Sequence[Cell], before: Mapping[int, Sequence[Task]]) -> list[Cell]:
    """The cells of a mesh, with these tasks before those of these positions."""
    row: list[Cell] = []
    for at in range(len(cells) + 1):
        row += [(task,) for task in before.get(at, ())]
        row += cells[at : at + 1]
    return row
