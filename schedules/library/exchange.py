"""Slices of equal length that share out their attention, so that all take equally long (SlimPipe, arXiv 2504.14519)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, cast

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.library.sequence import seq1f1b
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement, Task

_NONE: Final = 1e-9
"""The time of a stage that has nothing to do, as times are positive."""

_AHEAD: Final = 2
"""Of how many of its next slices a mesh may run a task: of the one behind, while the one before waits for its guest."""


def slimpipe(meshes: int, microbatches: int, slices: int = 2, layers: int = 1) -> Schedule:
    """1F1B over slices of equal length; late ones have a part of their attention done elsewhere (arXiv 2504.14519).

    For models with `jaxpp.slice_attention(..., exchange=True)`, which makes three stages of each layer: what comes
    before its attention, what it may lend of that, and the rest. What follows is in the first stage of the next layer,
    or in a last stage of the mesh. A slice that attends to more than the mean of all n lends what is more to the mesh
    that has least to do; to decide that, attention takes half of the time of a slice. Mesh i keeps
    min(mn, p - i - 1 + n) slices of its layers, or one more: about one microbatch, where n is much larger than p.

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
    """The stages of so many layers on each mesh; the second of each three may run on any mesh."""
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
    """What the stages of `slimpipe` cost, where a mesh takes 1 for the forward of a microbatch.

    Args:
        meshes: number of meshes.
        slices: slices per microbatch n. Slice j attends to j + 1 slices, and lends what is more than (n + 1) / 2.
        layers: layers of each mesh.
        attention: its share of the time, above 0 and below 1.

    Raises:
        ScheduleError: a number is not of these.
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
    """A simulated run of the slices in a given order, in which meshes that wait are lent to.

    Attributes:
        orders: for each mesh the tasks so far.
    """

    def __init__(self, order: Schedule, placement: Placement, layers: int) -> None:
        self.placement, self._layers, self._slices = placement, layers, order.slices
        costs = exchange_costs(order.meshes, order.slices, layers)
        times, shares = cast("Sequence[float]", costs.forward), cast("Sequence[Sequence[float]]", costs.slices)
        self._times = [[time * share for share in row] for time, row in zip(times, shares, strict=True)]
        self.orders: list[list[Task]] = [[] for _ in order.orders]
        self._own = [deque(self._tasks_of(mesh, slot) for slot in slots) for mesh, slots in enumerate(order.orders)]
        self._guests: list[deque[Task]] = [deque() for _ in order.orders]
        self._free = [0.0] * order.meshes
        self._ends: dict[Task, float] = {}

    def run(self) -> None:
        """Whatever can start first, does; at once guests go before what a mesh has to do itself."""
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
            self._free[mesh] = self._ends[task] = start + self._time(task)
            self.orders[mesh].append(task)
            self._lend(task, mesh)

    def _tasks_of(self, mesh: int, slot: Task) -> deque[Task]:
        """What a mesh does itself of a slice: the stages that are at home there and nowhere else."""
        per_mesh = 3 * self._layers + 1
        stages = [mesh * per_mesh + number for number in range(per_mesh) if number % 3 != 1]
        order = stages if slot.kind == "forward" else reversed(stages)
        return deque(Task(slot.kind, stage, slot.microbatch, slot.slice) for stage in order)

    def _ready(self, task: Task) -> float | None:
        """When all that a task needs is done; None where that is unknown yet."""
        kind, stage, microbatch, part = task.kind, task.stage, task.microbatch, task.slice
        is_forward = kind == "forward"
        needs = [Task(kind, other, microbatch, part) for other in self.placement.near(stage, -1 if is_forward else 1)]
        if 0 <= (before := part - 1 if is_forward else part + 1) < self._slices:
            needs.append(Task(kind, stage, microbatch, before))
        if not is_forward:
            needs.append(Task("forward", stage, microbatch, part))
        ends = [self._ends.get(each) for each in needs]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def _time(self, task: Task) -> float:
        """A backward takes twice as long as its forward."""
        return self._times[task.stage][task.slice] * (1 if task.kind == "forward" else 2)

    def _lend(self, task: Task, mesh: int) -> None:
        """Once it is known what may be lent, choose who does it."""
        number = task.stage % (3 * self._layers + 1)
        is_last = number == (3 * self._layers if task.kind == "forward" else 0)
        if number % 3 or is_last:
            return
        stage = task.stage + 1 if task.kind == "forward" else task.stage - 2
        guest = Task(task.kind, stage, task.microbatch, task.slice)
        most = [self._until(other, self._ends[task]) for other in range(len(self._own))]
        if self._time(guest) > _NONE:
            mesh = min(range(len(most)), key=lambda other: (most[other], other != mesh))
        self._guests[mesh].append(guest)

    def _until(self, mesh: int, now: float) -> float:
        """When a mesh will have done what it has to do: its guests, and the attention that it is about to begin."""
        tasks = [*self._guests[mesh]]
        if self._own[mesh] and self._own[mesh][0][0].stage % (3 * self._layers + 1) % 3 == 2:
            tasks.append(self._own[mesh][0][0])
        return max(now, self._free[mesh]) + sum(map(self._time, tasks))
