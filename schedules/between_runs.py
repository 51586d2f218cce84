"""What a mesh does between runs of its tasks: it scatters gradients, and gathers weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

from jaxpp.schedules.task import Task

ADDING: Final = ("backward", "weight_grad")
"""The kinds of tasks that add to the gradients of their stage's weights."""


class Touched(NamedTuple):
    """What one cell touches.

    Attributes:
        stages: those of its tasks: their weights are gathered.
        added: those whose gradients it adds to.
    """

    stages: AbstractSet[int]
    added: AbstractSet[int]

    @classmethod
    def by(cls, tasks: Iterable[Task]) -> Touched:
        """What a cell of these tasks touches."""
        tasks = list(tasks)
        return cls({task.stage for task in tasks}, {task.stage for task in tasks if task.kind in ADDING})


@dataclass(frozen=True)
class BetweenRuns:
    """The times of `Costs.gather` and `Costs.scatter`, for each stage of a schedule."""

    gathers: Sequence[float]
    scatters: Sequence[float]

    def leads(self, cells: Iterable[Touched]) -> list[float]:
        """The time for which a mesh scatters and gathers before each of its cells, in their order; give no copies.

        It scatters the gradients of the run before, if there are any, and gathers the weights of this cell's stages.
        """
        found: list[float] = []
        before: AbstractSet[int] = frozenset()
        added: AbstractSet[int] = frozenset()
        for stages, adds in cells:
            ended, begun = added - stages, stages - before
            found.append(math.fsum((*(self.scatters[each] for each in ended), *(self.gathers[each] for each in begun))))
            before, added = stages, added & stages | adds
        return found
