"""The automatic scheduler of Zero Bubble (arXiv 2401.10241): ZB-1p and ZB-2p are what it finds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jaxpp.schedules.task import Task


@dataclass(frozen=True)
class Problem:
    """Linear placement, a stage per mesh.

    Attributes:
        microbatches: at least 1.
        forward: time of each stage.
        input_grad: time of each stage.
        weight_grad: time of each stage.
        hop: time from a mesh to another, [from][to].
        memory: activations that a mesh may keep.
        kept: the share of one that is kept from input to weight gradient, above 0.
    """

    microbatches: int
    forward: list[float]
    input_grad: list[float]
    weight_grad: list[float]
    hop: list[list[float]]
    memory: float
    kept: float = 0.5


def best_orders(problem: Problem) -> list[list[Task]]:
    """The orders with the shortest longest stage that the heuristic finds: it is run once for each of its choices.

    With at least one activation of memory per mesh it always finds some.
    """
    runs = [_Run(problem, *choices) for choices in itertools.product((True, False), repeat=3)]
    for run in runs:
        run.schedule()
    return min(runs, key=_Run.longest_stage).orders


class _Run:
    """One run of the heuristic: microbatch after microbatch, it places forwards, then input gradients, and lets weight
    gradients fill the gaps before them.

    Choices: `bubble_first`: a mesh may take a forward only if it ends before the first input gradient can start;
    `gradient_first`: forwards may wait where the next mesh is behind; `fill`: a weight gradient goes into a gap even
    if it is longer than that and the mesh is not the one that has idled most.
    """

    def __init__(self, problem: Problem, bubble_first: bool, gradient_first: bool, fill: bool) -> None:
        self.problem, self.meshes = problem, len(problem.forward)
        self.bubble_first, self.gradient_first, self.fill = bubble_first, gradient_first, fill
        self.costs = {"F": problem.forward, "I": problem.input_grad, "W": problem.weight_grad}
        self.ends: dict[str, list[list[float]]] = {kind: [[] for _ in problem.forward] for kind in self.costs}
        self.clocks = [0.0] * self.meshes
        self.memory = [0.0] * self.meshes
        self.idle = [0.0] * self.meshes
        self.orders: list[list[Task]] = [[] for _ in problem.forward]

    def longest_stage(self) -> float:
        """The longest time from the first to the last task of one mesh."""
        firsts = (ends[0] - cost for ends, cost in zip(self.ends["F"], self.problem.forward, strict=True))
        return max(last - first for last, first in zip(self.clocks, firsts, strict=True))

    def schedule(self) -> None:
        """Place every task."""
        self.warm_up()
        for _ in range(1, self.problem.microbatches):
            self.place_forwards()
            self.place_input_grads()
        for mesh in range(self.meshes):
            while self.count("W", mesh) < self.problem.microbatches:
                self.put("W", mesh)

    def count(self, kind: str, mesh: int) -> int:
        """How many tasks of the kind the mesh has."""
        return len(self.ends[kind][mesh])

    def ready(self, kind: str, mesh: int) -> float:
        """When the input of the next forward or input gradient of the mesh is there."""
        source = mesh - 1 if kind == "F" else mesh + 1
        if not 0 <= source < self.meshes:
            return 0.0
        return self.ends[kind][source][self.count(kind, mesh)] + self.problem.hop[source][mesh]

    def put(self, kind: str, mesh: int) -> None:
        """Append the next task of the kind to the mesh's order."""
        kept = self.problem.kept
        names = {"F": ("forward", 1.0), "I": ("input_grad", kept - 1), "W": ("weight_grad", -kept)}
        name, change = names[kind]
        start = self.clocks[mesh] if kind == "W" else max(self.clocks[mesh], self.ready(kind, mesh))
        if self.count("F", mesh):
            self.idle[mesh] += start - self.clocks[mesh]
        self.orders[mesh].append(Task(name, mesh, self.count(kind, mesh)))
        self.clocks[mesh] = start + self.costs[kind][mesh]
        self.ends[kind][mesh].append(self.clocks[mesh])
        self.memory[mesh] += change

    def warm_up(self) -> None:
        """The first forward of every mesh, as many more as fit before the first input gradient, and that one."""
        for mesh in range(self.meshes):
            self.put("F", mesh)
        extra = self.extra_forwards()
        for mesh in range(1, self.meshes):
            # A mesh cannot be ahead of the one that feeds it.
            extra[mesh] = min(extra[mesh], extra[mesh - 1])
            while (
                0 < extra[mesh] >= extra[mesh - 1] and self.count("F", mesh) + extra[mesh] < self.problem.microbatches
            ):
                extra[mesh] -= 1
        for mesh in range(self.meshes):
            for _ in range(extra[mesh]):
                self.put("F", mesh)
        for mesh in reversed(range(self.meshes)):
            self.put("I", mesh)

    def extra_forwards(self) -> list[int]:
        """For each mesh the number of forwards beside the first that fit before its first input gradient."""
        problem = self.problem
        extra = [0] * self.meshes
        gradient = self.clocks[-1] + problem.input_grad[-1]
        for mesh in reversed(range(self.meshes - 1)):
            at, arrives = self.clocks[mesh], gradient + problem.hop[mesh + 1][mesh]
            while 1 + extra[mesh] < problem.microbatches and self.memory[mesh] + extra[mesh] + 1 <= problem.memory:
                late = at + problem.forward[mesh] > arrives if self.bubble_first else at >= arrives
                if late:
                    break
                at += problem.forward[mesh]
                extra[mesh] += 1
            gradient = max(at, arrives) + problem.input_grad[mesh]
        return extra

    def place_forwards(self) -> None:
        """One more forward on each mesh, but for those that have all of them or had better wait."""
        due = [
            self.count("F", mesh) < self.problem.microbatches and not self.waits(mesh) for mesh in range(self.meshes)
        ]
        for mesh in reversed(range(self.meshes - 1)):
            due[mesh] = due[mesh] and due[mesh + 1]
        for mesh in range(self.meshes):
            if due[mesh]:
                self.make_room(mesh)
                self.fill_gap("F", mesh)
                self.put("F", mesh)

    def place_input_grads(self) -> None:
        """One more input gradient on each mesh, from the last to the first."""
        for mesh in reversed(range(self.meshes)):
            self.fill_gap("I", mesh)
            while mesh == 0 and self.count("F", 0) == self.problem.microbatches and self.owed(0):
                self.put("W", 0)
            self.put("I", mesh)

    def owed(self, mesh: int) -> int:
        """How many weight gradients could run."""
        return self.count("I", mesh) - self.count("W", mesh)

    def waits(self, mesh: int) -> bool:
        """Whether the next forward of a mesh that is ahead would only delay its next input gradient."""
        after = mesh + 1
        if not self.gradient_first or after == self.meshes or self.count("F", mesh) < self.count("F", after) + 2:
            return False
        problem = self.problem
        gradient = self.clocks[after] + problem.forward[after] + problem.input_grad[after] + problem.hop[after][mesh]
        if self.clocks[mesh] >= gradient:
            return True
        over = self.memory[mesh] + 1 - problem.memory
        weights = min(max(0, -int(-over // problem.kept)), self.owed(mesh))
        if self.clocks[mesh] + problem.forward[mesh] + weights * problem.weight_grad[mesh] <= gradient:
            return False
        return gradient - self.clocks[mesh] <= max(self.idle) - self.idle[mesh]

    def make_room(self, mesh: int) -> None:
        """Run weight gradients until a forward fits the memory."""
        while self.memory[mesh] + 1 > self.problem.memory and self.owed(mesh):
            self.put("W", mesh)

    def fill_gap(self, kind: str, mesh: int) -> None:
        """Run weight gradients while the mesh would wait for the next forward or input gradient."""
        at, weight = self.ready(kind, mesh), self.problem.weight_grad[mesh]
        while self.owed(mesh) and self.clocks[mesh] + weight <= at:
            self.put("W", mesh)
        gap = at - self.clocks[mesh]
        if self.owed(mesh) and gap > 0 and (self.fill or gap > max(self.idle) - self.idle[mesh]):
            self.put("W", mesh)
