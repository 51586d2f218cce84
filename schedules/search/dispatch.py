"""One run that decides as it goes: what a free mesh prefers is all there is to it, so it is fast for any size."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from jaxpp.schedules.search.problem import TOLERANCE, Problem


def dispatch(problem: Problem, ranks: Sequence[float], caps: Sequence[int]) -> list[list[int]]:
    """The orders of a run in which a free mesh starts, of what is there and fits the memory, the type of lowest rank.

    It always gets to its end, as of the memory of each mesh enough is left for the oldest microbatch.

    Args:
        problem: to solve.
        ranks: of each type.
        caps: for each stage the microbatches that may be between its forward and the end of its backward, at least 1.
    """
    run = _Run(problem, ranks, caps)
    run.run()
    return run.orders


class _Run:
    def __init__(self, problem: Problem, ranks: Sequence[float], caps: Sequence[int]) -> None:
        self.problem, self.caps = problem, caps
        self.preferred = [sorted(types, key=lambda each: ranks[each]) for types in problem.types_of]
        self.orders: list[list[int]] = [[] for _ in problem.types_of]
        self.counts = [0] * problem.types
        self.arrived = [0] * problem.types
        self.arrived[0] = problem.microbatches
        self.kept = [0.0] * problem.meshes
        self.busy = [False] * problem.meshes
        # (time, mesh that is free, -1) or (time, mesh, type whose input has arrived there).
        self.events: list[tuple[float, int, int]] = [(0.0, problem.mesh_of[0], 0)]

    def run(self) -> None:
        problem = self.problem
        instant = TOLERANCE * min(problem.times)
        while self.events:
            now = self.events[0][0]
            touched: set[int] = set()
            while self.events and self.events[0][0] <= now + instant:
                _, mesh, each = heapq.heappop(self.events)
                touched.add(mesh)
                if each < 0:
                    self.busy[mesh] = False
                elif problem.needs[each] >= 0:
                    self.arrived[each] += 1
            for mesh in sorted(touched):
                if not self.busy[mesh]:
                    self.start(mesh, now)

    def start(self, mesh: int, now: float) -> None:
        """Start the best type, if there is one."""
        problem, counts = self.problem, self.counts
        for each in self.preferred[mesh]:
            if counts[each] < self.arrived[each] and (each >= problem.stages or self.fits(mesh, each)):
                break
        else:
            return
        counts[each] += 1
        self.orders[mesh].append(each)
        self.kept[mesh] += problem.memory[each]
        self.busy[mesh] = True
        end = now + problem.times[each]
        heapq.heappush(self.events, (end, mesh, -1))
        for user in problem.users[each]:
            heapq.heappush(self.events, (end + problem.delays[user], problem.mesh_of[user], user))

    def fits(self, mesh: int, forward: int) -> bool:
        """Whether this forward fits, and leaves room for the oldest microbatch, as in a beam."""
        problem, counts = self.problem, self.counts
        size, limit = problem.memory[forward], problem.rooms[mesh]
        last = forward + problem.types - problem.stages
        if self.kept[mesh] + size > limit or counts[forward] - counts[last] >= self.caps[forward]:
            return False
        forwards = [each for each in problem.types_of[mesh] if each < problem.stages]
        oldest = min(counts[each] for each in forwards)
        if counts[forward] == oldest:
            return True
        ahead = sum(
            problem.memory[each] * max(1, counts[each] - oldest + (counts[each] == oldest)) for each in forwards
        )
        return ahead + size <= limit
