"""The choice of weight gradients to leave out so that a step gets shorter: the linear program of TimelyFreeze."""

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
"""The smallest share of a weight gradient's time that remains, because a task must take some time."""


@dataclass(frozen=True)
class Frozen:
    """The shares of weight gradients to leave out.

    Attributes:
        shares: the share of each stage, from 0 to 1, as `jaxpp.frozen` takes it.
        makespan: the makespan of the schedule without them.
        costs: costs in which the weight gradients take less time by these shares. `simulate(schedule, costs)` then
            gives the makespan.
    """

    shares: dict[int, float]
    makespan: float
    costs: Costs


def freeze_ratios(schedule: Schedule, costs: Costs | None = None, *, budget: float, most: float = 1.0) -> Frozen:
    """Returns the shares of weight gradients to leave out that make the schedule shortest.

    It solves the linear program of TimelyFreeze (arXiv 2602.05754). The variables are the start of each task and, for
    each stage, the share of its weight gradients to leave out. Each task starts after all tasks that it waits for. Of
    all solutions with the least makespan, it takes the one that leaves out least.

    Args:
        schedule: a schedule with separate weight gradients. A stage with a whole backward gets a share of 0, because
            `jaxpp.frozen` accepts no other; `split_backward` splits such backwards.
        costs: the costs, as for `simulate`.
        budget: the largest share of all weight gradients to leave out, on average over the stages.
        most: the largest share of one stage.

    Raises:
        ScheduleError: when a share is not from 0 to 1, or no stage has all its weight gradients as separate tasks.
    """
    check_type(schedule)
    costs = costs or Costs()
    for name, share in (("budget", budget), ("most", most)):
        if not 0 <= share <= 1:
            raise ScheduleError(f"{name} must be a share from 0 to 1, found {share!r}")
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
    """Returns the stages whose weight gradients are separate tasks for all microbatches."""
    stages = {kind: {task.stage for task in schedule if task.kind == kind} for kind in ("weight_grad", "backward")}
    return stages["weight_grad"] - stages["backward"]


class _Programme:
    """The linear program. Its variables are the makespan, the share of each stage, and the start of each task."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.graph, self.stages = schedule.graph, schedule.stages
        self.split = _split_stages(schedule)
        self.times = task_times(schedule, costs)
        self.delays = transfer_times(schedule, costs) or [0.0] * len(self.graph.transfers)
        self.rows: list[dict[int, float]] = []
        """For each constraint the coefficients of its variables; the sum is at least the bound."""
        self.bounds: list[float] = []
        self.leads = leads_of(schedule, costs)
        for head in (number for number, span in enumerate(self.graph.spans) if span):
            for earlier, delay in self._before(head):
                self._after(self._start(head), earlier, delay)
            self._after(0, head, 0.0)
            # The first run of a mesh follows no task, but must gather its weights.
            self.rows.append({self._start(head): 1.0})
            self.bounds.append(self.leads.get(head, 0.0))

    def _start(self, number: int) -> int:
        return 1 + self.stages + number

    def _after(self, variable: int, head: int, delay: float) -> None:
        """Adds the constraint that a variable is at least the end of a cell plus a delay."""
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
        """Yields the cells that the cell at `head` waits for, each with the delay after its end."""
        graph, base = self.graph, len(self.graph.tasks)
        for slot in graph.waits[head]:
            number, delay = (slot, 0.0) if slot < base else (graph.transfers[slot - base][0], self.delays[slot - base])
            yield _head(graph, number), delay
        row = graph.rows[graph.homes[head]]
        # A task beside its mesh waits for tasks that use its resources. The next task of the mesh does not wait for it.
        for used in ("", *graph.tracks.get(head, ())):
            for number in range(head - 1, row.start - 1, -1):
                same = used in graph.tracks.get(number, ()) if used else number not in graph.asides
                if graph.spans[number] and same:
                    yield number, 0.0 if used else self.leads.get(head, 0.0)
                    break

    def solve(self, budget: float, most: float) -> np.ndarray:
        """Returns the values of all variables."""
        import numpy as np  # imported here, like scipy, for a faster start
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
