"""The work of a mesh between two runs of tasks of one stage: it scatters gradients and gathers weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

from jaxpp.schedules.model.task import Task

ADDING: Final = ("backward", "weight_grad")
"""The kinds of tasks that add to the gradients of their stage's weights."""


class Touched(NamedTuple):
    """The stages whose weights or gradients one cell uses.

    Attributes:
        stages: the stages of its tasks, whose weights must be gathered.
        added: the stages to whose gradients it adds.
    """

    stages: AbstractSet[int]
    added: AbstractSet[int]

    @classmethod
    def by(cls, tasks: Iterable[Task]) -> Touched:
        """Returns the stages that a cell of these tasks uses."""
        tasks = list(tasks)
        return cls({task.stage for task in tasks}, {task.stage for task in tasks if task.kind in ADDING})


@dataclass(frozen=True)
class BetweenRuns:
    """The times of `Costs.gather` and `Costs.scatter`, for each stage of a schedule."""

    gathers: Sequence[float]
    scatters: Sequence[float]

    def leads(self, cells: Iterable[Touched]) -> list[float]:
        """Returns for each cell of a mesh, in order, how long the mesh scatters and gathers before that cell.

        Before a cell the mesh scatters the gradients of each stage whose run has just ended, if the run added to them.
        It gathers the weights of each stage whose run begins with this cell. The cells must not include copies.
        """
        found: list[float] = []
        before: AbstractSet[int] = frozenset()
        added: AbstractSet[int] = frozenset()
        for stages, adds in cells:
            ended, begun = added - stages, stages - before
            found.append(math.fsum((*(self.scatters[each] for each in ended), *(self.gathers[each] for each in begun))))
            before, added = stages, added & stages | adds
        return found
