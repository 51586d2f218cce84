"""The choice of weight gradients to leave out so that a step gets shorter: the linear program of TimelyFreeze."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.durations import cells_of, task_times
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.schedule import Schedule, check_type

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
    """The linear program. Its variables are the makespan, the share of each stage, and the start of each cell."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.stages, self.split = schedule.stages, _split_stages(schedule)
        self.cells = cells = cells_of(schedule, costs)
        self.rows: list[dict[int, float]] = []
        """For each constraint the coefficients of its variables; the sum is at least the bound."""
        self.bounds: list[float] = []
        # The time of each cell, and of its weight gradients by stage.
        self.weights: list[dict[int, float]] = [{} for _ in cells.times]
        graph = schedule.graph
        for cell, task, time in zip(graph.cell_of, graph.tasks, task_times(schedule, costs), strict=True):
            if task.kind == "weight_grad":
                self.weights[cell][task.stage] = self.weights[cell].get(task.stage, 0.0) + time
        for row in cells.rows:
            last: dict[object, int] = {}
            leads = cells.leads(row)
            for cell in row:
                used = cells.tracks.get(cell, ())
                # A cell beside its mesh waits for the previous cell, but the next cell does not wait for it.
                ahead = [
                    (last[each], leads.get(cell, 0.0) if each == "" else 0.0) for each in ("", *used) if each in last
                ]
                for earlier, delay in (*cells.waits[cell], *ahead):
                    self._after(self._start(cell), earlier, delay)
                self._after(0, cell, 0.0)
                # The first run of a mesh follows no task, but must gather its weights.
                self.rows.append({self._start(cell): 1.0})
                self.bounds.append(leads.get(cell, 0.0))
                last.update(dict.fromkeys(used if cell in cells.asides else ("", *used), cell))

    def _start(self, cell: int) -> int:
        return 1 + self.stages + cell

    def _after(self, variable: int, cell: int, delay: float) -> None:
        """Adds the constraint that a variable is at least the end of a cell plus a delay."""
        weights = {1 + stage: time for stage, time in self.weights[cell].items()}
        self.rows.append({variable: 1.0, self._start(cell): -1.0, **weights})
        self.bounds.append(delay + self.cells.times[cell])

    def solve(self, budget: float, most: float) -> np.ndarray:
        """Returns the values of all variables."""
        import numpy as np  # imported here, like scipy, for a faster start
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        count = 1 + self.stages + len(self.cells.times)
        spent = {1 + stage: -1.0 / self.stages for stage in range(self.stages)}
        rows, bounds = [*self.rows, spent], np.array([*self.bounds, -budget])
        entries = [(at, variable, factor) for at, row in enumerate(rows) for variable, factor in row.items()]
        where, variables, factors = zip(*entries, strict=True)
        matrix = csr_matrix((factors, (where, variables)), shape=(len(rows), count))
        limits = [(0.0, np.inf), *((0.0, most if stage in self.split else 0.0) for stage in range(self.stages))]
        limits += [(0.0, np.inf)] * len(self.cells.times)
        goal = np.zeros(count)
        goal[0] = 1.0
        first = linprog(goal, -matrix, -bounds, bounds=limits)
        if first.x is None:
            raise ScheduleError(f"freeze_ratios: {first.message}")
        limits[0] = (0.0, first.x[0] * (1 + 1e-9))
        goal = np.array([float(0 < n <= self.stages) for n in range(count)])
        second = linprog(goal, -matrix, -bounds, bounds=limits)
        return first.x if second.x is None else second.x
