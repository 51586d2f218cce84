"""Equal slices that share out their attention, so that all take equally long (SlimPipe, arXiv 2504.14519)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.durations import task_times
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.library.sequence import seq1f1b
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task

_NONE: Final = 1e-9
"""The time of a stage without work, because times must be positive."""

_AHEAD: Final = 2
"""The number of its next slices from which a mesh may choose a task. While one slice waits for its guest, the mesh may
run a task of the slice after it."""


def slimpipe(meshes: int, microbatches: int, slices: int = 2, layers: int = 1) -> Schedule:
    """1F1B over slices of equal length; late ones have a part of their attention done elsewhere (arXiv 2504.14519).

    The schedule is for models with `slice_attention(..., exchange=True)`, which makes three stages of each layer:
    the part before the attention, the part of the attention that may be lent, and the rest. The operations after the
    rest belong to the first stage of the next layer, or to a last stage of the mesh.

    A slice that attends to more than the mean of all n slices lends the excess to the mesh with the least work. To
    choose that mesh, the schedule assumes that attention takes half of the time of a slice. Mesh i keeps min(mn, p - i
    - 1 + n) slices of its layers, or one more. If n is much larger than p, that is about one microbatch.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        slices: slices per microbatch n, at least 1.
        layers: layers of each mesh, at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    order = seq1f1b(meshes, microbatches, slices)
    simulation = _Simulation(order, exchange_stages(meshes, layers), layers)
    simulation.run()
    return Schedule.of("slimpipe", simulation.placement, simulation.orders)


def exchange_stages(meshes: int, layers: int) -> Placement:
    """Returns the stages of `layers` layers on each mesh.

    The second stage of each layer may run on any mesh.
    """
    meshes, layers = whole_number(meshes, "meshes", least=1), whole_number(layers, "layers", least=1)
    homes: list[int | Sequence[int]] = []
    after: list[Sequence[int]] = []
    for mesh in range(meshes):
        anywhere = [mesh, *(other for other in range(meshes) if other != mesh)]
        after.append([len(homes) - 1] if homes else [])
        for _ in range(layers):
            first = len(homes)
            homes += [mesh, anywhere, mesh]
            after += [[first], [first], [first, first + 1, first + 2]]
        homes.append(mesh)
    return Placement.of(*homes, after=after)


def exchange_costs(meshes: int, slices: int, layers: int = 1, attention: float = 0.5) -> Costs:
    """Returns the costs of the stages of `slimpipe`, where the forward of a microbatch takes a mesh 1.

    Args:
        meshes: number of meshes.
        slices: slices per microbatch n. Slice j attends to j + 1 slices, and lends the part above (n + 1) / 2.
        layers: layers of each mesh.
        attention: the share of the time that attention takes, above 0 and below 1.

    Raises:
        ScheduleError: a count is below 1, or `attention` is not between 0 and 1.
    """
    placement, slices = exchange_stages(meshes, layers), whole_number(slices, "slices", least=1)
    if not 0 < attention < 1:
        raise ScheduleError(f"attention must be a share above 0 and below 1, found {attention!r}")
    seen = [2 * (number + 1) / (slices + 1) for number in range(slices)]  # as a share of the mean
    lent = [max(0.0, each - 1) for each in seen]
    kept = [each - more for each, more in zip(seen, lent, strict=True)]
    dense = [(1 - attention) / (layers + 1) / slices] * slices
    parts = [dense, *([attention / layers / slices * each for each in part] for part in (lent, kept))]
    of_mesh = [parts[number % 3] for number in range(3 * layers + 1)]
    times = [math.fsum(each) or _NONE for each in of_mesh * placement.meshes]
    rows = [
        [each / time for each in row] if time > _NONE else [1 / slices] * slices
        for row, time in zip(of_mesh * placement.meshes, times, strict=True)
    ]
    return Costs(times, times, times, slices=tuple(map(tuple, rows)))


class _Simulation:
    """A simulated run of the slices in a given order, in which waiting meshes take over work of other meshes.

    Attributes:
        orders: for each mesh the tasks that it has run so far.
    """

    def __init__(self, order: Schedule, placement: Placement, layers: int) -> None:
        self.placement, self._per_mesh = placement, 3 * layers + 1
        slots = [[self._tasks_of(mesh, slot) for slot in row] for mesh, row in enumerate(order.orders)]
        at_home = Schedule.of(order.name, placement, [[task for tasks in row for task in tasks] for row in slots])
        graph, durations = at_home.graph, task_times(at_home, exchange_costs(order.meshes, order.slices, layers))
        self._times = dict(zip(graph.tasks, durations, strict=True))
        self._needs = {
            task: [graph.tasks[need] for need in needs] for task, needs in zip(graph.tasks, graph.needs, strict=True)
        }
        self.orders: list[list[Task]] = [[] for _ in order.orders]
        self._own = [
            deque(deque(task for task in tasks if task.stage % self._per_mesh % 3 != 1) for tasks in row)
            for row in slots
        ]
        self._guests: list[deque[Task]] = [deque() for _ in order.orders]
        self._free = [0.0] * order.meshes
        self._ends: dict[Task, float] = {}

    def run(self) -> None:
        """Runs the task that can start first, until no task can start.

        If several tasks could start at the same time, a guest runs before the mesh's own tasks.
        """
        while True:
            starts = [
                (max(self._free[mesh], ready), turn, mesh)
                for mesh in range(len(self._own))
                for turn, tasks in enumerate((self._guests[mesh], *islice(self._own[mesh], _AHEAD)))
                if tasks and (ready := self._ready(tasks[0])) is not None
            ]
            if not starts:
                return
            start, turn, mesh = min(starts)
            tasks = self._own[mesh][turn - 1] if turn else self._guests[mesh]
            task = tasks.popleft()
            if not tasks and turn:
                del self._own[mesh][turn - 1]
            self._free[mesh] = self._ends[task] = start + self._times[task]
            self.orders[mesh].append(task)
            self._lend(task, mesh)

    def _tasks_of(self, mesh: int, slot: Task) -> list[Task]:
        """Returns the tasks of a slice in the stages of its mesh; other meshes may run those of the lendable stages."""
        stages = range(mesh * self._per_mesh, (mesh + 1) * self._per_mesh)
        return [replace(slot, stage=stage) for stage in (stages if slot.kind == "forward" else reversed(stages))]

    def _ready(self, task: Task) -> float | None:
        """Returns the time at which all inputs of a task are done; None if an input has not run yet."""
        ends = [self._ends.get(need) for need in self._needs[task]]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def _lend(self, task: Task, mesh: int) -> None:
        """Chooses the mesh for the lendable task that becomes ready when `task` ends."""
        number = task.stage % self._per_mesh
        is_last = number == (self._per_mesh - 1 if task.kind == "forward" else 0)
        if number % 3 or is_last:
            return
        stage = task.stage + 1 if task.kind == "forward" else task.stage - 2
        guest = replace(task, stage=stage)
        most = [self._until(other, self._ends[task]) for other in range(len(self._own))]
        if self._times[guest] > _NONE:
            mesh = min(range(len(most)), key=lambda other: (most[other], other != mesh))
        self._guests[mesh].append(guest)

    def _until(self, mesh: int, now: float) -> float:
        """Returns the time at which a mesh will have finished its present work.

        That work is its guests, and the attention that it is about to begin.
        """
        tasks = [*self._guests[mesh]]
        if self._own[mesh] and self._own[mesh][0][0].stage % self._per_mesh % 3 == 2:
            tasks.append(self._own[mesh][0][0])
        return max(now, self._free[mesh]) + sum(self._times[task] for task in tasks)
