"""The report of a simulated run: its times, bubbles, transfers and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.costs import UNITS, Costs
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.formats.chrome_trace import COMPUTE, Arrow, Bar, Label, Memory, curve, in_order, print_chrome_trace
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.sweep import Run
from jaxpp.schedules.task import Task

Release: TypeAlias = Literal["W", "B", "half"]
Numbers: TypeAlias = NDArray[np.float64]

KEPT: Final[dict[str, float]] = {"W": 1.0, "B": 0.0, "half": 0.5}
_TRACKS: Final = {"copy": "offload", "net": "move"}


class Bubble(NamedTuple):
    """Says that a mesh has nothing to do, from `start` on, for `length`."""

    mesh: int
    start: float
    length: float


class Transfer(NamedTuple):
    """Says that the result of a task goes from one mesh to another, and when."""

    task: Task
    source: int
    target: int
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Report:
    """Holds the times, bubbles and memory of one run of `simulate`; times are in the unit of the costs.

    Attributes:
        schedule: the schedule that ran.
        costs: the costs of its tasks and transfers.
        run: the times of the tasks and transfers, by their numbers in `schedule.graph`.
    """

    schedule: Schedule
    costs: Costs
    run: Run

    @cached_property
    def start(self) -> tuple[Numbers, ...]:
        """The start of every task: an array per mesh, in the order of `schedule.orders`."""
        return self._rows(self.run.starts)

    @cached_property
    def end(self) -> tuple[Numbers, ...]:
        """The end of every task: an array per mesh, in the order of `schedule.orders`."""
        return self._rows(self.run.ends)

    def times(self, task: Task) -> tuple[float, float]:
        """Return the start and end of one task.

        Raises:
            ScheduleError: the schedule has no such task.
        """
        graph = self.schedule.graph
        number = graph.numbers.get(task.kind, {}).get(graph.key(task))
        if number is None or graph.tasks[number] != task:
            raise ScheduleError(f"{self.schedule.name} has no task {task.words}")
        return self.run.starts[number], self.run.ends[number]

    @cached_property
    def transfers(self) -> list[Transfer]:
        """The transfers between meshes, and their times."""
        graph = self.schedule.graph
        return [
            Transfer(graph.tasks[number], graph.homes[number], target, start, end)
            for (number, target), start, end in zip(graph.transfers, self.run.sent, self.run.received, strict=True)
        ]

    @cached_property
    def makespan(self) -> float:
        """The time from the first task to the last: that of a training step whose optimizer waits for all meshes."""
        return max(self.run.ends) - min(self.run.starts)

    @cached_property
    def longest_stage(self) -> float:
        """The longest time from the first to the last task of one mesh.

        It is that of a step whose optimizer waits for no other mesh.
        """
        return max(float(cells[-1, 1] - cells[0, 0]) for cells in self._cells if len(cells))

    @cached_property
    def bubble(self) -> float:
        """The share of the makespan in which the meshes, on average, have nothing to do."""
        return 1 - self.busy / self.makespan

    @cached_property
    def bubble_of_longest_stage(self) -> float:
        """The share of `longest_stage` in which the meshes have nothing to do: the bubble rate of Zero Bubble
        (arXiv 2401.10241).
        """
        return 1 - self.busy / self.longest_stage

    @cached_property
    def busy(self) -> float:
        """The time for which a mesh computes, on average."""
        return float(sum((cells[:, 1] - cells[:, 0]).sum() for cells in self._cells)) / self.schedule.meshes

    @cached_property
    def bubbles(self) -> list[Bubble]:
        """The spans between the start and the end of the run in which a mesh has nothing to do, mesh by mesh."""
        found: list[Bubble] = []
        for mesh, cells in enumerate(self._cells):
            starts = np.concatenate([[0.0], cells[:, 1]])
            lengths = np.concatenate([cells[:, 0], [self.makespan]]) - starts
            # Without a wait, the two sums of times differ in their last digits at most.
            for position in np.flatnonzero(lengths > 1e-9 * self.makespan):
                found.append(Bubble(mesh, float(starts[position]), float(lengths[position])))
        return found

    def peak_activations(self, released_at: Release = "W") -> list[float]:
        """Return for each mesh the most activations alive at once.

        The unit is a microbatch's activations in all stages of one mesh.

        Args:
            released_at: an activation lives from the start of its forward to the end of its weight gradient "W", of its
                input gradient "B", or "half" of it to either. A full backward is both.

        Raises:
            ScheduleError: `released_at` is none of these.
        """
        peaks = [_peak(deltas) for _, deltas in (self.activations(mesh, released_at) for mesh in self._meshes)]
        # Shares such as 1/3 do not add up exactly.
        return [round(peak, 9) for peak in peaks]

    def peak_bytes(self) -> list[float]:
        """Return for each mesh the most bytes of activations alive at once, with the sizes that the costs give."""
        return [_peak(deltas) for _, deltas in (self.live_bytes(mesh) for mesh in self._meshes)]

    def activations(self, mesh: int, released_at: Release = "W") -> tuple[Numbers, Numbers]:
        """Return the times at which the number of activations of a mesh changes, in order, and by how much.

        Raises:
            ScheduleError: `released_at` is unknown.
        """
        if released_at not in KEPT:
            raise ScheduleError(f"released_at must be one of {', '.join(KEPT)}, found {released_at!r}")
        share = self.schedule.meshes / self.schedule.stages
        kept = share * KEPT[released_at]
        stages = self.schedule.stages
        return self._memory(mesh, [share] * stages, [kept] * stages, [0.0] * stages)

    def live_bytes(self, mesh: int) -> tuple[Numbers, Numbers]:
        """Return the times at which the bytes of activations of a mesh change, in order, and by how much.

        A stage that recomputes keeps its input until then; the first stage's input is an argument of the step.
        """
        names = ("activation_bytes", "weight_grad_bytes", "message_bytes")
        sizes, kept, messages = (self.costs.bytes(what, self.schedule) for what in names)
        return self._memory(mesh, sizes, kept, [min(*each) for each in zip(sizes, [0.0, *messages], strict=False)])

    @cached_property
    def memory(self) -> Memory:
        """The memory in use on each mesh: bytes, or microbatches' activations where the costs give no bytes."""
        if any(self.costs.bytes("activation_bytes", self.schedule)):
            return Memory("bytes", [curve(*self.live_bytes(mesh)) for mesh in self._meshes])
        return Memory("microbatches", [curve(*self.activations(mesh)) for mesh in self._meshes])

    def to_chrome_trace(self) -> str:
        """Return the run as JSON that Perfetto and chrome://tracing open, in microseconds (`formats.chrome_trace`).

        The costs' `unit` says how long a unit of time is.
        """
        arrows = (Arrow(_label(task), source, target, *times) for task, source, target, *times in self.transfers)
        return print_chrome_trace(self._bars(), arrows, self.memory, UNITS[self.costs.unit])

    def _bars(self) -> Iterator[Bar]:
        """Yield a bar for each cell, on its track."""
        graph, run = self.schedule.graph, self.run
        for mesh, row in enumerate(graph.rows):
            for number in row:
                if span := graph.spans[number]:
                    labels = [_label(task) for task in graph.tasks[number : number + span]]
                    track = graph.tracks.get(number, COMPUTE)
                    yield Bar(mesh, _TRACKS.get(track, track), labels, run.starts[number], run.ends[number])

    @property
    def _meshes(self) -> range:
        return range(self.schedule.meshes)

    def _rows(self, numbers: list[float]) -> tuple[Numbers, ...]:
        array = np.array(numbers)
        return tuple(array[row.start : row.stop] for row in self.schedule.graph.rows)

    @cached_property
    def _cells(self) -> list[Numbers]:
        """For each mesh the (start, end) of its cells in order, without those on other tracks."""
        graph = self.schedule.graph
        first = np.array(graph.spans) > 0
        first[list(graph.tracks)] = False
        times = np.stack([self.run.starts, self.run.ends], axis=1)
        return [times[row.start : row.stop][first[row.start : row.stop]] for row in graph.rows]

    def _memory(self, mesh: int, sizes: list[float], kept: list[float], inputs: list[float]) -> tuple[Numbers, Numbers]:
        """Return the changes of a mesh's memory, in order: a task allocates at its start and frees at its end.

        Of the `sizes[stage]` that a forward allocates, `kept[stage]` stays alive from the input gradient to the weight
        gradient, and `inputs[stage]` from the forward to the recompute.
        """
        graph, run = self.schedule.graph, self.run
        shares = self.costs.shares(self.schedule)
        effect = _effects(self.schedule, sizes, kept, inputs)
        times: list[float] = []
        deltas: list[float] = []
        for number in graph.rows[mesh]:
            task = graph.tasks[number]
            made, freed = effect(task)
            if made:
                times.append(run.starts[number])
                deltas.append(made * shares[task.slice])
            if freed:
                times.append(run.ends[number])
                deltas.append(freed * shares[task.slice])
        for number, given_back in self._moved_away(mesh):
            task = graph.tasks[number]
            times.append(run.ends[number])
            deltas.append(-given_back * sizes[task.stage] * shares[task.slice])
        return in_order(times, deltas)

    def _moved_away(self, mesh: int) -> Iterator[tuple[int, float]]:
        """The tasks that move memory away from a mesh, and the share of an activation that each moves."""
        graph = self.schedule.graph
        for rule in graph.rules.values():
            for key, number in graph.numbers.get(rule.name, {}).items() if rule.source else ():
                if graph.homes[graph.numbers[rule.source][key]] == mesh:
                    yield number, rule.memory


