"""Priorities: a schedule from what a free mesh prefers, such as 1F1B on any placement of S stages.

    by_priority("1f1b", placement, 8, lambda t: (t.kind == "forward", t.microbatch), limit=lambda stage: S - stage)

Backwards go first, then the oldest microbatch, and no stage keeps more activations than its limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxpp.schedules.check import check
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.graph import Graph
from jaxpp.schedules.kinds import Kind
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.simulate import task_times
from jaxpp.schedules.task import Placement, Task


def by_priority(
    name: str,
    placement: Placement,
    microbatches: int,
    priority: Callable[[Task], Any],
    *,
    tasks: Iterable[str | Kind] = ("forward", "backward"),
    limit: Callable[[int], int] | None = None,
    mesh_of: Callable[[Task], int] | None = None,
    costs: Costs | None = None,
) -> Schedule:
    """Whenever a mesh is free it runs, of what is ready, the task of the lowest priority number.

    The run that decides has the times of `costs`; only its order is kept. Hops take no time in it. Tasks of a kind
    with a track (a copy to the host) are started as soon as their mesh comes to decide, and keep it no longer.

    Args:
        name: of the schedule.
        placement: which mesh holds which stage.
        microbatches: at least 1.
        priority: of a task: a number, or a tuple to compare; ties go to the lower microbatch, then the higher stage.
        tasks: the kinds that every stage runs for every microbatch; a user's as `Kind`.
        limit: for each stage the most activations that it keeps alive: no forward starts beyond it.
        mesh_of: the mesh of a task, where its stage is on several.
        costs: times of the tasks; by default F, I and W take equally long, and B as long as two.

    Raises:
        ScheduleError: a count is below 1, the kinds do not make a valid schedule, or the limits let nothing run on.
    """
    microbatches = whole_number(microbatches, "microbatches", least=1)
    kinds = {kind if isinstance(kind, str) else kind.name: kind for kind in tasks}
    rows: list[list[Task]] = [[] for _ in range(placement.meshes)]
    for stage, homes in enumerate(placement.homes):
        if stage in placement.spread or (len(homes) > 1 and mesh_of is None):
            raise ScheduleError(f"{name}: stage {stage} is on several meshes: mesh_of must say which runs a task")
        for task in (Task(word, stage, mb) for word in kinds for mb in range(microbatches)):
            mesh = mesh_of(task) if mesh_of else placement[stage]
            if mesh not in homes:
                raise ScheduleError(f"{name}: mesh_of sends {task.words} to mesh {mesh!r}, expected one of {homes}")
            rows[mesh].append(task)
    pool = Schedule.of(name, placement, rows, [kind for kind in kinds.values() if isinstance(kind, Kind)])
    if pool.graph.lacking or not pool.rules.keys() >= kinds.keys():
        check(pool)
    keys = [(priority(task), task.microbatch, -task.stage) for task in pool.graph.tasks]
    schedule = replace(pool, orders=_Run(pool.graph, task_times(pool, costs or Costs()), keys, limit).run())
    check(schedule)
    return schedule


@dataclass
class _Run:
    """A run that decides as it goes, over the numbers of a graph whose rows have no order yet."""

    graph: Graph
    durations: Sequence[float]
    keys: Sequence[Any]
    limit: Callable[[int], int] | None
    orders: list[list[Task]] = field(init=False)
    # Tasks that have all they need, by mesh; those that a limit holds back are put back.
    ready: list[list[tuple[Any, int]]] = field(init=False)
    alive: dict[int, int] = field(default_factory=dict[int, int])
    events: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])

    def __post_init__(self) -> None:
        graph = self.graph
        self.orders = [[] for _ in graph.rows]
        self.ready = [[] for _ in graph.rows]
        self.homes = [mesh for mesh, row in enumerate(graph.rows) for _ in row]
        self.missing = [len(needs) for needs in graph.needs]
        self.users: list[list[int]] = [[] for _ in graph.tasks]
        self.busy_with = [-1] * len(graph.rows)
        self.track_clocks: dict[tuple[int, str], float] = {}
        # Sums of the same times in another order differ in their last digits.
        self.tolerance = 1e-9 * min(self.durations, default=0.0)
        for number, needs in enumerate(graph.needs):
            for need in needs:
                self.users[need].append(number)

    def run(self) -> tuple[tuple[Task, ...], ...]:
        for number, missing in enumerate(self.missing):
            if not missing:
                self.offer(number)
        now = 0.0
        while True:
            for mesh in range(len(self.orders)):
                if self.busy_with[mesh] < 0:
                    self.decide(mesh, now)
            if not self.events:
                break
            now = self.events[0][0]
            while self.events and self.events[0][0] <= now + self.tolerance:
                _, mesh, number = heapq.heappop(self.events)
                if self.busy_with[mesh] == number:
                    self.busy_with[mesh] = -1
                self.finish(number)
        self.check_done()
        return tuple(map(tuple, self.orders))

    def offer(self, number: int) -> None:
        heapq.heappush(self.ready[self.homes[number]], (self.keys[number], number))

    def decide(self, mesh: int, now: float) -> None:
        """Start the best task that is ready, and before it the copies that are."""
        held: list[tuple[Any, int]] = []
        while self.ready[mesh]:
            entry = heapq.heappop(self.ready[mesh])
            number = entry[1]
            if not self.fits(number):
                held.append(entry)
                continue
            self.start(mesh, number, now)
            if number not in self.graph.tracks:
                break
        for entry in held:
            heapq.heappush(self.ready[mesh], entry)

    def fits(self, number: int) -> bool:
        task = self.graph.tasks[number]
        return not self.limit or task.kind != "forward" or self.alive.get(task.stage, 0) < self.limit(task.stage)

    def start(self, mesh: int, number: int, now: float) -> None:
        task, track = self.graph.tasks[number], self.graph.tracks.get(number)
        self.orders[mesh].append(task)
        self.alive[task.stage] = self.alive.get(task.stage, 0) + (task.kind == "forward")
        if track is None:
            self.busy_with[mesh] = number
        else:
            now = max(now, self.track_clocks.get((mesh, track), 0.0))
            self.track_clocks[mesh, track] = now + self.durations[number]
        heapq.heappush(self.events, (now + self.durations[number], mesh, number))

    def finish(self, number: int) -> None:
        task = self.graph.tasks[number]
        releases = "weight_grad" if "weight_grad" in self.graph.numbers else "backward"
        self.alive[task.stage] -= task.kind == releases
        for user in self.users[number]:
            self.missing[user] -= 1
            if not self.missing[user]:
                self.offer(user)

    def check_done(self) -> None:
        """Name what is stuck.

        Raises:
            ScheduleError: a limit lets nothing run on, or tasks wait for one another.
        """
        if sum(map(len, self.orders)) == len(self.graph.tasks):
            return
        held = [number for row in self.ready for _, number in row]
        if not held:
            raise ScheduleError("the kinds of tasks need one another in a circle: nothing can run")
        task = self.graph.tasks[held[0]]
        alive = f"{self.alive.get(task.stage, 0)} activations of stage {task.stage} are alive"
        raise ScheduleError(f"nothing can run on: {task.words} is beyond the limit, as {alive} and none can be freed")
