"""The scheduling problem that the search solves, in numbers instead of tasks.

A *type* is a kind of task on a stage. All microbatches are alike, so that some best schedule runs each type in the
order of microbatches. If two microbatches were in the wrong order, their tasks could be exchanged without another delay
or byte. The order of a mesh is therefore a list of types. The n-th occurrence of a type is its task for microbatch n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.durations import cells_of
from jaxpp.schedules.engine.memory import MemoryLimits, changes
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.between_runs import BetweenRuns, Touched
from jaxpp.schedules.model.run import Cells, run
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Objective: TypeAlias = Literal["makespan", "longest_stage"]
Limits: TypeAlias = "float | Sequence[float] | NDArray[np.float64] | None"
"""A limit for every mesh, or one limit per mesh; None or infinity: no limit."""

Orders: TypeAlias = Sequence[Sequence[int]]
"""For each mesh its types, in the order in which it runs them."""

OBJECTIVES: Final = ("makespan", "longest_stage")


@dataclass(frozen=True)
class Problem:
    """A placement, the costs of its types, and the limits; times are in the unit of the costs.

    The types are numbered kind by kind: forwards of all stages, then backwards (or input gradients), then weight
    gradients. A microbatch goes up the stages forward and down again backward. A weight gradient needs only its input
    gradient, and no type needs it.

    Attributes:
        placement: a placement with each stage on one mesh.
        microbatches: their number, at least 1.
        kinds: "forward", "backward" or "forward", "input_grad", "weight_grad".
        times: the duration of each type.
        delays: for each type, the time from the end of the type that it needs to its own start; 0 on the same mesh.
        memory: for each type, the memory that it adds to its mesh, negative if it frees memory.
        limits: for each mesh, the limit of its memory.
        objective: the value to minimize.
        between: the work of meshes between runs of tasks of one stage; None if it takes no time.
    """

    placement: Placement
    microbatches: int
    kinds: tuple[str, ...]
    times: list[float]
    delays: list[float]
    memory: list[float]
    limits: list[float]
    objective: Objective = "makespan"
    between: BetweenRuns | None = None

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.placement.stages

    @property
    def meshes(self) -> int:
        """The number of meshes."""
        return self.placement.meshes

    @property
    def types(self) -> int:
        """The number of types."""
        return len(self.times)

    @cached_property
    def mesh_of(self) -> list[int]:
        """The mesh of each type."""
        return [mesh for mesh, *_ in self.placement.homes] * len(self.kinds)

    @cached_property
    def needs(self) -> list[int]:
        """For each type the type of the same microbatch that it needs, or -1."""
        stages = self.stages
        backwards = [*range(stages + 1, 2 * stages), stages - 1]
        return [*range(-1, stages - 1), *backwards, *range(stages, self.types - stages)]

    @cached_property
    def chain(self) -> list[int]:
        """The types that a microbatch passes one after the other: the forwards up, then the backwards down."""
        return [*range(self.stages), *range(2 * self.stages - 1, self.stages - 1, -1)]

    @cached_property
    def types_of(self) -> list[list[int]]:
        """The types of each mesh."""
        held: list[list[int]] = [[] for _ in range(self.meshes)]
        for kind, mesh in enumerate(self.mesh_of):
            held[mesh].append(kind)
        return held

    @cached_property
    def users(self) -> list[list[int]]:
        """For each type, the types that need it."""
        users: list[list[int]] = [[] for _ in self.times]
        for user, need in enumerate(self.needs):
            if need >= 0:
                users[need].append(user)
        return users

    @cached_property
    def heads(self) -> list[float]:
        """For each type, the time from the start of a microbatch to its own start if nothing else delays it."""
        heads = [0.0] * self.types
        for each in [*self.chain, *range(2 * self.stages, self.types)]:
            need = self.needs[each]
            if need >= 0:
                heads[each] = heads[need] + self.times[need] + self.delays[each]
        return heads

    @cached_property
    def tails(self) -> NDArray[np.float64]:
        """For each type and mesh, the least time from its end to the end of all tasks there that depend on it.

        It is minus infinity where no task of the mesh does.
        """
        import numpy as np  # imported here, as only searches need it: schedules start faster

        tails = np.full((self.types, self.meshes), -np.inf)
        for each in [*range(2 * self.stages, self.types), *reversed(self.chain)]:
            tails[each, self.mesh_of[each]] = 0.0
            for user in self.users[each]:
                tails[each] = np.maximum(tails[each], self.delays[user] + self.times[user] + tails[user])
        return tails

    @cached_property
    def loads(self) -> list[float]:
        """For each mesh, the sum of its tasks' times."""
        return [self.microbatches * math.fsum(self.times[each] for each in types) for types in self.types_of]

    @cached_property
    def rooms(self) -> list[float]:
        """The limits, plus a tolerance for sums of the same bytes in another order."""
        return [limit * (1 + TOLERANCE) + TOLERANCE for limit in self.limits]

    @cached_property
    def touched(self) -> list[Touched]:
        """For each type, the stages whose weights and gradients its task uses."""
        return [Touched.by([Task(kind, stage, 0)]) for kind in self.kinds for stage in range(self.stages)]

    def run(self, orders: Orders) -> list[list[float]] | None:
        """Returns the end of each task of each mesh, in its order; None if the orders deadlock."""
        rows = self.rows(orders)
        found = run(self.cells, rows)
        return [[found.ends[cell] for cell in row] for row in rows] if found.whole else None

    def rows(self, orders: Orders) -> list[list[int]]:
        """Returns the cells of each mesh, in its order: cell `type * microbatches + microbatch`."""
        most, counts = self.microbatches, [0] * self.types
        rows: list[list[int]] = []
        for order in orders:
            row: list[int] = []
            for each in order:
                row.append(each * most + counts[each])
                counts[each] += 1
            rows.append(row)
        return rows

    @cached_property
    def cells(self) -> Cells:
        """The tasks of all microbatches, one by one."""
        most, needs = self.microbatches, list(zip(self.needs, self.delays, strict=True))
        return Cells(
            self.rows(self.one_by_one),
            [time for time in self.times for _ in range(most)],
            [[(need * most + number, delay)] if need >= 0 else [] for need, delay in needs for number in range(most)],
            between=self.between,
            touched=[touched for touched in self.touched for _ in range(most)] if self.between else (),
        )

    def value(self, orders: Orders) -> float:
        """Returns the objective for orders that fit the memory; infinity if they deadlock."""
        rows = self.run(orders)
        if rows is None:
            return math.inf
        if self.objective == "makespan":
            return max(row[-1] for row in rows)
        return max(row[-1] - row[0] + self.times[order[0]] for row, order in zip(rows, orders, strict=True))

    def fits(self, orders: Orders) -> bool:
        """Whether no mesh ever exceeds its memory limit."""
        for order, room in zip(orders, self.rooms, strict=True):
            kept = 0.0
            for each in order:
                kept += self.memory[each]
                if kept > room:
                    return False
        return True

    @property
    def one_by_one(self) -> list[list[int]]:
        """The orders with the least memory, one microbatch after the other."""
        stages, split = self.stages, len(self.kinds) > 2
        rows: list[list[int]] = [[] for _ in range(self.meshes)]
        for each in self.chain:
            rows[self.mesh_of[each]] += [each, each + stages] if split and each >= stages else [each]
        return [row * self.microbatches for row in rows]

    def schedule(self, name: str, orders: Orders) -> Schedule:
        """Returns the orders as a schedule."""

        def task(cell: int) -> Task:
            each, microbatch = divmod(cell, self.microbatches)
            return Task(self.kinds[each // self.stages], each % self.stages, microbatch)

        return Schedule(name, self.placement, tuple(tuple(map(task, row)) for row in self.rows(orders)))

    def orders(self, schedule: Schedule) -> list[list[int]] | None:
        """Returns the types of a schedule's tasks on this placement.

        A whole backward becomes two types if the problem splits backwards. Returns None for a schedule with other
        kinds, fused tasks, or slices.
        """
        split = len(self.kinds) > 2
        numbers: dict[str, tuple[int, ...]]
        numbers = {kind: (number * self.stages,) for number, kind in enumerate(self.kinds)}
        if split:
            numbers["backward"] = (self.stages, 2 * self.stages)
        if schedule.slices > 1 or schedule.fused or not {task.kind for task in schedule} <= numbers.keys():
            return None
        return [[first + task.stage for task in order for first in numbers[task.kind]] for order in schedule.orders]


def make_problem(
    placement: Placement,
    microbatches: int,
    costs: Costs,
    memory: MemoryLimits,
    objective: Objective,
    split_backward: bool,
) -> Problem:
    """Returns the problem of a placement under costs and limits.

    Raises:
        ScheduleError: when a stage is on several meshes, or the stages are a graph. Also when the costs are for other
            stages, or have sizes of microbatches or slices.
    """
    costs.refuse_sizes("search")
    for stage, homes in enumerate(placement.homes):
        if len(homes) > 1:
            raise ScheduleError(f"search: each stage must be on one mesh, found stage {stage} on {len(homes)}")
    if placement.after:
        raise ScheduleError("the stages of this placement are a graph: schedules.search takes it, or 1f1b and zb-h1")
    kinds = ("forward", "input_grad", "weight_grad") if split_backward else ("forward", "backward")
    stages = range(placement.stages)
    order = [Task("forward", stage, 0) for stage in stages]
    order += [Task(kind, stage, 0) for stage in reversed(stages) for kind in kinds[1:]]
    rows = [[task for task in order if placement[task.stage] == mesh] for mesh in range(placement.meshes)]
    one = Schedule.of("search", placement, rows)  # of one microbatch
    graph, cells = one.graph, cells_of(one, costs)
    types = [kinds.index(task.kind) * one.stages + task.stage for task in graph.tasks]
    times, delays, sizes = ([0.0] * len(types) for _ in range(3))
    for each, time, waits in zip(types, cells.times, cells.waits, strict=True):
        times[each], delays[each] = time, max((delay for _, delay in waits), default=0.0)
    whole = memory.sizes(one, costs)
    for number, start, end in (each for mesh in range(one.meshes) for each in changes(graph, mesh, whole)):
        sizes[types[number]] = start + end
    limits = list(memory.limits)
    return Problem(placement, microbatches, kinds, times, delays, sizes, limits, objective, cells.between)
