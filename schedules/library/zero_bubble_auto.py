"""The automatic scheduler of Zero Bubble (arXiv 2401.10241), which makes ZB-1p and ZB-2p."""

from __future__ import annotations

import itertools
from typing import Final

from jaxpp.schedules.engine.problem import Problem

F: Final = 0
I: Final = 1  # noqa: E741  # the letter of the grid
W: Final = 2


def best_orders(problem: Problem) -> list[list[int]]:
    """Returns the orders with the shortest longest stage that the heuristic finds.

    The heuristic runs once for each of its eight combinations of choices. It always finds orders if each mesh has
    memory for at least one activation.

    Args:
        problem: with a stage per mesh, and the backward split.
    """
    runs = [_Heuristic(problem, *choices) for choices in itertools.product((True, False), repeat=3)]
    for run in runs:
        run.schedule()
    return min(runs, key=_Heuristic.longest_stage).orders


class _Heuristic:
    """A run of the heuristic, which adds one microbatch after another.

    For each microbatch the run places forwards, then input gradients, and weight gradients fill the gaps before them.
    The choices are:

    - `bubble_first`: a mesh takes one more forward only if that ends before the first input gradient can start;
    - `gradient_first`: a forward may wait if the next mesh has run at least two forwards less;
    - `fill`: a weight gradient may fill a shorter gap even on a mesh that has not idled most.

    Attributes:
        times: for each kind, the time on each mesh. `changes` (of the memory) and `delays` (of the input) have the same
            shape.
        ends: for each kind and mesh, when its tasks end.
        clocks: when each mesh is free.
        memory: the activations that each mesh keeps.
        idle: how long each mesh has idled since its first task.
    """

    def __init__(self, problem: Problem, bubble_first: bool, gradient_first: bool, fill: bool) -> None:
        self.problem, self.meshes = problem, problem.meshes
        self.bubble_first, self.gradient_first, self.fill = bubble_first, gradient_first, fill
        self.times, self.changes, self.delays = (
            [values[first : first + self.meshes] for first in range(0, problem.types, self.meshes)]
            for values in (problem.times, problem.memory, problem.delays)
        )
        self.ends: list[list[list[float]]] = [[[] for _ in range(self.meshes)] for _ in (F, I, W)]
        self.clocks = [0.0] * self.meshes
        self.memory = [0.0] * self.meshes
        self.idle = [0.0] * self.meshes
        self.orders: list[list[int]] = [[] for _ in range(self.meshes)]

    def longest_stage(self) -> float:
        """Returns the longest time from the first to the last task of one mesh."""
        firsts = (ends[0] - time for ends, time in zip(self.ends[F], self.times[F], strict=True))
        return max(last - first for last, first in zip(self.clocks, firsts, strict=True))

    def schedule(self) -> None:
        """Places every task."""
        self.warm_up()
        for _ in range(1, self.problem.microbatches):
            self.place_forwards()
            self.place_input_grads()
        for mesh in range(self.meshes):
            while self.count(W, mesh) < self.problem.microbatches:
                self.put(W, mesh)

    def count(self, kind: int, mesh: int) -> int:
        """Returns how many tasks of the kind the mesh has."""
        return len(self.ends[kind][mesh])

    def ready(self, kind: int, mesh: int) -> float:
        """Returns when the input of the mesh's next forward or input gradient arrives."""
        source = mesh - 1 if kind == F else mesh + 1
        if not 0 <= source < self.meshes:
            return 0.0
        return self.ends[kind][source][self.count(kind, mesh)] + self.delays[kind][mesh]

    def put(self, kind: int, mesh: int) -> None:
        """Appends the next task of the kind to the mesh's order."""
        start = self.clocks[mesh] if kind == W else max(self.clocks[mesh], self.ready(kind, mesh))
        if self.count(F, mesh):
            self.idle[mesh] += start - self.clocks[mesh]
        self.orders[mesh].append(kind * self.meshes + mesh)
        self.clocks[mesh] = start + self.times[kind][mesh]
        self.ends[kind][mesh].append(self.clocks[mesh])
        self.memory[mesh] += self.changes[kind][mesh]

    def lacks(self, mesh: int, forwards: int = 1) -> float:
        """Returns how much memory the mesh lacks for `forwards` more forwards: at most 0 if they fit."""
        return self.memory[mesh] + forwards * self.changes[F][mesh] - self.problem.rooms[mesh]

    def warm_up(self) -> None:
        """Places the first forwards and the first input gradient of every mesh.

        Each mesh gets one forward, and as many more as fit before the first input gradient.
        """
        for mesh in range(self.meshes):
            self.put(F, mesh)
        extra = self.extra_forwards()
        for mesh in range(1, self.meshes):
            # A mesh cannot run more forwards than the mesh that sends its input.
            extra[mesh] = min(extra[mesh], extra[mesh - 1])
            while 0 < extra[mesh] >= extra[mesh - 1] and self.count(F, mesh) + extra[mesh] < self.problem.microbatches:
                extra[mesh] -= 1
        for mesh in range(self.meshes):
            for _ in range(extra[mesh]):
                self.put(F, mesh)
        for mesh in reversed(range(self.meshes)):
            self.put(I, mesh)

    def extra_forwards(self) -> list[int]:
        """Returns for each mesh how many forwards, beside the first, fit before its first input gradient."""
        forward, input_grad, _ = self.times
        extra = [0] * self.meshes
        gradient = self.clocks[-1] + input_grad[-1]
        for mesh in reversed(range(self.meshes - 1)):
            at, arrives = self.clocks[mesh], gradient + self.delays[I][mesh]
            while 1 + extra[mesh] < self.problem.microbatches and self.lacks(mesh, extra[mesh] + 1) <= 0:
                late = at + forward[mesh] > arrives if self.bubble_first else at >= arrives
                if late:
                    break
                at += forward[mesh]
                extra[mesh] += 1
            gradient = max(at, arrives) + input_grad[mesh]
        return extra

    def place_forwards(self) -> None:
        """Places one more forward on each mesh that has one left and does not wait.

        A mesh also gets none if a later mesh gets none.
        """
        due = [self.count(F, mesh) < self.problem.microbatches and not self.waits(mesh) for mesh in range(self.meshes)]
        for mesh in reversed(range(self.meshes - 1)):
            due[mesh] = due[mesh] and due[mesh + 1]
        for mesh in range(self.meshes):
            if due[mesh]:
                while self.lacks(mesh) > 0 and self.owed(mesh):
                    self.put(W, mesh)
                self.fill_gap(F, mesh)
                self.put(F, mesh)

    def place_input_grads(self) -> None:
        """Places one more input gradient on each mesh, from the last to the first."""
        for mesh in reversed(range(self.meshes)):
            self.fill_gap(I, mesh)
            while mesh == 0 and self.count(F, 0) == self.problem.microbatches and self.owed(0):
                self.put(W, 0)
            self.put(I, mesh)

    def owed(self, mesh: int) -> int:
        """Returns how many weight gradients could run now."""
        return self.count(I, mesh) - self.count(W, mesh)

    def waits(self, mesh: int) -> bool:
        """Whether the next forward of a mesh that is ahead would only delay its next input gradient."""
        after = mesh + 1
        if not self.gradient_first or after == self.meshes or self.count(F, mesh) < self.count(F, after) + 2:
            return False
        gradient = self.clocks[after] + self.times[F][after] + self.times[I][after] + self.delays[I][mesh]
        if self.clocks[mesh] >= gradient:
            return True
        lacks, freed, owed = self.lacks(mesh), -self.changes[W][mesh], self.owed(mesh)
        weights = 0 if lacks <= 0 else min(-int(-lacks // freed), owed) if freed else owed
        if self.clocks[mesh] + self.times[F][mesh] + weights * self.times[W][mesh] <= gradient:
            return False
        return gradient - self.clocks[mesh] <= max(self.idle) - self.idle[mesh]

    def fill_gap(self, kind: int, mesh: int) -> None:
        """Runs weight gradients while the mesh would wait for the next forward or input gradient."""
        at, weight = self.ready(kind, mesh), self.times[W][mesh]
        while self.owed(mesh) and self.clocks[mesh] + weight <= at:
            self.put(W, mesh)
        gap = at - self.clocks[mesh]
        if self.owed(mesh) and gap > 0 and (self.fill or gap > max(self.idle) - self.idle[mesh]):
            self.put(W, mesh)
