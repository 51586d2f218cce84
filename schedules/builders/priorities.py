"""Schedules by priority: a free mesh runs the ready task that it prefers. Here is 1F1B on any placement of S stages:

    by_priority("1f1b", placement, 8, lambda t: (t.kind != "forward", t.microbatch), limit=lambda stage: S - stage)

Forwards come first as long as their stage keeps fewer activations than its limit. Within a kind the oldest microbatch
comes first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.dispatch import Dispatch
from jaxpp.schedules.engine.durations import task_times
from jaxpp.schedules.errors import ScheduleError, check_size, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.kinds import Kind
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task


def by_priority(
    name: str,
    placement: Placement,
    microbatches: int,
    priority: Callable[[Task], Any],
    *,
    tasks: Iterable[str | Kind] = ("forward", "backward"),
    limit: Callable[[int], int] | None = None,
    in_flight: Callable[[int], int] | None = None,
    mesh_of: Callable[[Task], int] | None = None,
    costs: Costs | None = None,
    slices: int = 1,
) -> Schedule:
    """Returns the schedule of a run in which a free mesh starts the ready task with the lowest priority number.

    The run uses the times of `costs`, but the schedule keeps only its order. Hops take no time in the run. Tasks of a
    kind that runs beside its mesh (a copy to the host) start when their mesh next chooses, and do not keep it busy.

    Args:
        name: the name of the schedule.
        placement: which mesh holds which stage.
        microbatches: their number, at least 1.
        priority: the priority of a task, a number or a tuple; ties go to the lower microbatch, then the higher stage.
        tasks: the kinds that every stage runs for every microbatch; a user's kind as `Kind`.
        limit: for each stage the most activations of it that a mesh keeps alive; with slices, activations of slices. No
            forward starts beyond the limit.
        in_flight: for each stage the most microbatches whose forward has begun and whose input gradient has not ended.
            It differs from `limit` where weight gradients come later.
        mesh_of: the mesh of a task, if its stage is on several.
        costs: the times of the tasks; by default F, I and W take equally long, and B twice as long.
        slices: the number of slices of each microbatch's sequence; each slice takes an equal share of the time.

    Raises:
        ScheduleError: when a number is below 1, or the kinds do not make a valid schedule. Also when the limits stop
            the run, or the costs have sizes of microbatches or slices.
    """
    microbatches, costs = whole_number(microbatches, "microbatches", least=1), costs or Costs()
    costs.refuse_sizes("by_priority")
    costs = replace(costs, microbatches=())
    kinds = {kind if isinstance(kind, str) else kind.name: kind for kind in tasks}
    parts = range(whole_number(slices, "slices", least=1))
    check_size(name, stages=placement.stages, microbatches=microbatches, slices=len(parts))
    types = [
        [Task(kind, stage, mb, part) for mb in range(microbatches)]
        for kind, stage, part in product(kinds, range(placement.stages), parts)
    ]
    homes = [_homes(name, placement, tasks, mesh_of) for tasks in types]
    rows: list[list[Task]] = [[] for _ in range(placement.meshes)]
    for tasks_of, (mesh, *_) in zip(types, homes, strict=True):
        rows[mesh].append(tasks_of[0])
    first = Schedule.of(name, placement, rows, [kind for kind in kinds.values() if isinstance(kind, Kind)])
    if first.graph.lacking or not first.rules.keys() >= kinds.keys():
        check(first)
    run = _ByPriority(first, costs, types, homes, priority, limit, in_flight)
    run.run()
    run.check_done()
    orders = tuple(tuple(types[each][microbatch] for each, microbatch in order) for order in run.orders)
    schedule = replace(first, orders=orders)
    check(schedule)
    return schedule


def _homes(
    name: str, placement: Placement, tasks: Sequence[Task], mesh_of: Callable[[Task], int] | None
) -> Sequence[int]:
    """Returns the mesh of each of these tasks of one stage."""
    stage = tasks[0].stage
    homes = placement.homes[stage]
    if mesh_of is None and len(homes) == 1:
        return homes * len(tasks)
    if mesh_of is None:
        raise ScheduleError(f"{name}: stage {stage} is on several meshes: mesh_of must say which runs a task")
    found = list(map(mesh_of, tasks))
    for task, mesh in zip(tasks, found, strict=True):
        if mesh not in homes:
            raise ScheduleError(f"{name}: mesh_of sends {task.words} to mesh {mesh!r}, expected one of {homes}")
    return found


class _ByPriority(Dispatch):
    """A run over all microbatches; `first` has the tasks of the first microbatch, which give the needs of all."""

    def __init__(
        self,
        first: Schedule,
        costs: Costs,
        types: Sequence[Sequence[Task]],
        homes: Sequence[Sequence[int]],
        preferred: Callable[[Task], Any],
        limit: Callable[[int], int] | None,
        in_flight: Callable[[int], int] | None,
    ) -> None:
        self.types, self.preferred, self.stages = types, preferred, [tasks[0].stage for tasks in types]
        graph = first.graph
        type_of = {tasks[0]: each for each, tasks in enumerate(types)}
        numbers = [type_of[task] for task in graph.tasks]
        times = [0.0] * len(types)
        users: list[list[int]] = [[] for _ in types]
        for each, time, needs in zip(numbers, task_times(first, costs), graph.needs, strict=True):
            times[each] = time
            for need in needs:
                users[numbers[need]].append(each)
        tracks = {numbers[number]: graph.tracks[number] for number in graph.asides}
        super().__init__(times, [0.0] * len(types), users, homes, first.meshes, tracks)
        forwards = {tasks[0].unit: each for each, tasks in enumerate(types) if tasks[0].kind == "forward"}
        # A limit counts activations from their forward to the last task of their stage, or to their input gradient.
        kinds = graph.numbers.keys()
        ends = (
            "weight_grad" if "weight_grad" in kinds else "backward",
            "input_grad" if "input_grad" in kinds else "backward",
        )
        given = [(most, end) for most, end in zip((limit, in_flight), ends, strict=True) if most]
        self.limits = {each: [most(stage) for most, _ in given] for (stage, _, _), each in forwards.items()}
        self.frees = {
            each: [(number, forwards[tasks[0].unit]) for number, (_, end) in enumerate(given) if tasks[0].kind == end]
            for each, tasks in enumerate(types)
        }
        # The number of activations by (mesh that keeps them, index of the limit, stage).
        self.alive: dict[tuple[int, int, int], int] = defaultdict(int)

    def priority(self, each: int, microbatch: int) -> Any:
        task = self.types[each][microbatch]
        return self.preferred(task), microbatch, -task.stage

    def fits(self, mesh: int, each: int) -> bool:
        limits, stage = self.limits.get(each, ()), self.stages[each]
        return all(self.alive[mesh, number, stage] < most for number, most in enumerate(limits))

    def started(self, mesh: int, each: int) -> None:
        for number in range(len(self.limits.get(each, ()))):
            self.alive[mesh, number, self.stages[each]] += 1

    def ended(self, each: int, microbatch: int) -> None:
        for number, forward in self.frees[each]:
            mesh = self.homes[forward][microbatch]
            self.alive[mesh, number, self.stages[forward]] -= 1
            self.touched.add(mesh)

    def check_done(self) -> None:
        """Checks that all tasks have run.

        Raises:
            ScheduleError: when a limit stops the run, or tasks wait for one another; the message names a stuck task.
        """
        if sum(map(len, self.orders)) == sum(map(len, self.types)):
            return
        held = [(each, heap[0][1]) for heaps in self.ready for each, heap in heaps.items() if heap]
        if not held:
            raise ScheduleError("the kinds of tasks need one another in a circle: nothing can run")
        each, microbatch = min(held, key=lambda one: (one[1], self.types[one[0]][0].slice))
        task = self.types[each][microbatch]
        kept = max(
            self.alive[self.homes[each][microbatch], number, task.stage] for number in range(len(self.limits[each]))
        )
        alive = f"{kept} activations of stage {task.stage} are alive"
        of_slices = ": a limit counts those of slices" if any(tasks[0].slice for tasks in self.types) else ""
        raise ScheduleError(
            f"nothing can run on: {task.words} is beyond the limit, as {alive} and none can be freed{of_slices}"
        )