def _peak(deltas: Numbers) -> float:
    return float(max(deltas.cumsum(), default=0.0))


def _label(task: Task) -> Label:
    return Label(task.kind, task.stage, task.microbatch, task.slice)


def _effects(
    schedule: Schedule, sizes: list[float], kept: list[float], inputs: list[float]
) -> Callable[[Task], tuple[float, float]]:
    """Return a function from a task to its effect on memory: (allocated at its start, freed at its end)."""
    graph, numbers = schedule.graph, schedule.graph.numbers
    recomputed = numbers.get("recompute", {})
    backward, weight_grad = numbers.get("backward", {}), numbers.get("weight_grad", {})
    input_grad = numbers.get("input_grad", {})

    def effect(task: Task) -> tuple[float, float]:
        size, key = sizes[task.stage], graph.key(task)
        if task.kind == "forward":
            if key in recomputed:
                return size, inputs[task.stage] - size
            return size, 0.0 if key in backward or key in input_grad or key in weight_grad else -size
        if task.kind == "recompute":
            return size - inputs[task.stage], 0.0
        if task.kind == "backward":
            return 0.0, -size
        if task.kind == "input_grad":
            return 0.0, kept[task.stage] - size if key in weight_grad else -size
        if task.kind == "weight_grad":
            return 0.0, -kept[task.stage] if key in input_grad else -size
        rule = graph.rules[task.kind]
        change = rule.memory * (inputs[task.stage] if rule.track and key in recomputed else size)
        return max(change, 0.0), min(change, 0.0)

    return effect
