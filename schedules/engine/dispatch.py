"""A list scheduler: whenever a mesh is free, it starts the best of its ready tasks.

Tasks are identified by *type*, an index that stands for a kind of task on a stage, and by microbatch. A task is ready
when the types that its type needs have run for its microbatch. Starting a task takes one or a few microseconds,
regardless of the number of tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final

TOLERANCE: Final = 1e-9
"""The share of a time within which two times are equal: sums in another order differ in their last digits."""


class Dispatch:
    """A run of the list scheduler; a subclass defines the priorities, and the memory limit of a mesh.

    Args:
        times: the duration of each type.
        delays: for each type, the time from the end of a needed task to its own start; 0 on the same mesh.
        users: for each type, the types that need it.
        homes: for each type, the mesh of each microbatch.
        meshes: their number.
        tracks: for each type that runs beside the other tasks of its mesh, the resources that it uses. Such a task
            starts when its mesh next chooses, and does not keep the mesh busy.

    Attributes:
        orders: for each mesh the tasks that it has started, as (type, microbatch).
        ready: for each mesh and type a heap of the ready tasks, as (priority, microbatch).
        touched: the meshes that may be able to start a task.
    """

    def __init__(
        self,
        times: Sequence[float],
        delays: Sequence[float],
        users: Sequence[Sequence[int]],
        homes: Sequence[Sequence[int]],
        meshes: int,
        tracks: Mapping[int, tuple[str, ...]],
    ) -> None:
        self.times, self.delays, self.users, self.homes, self.tracks = times, delays, users, homes, tracks
        self.orders: list[list[tuple[int, int]]] = [[] for _ in range(meshes)]
        self.ready: list[dict[int, list[tuple[Any, int]]]] = [{} for _ in range(meshes)]
        for each, home in enumerate(homes):
            for mesh in set(home):
                self.ready[mesh][each] = []
        self.busy = [False] * meshes
        self.touched: set[int] = set()
        # (time, type, microbatch): a task ends. With -1 - type in place of the type: its input arrives.
        self.events: list[tuple[float, int, int]] = []
        self.track_clocks: dict[tuple[int, str], float] = {}
        needs = [0] * len(times)
        for each in (user for some in users for user in some):
            needs[each] += 1
        self.missing = [[number] * len(home) for number, home in zip(needs, homes, strict=True)]

    def priority(self, each: int, microbatch: int) -> Any:
        """Returns the priority of a ready task: the least runs first, and of equals the lowest (type, microbatch)."""
        raise NotImplementedError

    def fits(self, mesh: int, each: int) -> bool:
        """Whether the mesh has memory for a task of this type."""
        raise NotImplementedError

    def started(self, mesh: int, each: int) -> None:
        """Records that the mesh has started a task of this type."""

    def ended(self, each: int, microbatch: int) -> None:
        """Records that this task has ended."""

    def run(self) -> None:
        """Runs until no ready task fits."""
        events, busy, touched = self.events, self.busy, self.touched
        instant, now = TOLERANCE * min(self.times, default=0.0), 0.0
        for each, missing in enumerate(self.missing):
            if missing[0] == 0:
                for microbatch in range(len(missing)):
                    self._arrive(each, microbatch)
        while touched or events:
            for mesh in touched:
                if not busy[mesh]:
                    self._decide(mesh, now)
            touched.clear()
            now = events[0][0] if events else now
            while events and events[0][0] <= now + instant:
                time, each, microbatch = heapq.heappop(events)
                if each < 0:
                    self._arrive(-1 - each, microbatch)
                    continue
                if each not in self.tracks:
                    mesh = self.homes[each][microbatch]
                    busy[mesh] = False
                    touched.add(mesh)
                self.ended(each, microbatch)
                for user in self.users[each]:
                    if self.delays[user]:
                        heapq.heappush(events, (time + self.delays[user], -1 - user, microbatch))
                    else:
                        self._arrive(user, microbatch)

    def _arrive(self, each: int, microbatch: int) -> None:
        """Counts one needed value of a task as arrived; the task is ready once none is missing."""
        missing = self.missing[each]
        missing[microbatch] -= 1
        if missing[microbatch] <= 0:
            mesh = self.homes[each][microbatch]
            heapq.heappush(self.ready[mesh][each], (self.priority(each, microbatch), microbatch))
            self.touched.add(mesh)

    def _decide(self, mesh: int, now: float) -> None:
        """Starts ready tasks in order of priority, up to and including the first that keeps the mesh busy."""
        ready, tracks = self.ready[mesh], self.tracks
        while True:
            best, least = -1, None
            for each, heap in ready.items():
                if heap and (best < 0 or heap[0][0] < least) and self.fits(mesh, each):
                    best, least = each, heap[0][0]
            if best < 0:
                return
            _, microbatch = heapq.heappop(ready[best])
            self.orders[mesh].append((best, microbatch))
            self.started(mesh, best)
            if best not in tracks:
                self.busy[mesh] = True
                heapq.heappush(self.events, (now + self.times[best], best, microbatch))
                return
            keys = [(mesh, name) for name in tracks[best]]
            end = max([now, *(self.track_clocks.get(key, 0.0) for key in keys)]) + self.times[best]
            self.track_clocks.update(dict.fromkeys(keys, end))
            heapq.heappush(self.events, (end, best, microbatch))
