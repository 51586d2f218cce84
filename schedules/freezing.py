"""Which weight gradients to leave out so that the pipeline gets shorter: the linear programme of TimelyFreeze."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.graph import Graph
from jaxpp.schedules.schedule import Schedule, check_type
from jaxpp.schedules.simulate import leads_of, task_times, transfer_times

if TYPE_CHECKING:
    import numpy as np

_LEFT = 1e-9
"""The share of its time that a task takes which is left out: a task of no time is none."""


@dataclass(frozen=True)
class Frozen:
    """Shares of weight gradients to leave out.

    Attributes:
        shares: of each stage, from 0 to 1: what `jaxpp.frozen` takes.
        makespan: of the schedule without them.
        costs: with the times of weight gradients less these shares: `simulate(schedule, costs)` takes the makespan.
    """

    shares: dict[int, float]
    makespan: float
    costs: Costs


def freeze_ratios(schedule: Schedule, costs: Costs | None = None, *, budget: float, most: float = 1.0) -> Frozen:
    """The shares of weight gradients to leave out that make the schedule shortest (TimelyFreeze, arXiv 2602.05754).

    A linear programme over the tasks: when each starts, after all that it waits for, and for each stage how much of the
    time of its weight gradients goes. Of all shares with the least makespan those are taken that leave out least.

    Args:
        schedule: with weight gradients of their own. A stage some of whose backwards are whole has a share of 0, as
            `jaxpp.frozen` refuses others: `split_backward` splits them.
        costs: as for `simulate`, without contention.
        budget: the share of all weight gradients that may be left out, on average over the stages.
        most: the share of one stage that may be.

    Raises:
        ScheduleError: a share is not from 0 to 1; no stage has all its weight gradients as tasks of their own; or the
            costs or the schedule have what is no linear programme: contention, spread stages.
    """
    check_type(schedule)
    costs = costs or Costs()
    for name, share in (("budget", budget), ("most", most)):
        if not 0 <= share <= 1:
            raise ScheduleError(f"{name} must be a share from 0 to 1, found {share!r}")
    if costs.contention or schedule.graph.partners:
        raise ScheduleError("freeze_ratios: links with contention and spread stages are no linear programme")
    if not any(task.kind == "weight_grad" for task in schedule):
        raise ScheduleError(
            f"{schedule.name} has no weight gradients of their own: take a schedule such as zb-h1, or split_backward"
        )
    if not _split_stages(schedule):
        raise ScheduleError(
            f"{schedule.name} has whole backwards of each stage beside its weight gradients: split_backward splits them"
        )
    solution = _Programme(schedule, costs).solve(budget, most)
    shares = {stage: min(max(float(share), 0.0), most) for stage, share in enumerate(solution[1 : 1 + schedule.stages])}
    left = [max(1 - share, _LEFT) for share in shares.values()]
    given = replace(costs, speed=1.0)
    times = [time * share for time, share in zip(given.at_home("weight_grad", schedule), left, strict=True)]
    kinds = {**costs.kinds, "backward": given.at_home("backward", schedule), "weight_grad": times}
    return Frozen(shares, float(solution[0]), replace(costs, kinds=kinds))


def _split_stages(schedule: Schedule) -> set[int]:
    """The stages whose weight gradients are tasks of their own, of all microbatches."""
    stages = {kind: {task.stage for task in schedule if task.kind == kind} for kind in ("weight_grad", "backward")}
    return stages["weight_grad"] - stages["backward"]


class _Programme:
    """The linear programme. Its variables are the makespan, the share of each stage, the start of each task."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.graph, self.stages = schedule.graph, schedule.stages
        self.split = _split_stages(schedule)
        self.times = task_times(schedule, costs)
        self.delays = transfer_times(schedule, costs)[0] or [0.0] * len(self.graph.transfers)
        self.rows: list[dict[int, float]] = []
        """Of each constraint the factors of its variables; their sum is at least its bound."""
        self.bounds: list[float] = []
        self.leads = leads_of(schedule, costs)
        for head in (number for number, span in enumerate(self.graph.spans) if span):
            for earlier, delay in self._before(head):
                self._after(self._start(head), earlier, delay)
            self._after(0, head, 0.0)
            # The first run of a mesh has no task before it, but weights to gather.
            self.rows.append({self._start(head): 1.0})
            self.bounds.append(self.leads.get(head, 0.0))

    def _start(self, number: int) -> int:
        return 1 + self.stages + number

    def _after(self, variable: int, head: int, delay: float) -> None:
        """A variable is at least the end of a cell, and a delay more."""
        row = {variable: 1.0, self._start(head): -1.0}
        bound = delay
        for number in range(head, head + self.graph.spans[head]):
            task, time = self.graph.tasks[number], self.times[number]
            bound += time
            if task.kind == "weight_grad":
                row[1 + task.stage] = row.get(1 + task.stage, 0.0) + time
        self.rows.append(row)
        self.bounds.append(bound)

    def _before(self, head: int) -> Iterator[tuple[int, float]]:
        """The cells that the cell at `head` waits for, and how much longer than to their ends."""
        graph, base = self.graph, len(self.graph.tasks)
        for slot in graph.waits[head]:
            number, delay = (slot, 0.0) if slot < base else (graph.transfers[slot - base][0], self.delays[slot - base])
            yield _head(graph, number), delay
        row = graph.rows[graph.homes[head]]
        # What runs beside its mesh waits for what uses the same; what follows on the mesh does not wait for it.
        for used in ("", *graph.tracks.get(head, ())):
            for number in range(head - 1, row.start - 1, -1):
                same = used in graph.tracks.get(number, ()) if used else number not in graph.asides
                if graph.spans[number] and same:
                    yield number, 0.0 if used else self.leads.get(head, 0.0)
                    break

    def solve(self, budget: float, most: float) -> np.ndarray:
        """The values of all variables."""
        import numpy as np  # here, as scipy: schedules start without them
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        count = 1 + self.stages + len(self.graph.tasks)
        spent = {1 + stage: -1.0 / self.stages for stage in range(self.stages)}
        rows, bounds = [*self.rows, spent], np.array([*self.bounds, -budget])
        entries = [(at, variable, factor) for at, row in enumerate(rows) for variable, factor in row.items()]
        where, variables, factors = zip(*entries, strict=True)
        matrix = csr_matrix((factors, (where, variables)), shape=(len(rows), count))
        limits = [(0.0, np.inf), *((0.0, most if stage in self.split else 0.0) for stage in range(self.stages))]
        limits += [(0.0, np.inf)] * len(self.graph.tasks)
        goal = np.zeros(count)
        goal[0] = 1.0
        first = linprog(goal, -matrix, -bounds, bounds=limits)
        if first.x is None:
            raise ScheduleError(f"freeze_ratios: {first.message}")
        limits[0] = (0.0, first.x[0] * (1 + 1e-9))
        goal = np.array([float(0 < n <= self.stages) for n in range(count)])
        second = linprog(goal, -matrix, -bounds, bounds=limits)
        return first.x if second.x is None else second.x


def _head(graph: Graph, number: int) -> int:
    while not graph.spans[number]:
        number -= 1
    return number
