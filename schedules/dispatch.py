"""A run that decides as it goes: whenever a mesh is free it starts the best of what is ready.

What runs is numbered by *type*, a kind of task on a stage. A type runs once for each microbatch: it is ready as soon as
the types that it needs have run for that microbatch. A task costs a microsecond or a few, however many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final

TOLERANCE: Final = 1e-9
"""Sums of the same times in another order differ in their last digits: by less than this share of a time."""


class Dispatch:
    """A run; a subclass says what a mesh prefers, and what it has room for.

    Args:
        times: of each type.
        delays: of each type, from the end of what it needs to its own start; 0 on the same mesh.
        users: for each type those that need it.
        homes: for each type the mesh of each microbatch.
        meshes: their number.
        tracks: of the types that run beside the others of their mesh, what they use. Such a task is started as soon as
            its mesh comes to decide, and doesn't keep it busy.

    Attributes:
        orders: for each mesh what it has started: (type, microbatch).
        ready: for each mesh and type a heap of what could start: (priority, microbatch).
        touched: the meshes that have something new to decide.
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
        # (time, type, microbatch) of a task that ends, or, with the type as -1 - type, of one whose input arrives.
        self.events: list[tuple[float, int, int]] = []
        self.track_clocks: dict[tuple[int, str], float] = {}
        needs = [0] * len(times)
        for each in (user for some in users for user in some):
            needs[each] += 1
        self.missing = [[number] * len(home) for number, home in zip(needs, homes, strict=True)]

    def priority(self, each: int, microbatch: int) -> Any:
        """Of what is ready the least goes first; of equals the lower type, and of that the lower microbatch."""
        raise NotImplementedError

    def fits(self, mesh: int, each: int) -> bool:
        """Whether the mesh has room for a task of this type."""
        raise NotImplementedError

    def started(self, mesh: int, each: int) -> None:
        """Note that the mesh has started a task of this type."""

    def ended(self, each: int, microbatch: int) -> None:
        """Note that this task has ended."""

    def run(self) -> None:
        """Run until nothing is left that is ready and fits."""
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
        """Something that a task needs is there."""
        missing = self.missing[each]
        missing[microbatch] -= 1
        if missing[microbatch] <= 0:
            mesh = self.homes[each][microbatch]
            heapq.heappush(self.ready[mesh][each], (self.priority(each, microbatch), microbatch))
            self.touched.add(mesh)

    def _decide(self, mesh: int, now: float) -> None:
        """Start the best task that is ready and fits; before it, those that have a track of their own."""
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
