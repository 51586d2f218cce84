"""The report of a simulated run: its times, bubbles, transfers and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from jaxpp._system import collector_paused
from jaxpp.schedules.costs import UNITS, Costs
from jaxpp.schedules.engine.chrome_trace import Memory, curve, print_chrome_trace
from jaxpp.schedules.engine.durations import transfer_bytes
from jaxpp.schedules.engine.memory import KEPT, Release, Sizes, byte_sizes, changes, share_sizes
from jaxpp.schedules.engine.spans import COMPUTE, TRACKS, Bubble, Label, Span, bubbles_of
from jaxpp.schedules.errors import ScheduleError, one_of
from jaxpp.schedules.model.run import SimulatedTimes
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Changes: TypeAlias = list[tuple[float, float]]
"""The (time, change) of each change of a memory, in order."""


class Transfer(NamedTuple):
    """A transfer of a task's result from one mesh to another."""

    task: Task
    source: int
    target: int
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Report:
    """The times, bubbles and memory of one run of `simulate`; times are in the unit of the costs.

    Attributes:
        schedule: the schedule that ran.
        costs: the costs of its tasks and transfers.
        run: the times of the tasks and transfers, by their numbers in `schedule.graph`.
    """

    schedule: Schedule
    costs: Costs
    run: SimulatedTimes

    shown: ClassVar[Callable[[Report], str]]
    """Returns HTML that shows a run in a notebook. `jaxpp.schedules.plot` sets it."""

    def _repr_html_(self) -> str:
        """Returns the run for a notebook."""
        return Report.shown(self)

    @cached_property
    def start(self) -> tuple[NDArray[np.float64], ...]:
        """The start of every task: an array per mesh, in the order of `schedule.orders`."""
        return self._rows(self.run.starts)

    @cached_property
    def end(self) -> tuple[NDArray[np.float64], ...]:
        """The end of every task: an array per mesh, in the order of `schedule.orders`."""
        return self._rows(self.run.ends)

    def times(self, task: Task) -> tuple[float, float]:
        """Returns the start and end of one task.

        Raises:
            ScheduleError: when the schedule has no such task.
        """
        number = self.schedule.number_of(task)
        return self.run.starts[number], self.run.ends[number]

    @cached_property
    def transfers(self) -> list[Transfer]:
        """The transfers between meshes, with their times; a task that takes memory from a peer is a transfer, too."""
        graph, run = self.schedule.graph, self.run
        tasks, homes = graph.tasks, graph.homes
        sent = zip(graph.transfers, run.sent, run.received, strict=True)
        return [
            *(Transfer(tasks[number], homes[number], mesh, start, end) for (number, mesh), start, end in sent),
            *(
                Transfer(tasks[number], homes[source], homes[number], run.starts[number], run.ends[number])
                for number, source in graph.sources.items()
            ),
        ]

    @cached_property
    def makespan(self) -> float:
        """The time to the end of the last task.

        This is the time of a training step whose optimizer waits for all meshes. It begins with the first task, or with
        the gather of its weights.
        """
        return max(self.run.ends)

    @cached_property
    def longest_stage(self) -> float:
        """The longest time from the first to the last task of one mesh.

        This is the time of a step whose optimizer waits for no other mesh.
        """
        return max(cells[-1][1] - cells[0][0] for cells in self._cells if cells)

    @cached_property
    def bubble(self) -> float:
        """The share of the makespan in which the meshes, on average, are idle."""
        return 1 - self.busy / self.makespan

    @cached_property
    def bubble_of_longest_stage(self) -> float:
        """The share of `longest_stage` in which the meshes are idle.

        This is the bubble rate of Zero Bubble (arXiv 2401.10241).
        """
        return 1 - self.busy / self.longest_stage

    @cached_property
    def busy(self) -> float:
        """The time for which a mesh computes, on average."""
        return sum(self.busy_of_meshes) / self.schedule.meshes

    @cached_property
    def busy_of_meshes(self) -> list[float]:
        """The time for which each mesh computes."""
        return [math.fsum(end - start for start, end in cells) for cells in self._cells]

    @cached_property
    def bubbles(self) -> list[Bubble]:
        """The idle intervals of the meshes between the start and the end of the run, mesh by mesh, with their causes.

        The times of gathers and scatters are counted as idle.
        """
        return bubbles_of(self.spans, self.schedule.meshes)

    @cached_property
    def spans(self) -> list[Span]:
        """The tasks and transfers with their times, and what each waited for last: tasks mesh by mesh, then transfers.

        A task that takes memory from a peer is also a transfer.
        """
        with collector_paused():
            return self._spans()

    def _spans(self) -> list[Span]:
        graph, run = self.schedule.graph, self.run
        ends = [*run.ends, *run.received]
        found = [span for mesh, row in enumerate(graph.rows) for span in self._tasks(mesh, row, ends)]
        made = [*(number for number, _ in graph.transfers), *graph.sources.values()]
        sizes = [*transfer_bytes(self.schedule, self.costs), *[0.0] * len(graph.sources)]
        for (task, source, target, start, end), number, size in zip(self.transfers, made, sizes, strict=True):
            found.append(Span(source, "", (_label(task),), start, end, graph.cell_of[number], target, size))
        return found

    def _tasks(self, mesh: int, row: range, ends: Sequence[float]) -> Iterator[Span]:
        """Yields the spans of the tasks of a mesh; `ends` are the ends of all tasks, then the arrivals of transfers."""
        graph, run = self.schedule.graph, self.run
        span_of, count = graph.cell_of, len(graph.tasks)
        first_transfer = len(graph.heads) - count
        before: dict[str, int] = {}
        for head in row:
            if not (size := graph.spans[head]):
                continue
            uses = graph.tracks[head] if head in graph.asides else ()
            track = " ".join(TRACKS.get(each, each) for each in uses) or COMPUTE
            slots = [before[name] for name in dict.fromkeys((COMPUTE, track)) if name in before]
            slot = max((*slots, *graph.waits[head]), key=ends.__getitem__, default=None)
            after = None if slot is None else span_of[slot] if slot < count else slot + first_transfer
            labels = tuple([_label(task) for task in graph.tasks[head : head + size]])
            yield Span(mesh, track, labels, run.starts[head], run.ends[head], after)
            before[track] = head

    def peak_activations(self, released_at: Release = "W") -> list[float]:
        """Returns for each mesh the most activations alive at once.

        The unit is a microbatch's activations in all stages of one mesh. `engine.activations` counts pairs of stage and
        microbatch (or slice) instead, in the order of a program. It equals this number times the stages of a mesh,
        times the slices. The two differ where copies run beside a mesh (`offload`, `evict`). Here an activation is gone
        when its copy ends, in a program at the instruction that frees it.

        The backward of some stages, such as a linear stage, reads only the stage's input and weights. The program of
        such a stage has nothing to recompute, and the inputs that wait count as activations.

        Args:
            released_at: the task at whose end an activation is freed: its weight gradient ("W"), its input gradient
                ("B"), or for half of it each ("half"). A full backward is both gradients.

        Raises:
            ScheduleError: when `released_at` is unknown.
        """
        peaks = [_peak(self.activations(mesh, released_at)) for mesh in self._meshes]
        # Shares such as 1/3 do not add up exactly.
        return [round(peak, 9) for peak in peaks]

    def peak_bytes(self) -> list[float]:
        """Returns for each mesh the most bytes of activations alive at once, with the sizes that the costs give."""
        return [_peak(self.live_bytes(mesh)) for mesh in self._meshes]

    def activations(self, mesh: int, released_at: Release = "W") -> Changes:
        """Returns the (time, change) of each change of the number of activations of a mesh, in order.

        Raises:
            ScheduleError: when `released_at` is unknown, or there is no such mesh.
        """
        one_of(list(KEPT), released_at, "released_at")
        return self._memory(mesh, share_sizes(self.schedule, KEPT[released_at], self.costs.size(self.schedule)))

    def live_bytes(self, mesh: int, pool: str = "here") -> Changes:
        """Returns the (time, change) of each change of the bytes of activations of a mesh, in order.

        A stage that recomputes keeps its input until then. The first stage's input is an argument of the step, and not
        counted.

        Args:
            mesh: the mesh.
            pool: "here", the memory of the mesh's devices, or "host".

        Raises:
            ScheduleError: when there is no such mesh or pool.
        """
        return self._memory(mesh, byte_sizes(self.schedule, self.costs), pool)

    def peak_host_bytes(self) -> list[float]:
        """Returns for each mesh the most bytes of activations in the memory of its host at once."""
        return [_peak(self.live_bytes(mesh, "host")) for mesh in self._meshes]

    @cached_property
    def memory(self) -> Memory:
        """The memory in use on each mesh, in bytes, or in microbatches' activations if the costs give no bytes."""
        if any(self.costs.bytes("activation_bytes", self.schedule)):
            return Memory("bytes", [curve(self.live_bytes(mesh)) for mesh in self._meshes])
        return Memory("microbatches", [curve(self.activations(mesh)) for mesh in self._meshes])

    def to_chrome_trace(self) -> str:
        """Returns the run as JSON for Perfetto and chrome://tracing, in microseconds (`formats.chrome_trace`).

        The `unit` of the costs gives the length of a unit of time.
        """
        return print_chrome_trace(self.spans, self.memory, UNITS[self.costs.unit])

    @property
    def _meshes(self) -> range:
        return range(self.schedule.meshes)

    def _rows(self, numbers: list[float]) -> tuple[NDArray[np.float64], ...]:
        import numpy as np  # imported here: schedules start faster, and the docs' playground has no NumPy

        array = np.array(numbers)
        return tuple(array[row.start : row.stop] for row in self.schedule.graph.rows)

    @cached_property
    def _cells(self) -> list[list[tuple[float, float]]]:
        """For each mesh the (start, end) of its cells in order, without cells that run beside it."""
        graph, starts, ends = self.schedule.graph, self.run.starts, self.run.ends
        spans, asides = graph.spans, graph.asides
        return [
            [(starts[each], ends[each]) for each in row if spans[each] and each not in asides] for row in graph.rows
        ]

    def _memory(self, mesh: int, sizes: Sizes, pool: str = "here") -> Changes:
        """Returns the changes of a mesh's memory, in order: a task allocates at its start and frees at its end.

        Raises:
            ScheduleError: when there is no such mesh or pool.
        """
        if mesh not in self._meshes:
            raise ScheduleError(f"{self.schedule.name} has no mesh {mesh}: there are {len(self._meshes)}")
        if pool not in ("here", "host"):
            raise ScheduleError(f"pool must be 'here' or 'host', found {pool!r}")
        starts, ends = self.run.starts, self.run.ends
        found: Changes = []
        for number, start, end in changes(self.schedule.graph, mesh, sizes, pool):
            if start:
                found.append((starts[number], start))
            if end:
                found.append((ends[number], end))
        return sorted(found)  # at equal times, negative changes come first


def _peak(changes: Changes) -> float:
    return max(accumulate(change for _, change in changes), default=0.0)


def _label(task: Task) -> Label:
    return Label(task.kind, task.stage, task.microbatch, task.slice)
