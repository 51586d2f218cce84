"""Proves the optimum of small pipelines by CP-SAT (`pip install ortools`): `S.search` is measured against it.

Each stage runs, for each microbatch, a forward F, an input gradient I and a weight gradient W, or F and a fused
backward B = I + W. F(s) needs F(s - 1); I(s) needs F(s) and I(s + 1); W(s) needs I(s). What goes from mesh to mesh
takes a hop. A mesh runs one task at a time and keeps no more activations than its limit: with v stages per mesh each F
makes 1/v of a microbatch at its start, freed at the end of W, of I, or half at either (`Report.peak_activations`).

Two arguments make the problem smaller and lose nothing:

- *Microbatches in order.* Microbatches are alike. In any timetable, call the k-th task of a kind and stage to start the
  one of microbatch k. When k tasks of a kind have started, the k tasks that these needed have ended, so the first k of
  those have: all needs still hold. Memory only counts tasks, and no time has changed.
- *Nobody waits for nothing.* Moving tasks to the left, in the same order on each mesh, ends none of them later. What a
  mesh keeps depends on its order alone, as a task that frees ends before the next one makes. So a mesh starts as soon
  as the first microbatch reaches it, and `simulate` takes no longer than the timetable found here.
"""

# pyright: reportMissingImports=false
# It comes with the extra "bench", which not everybody has.

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Final, Literal, NamedTuple, TypeAlias

from ortools.sat.python import cp_model

from jaxpp import schedules as S

Release: TypeAlias = Literal["W", "B", "half"]
Objective: TypeAlias = Literal["makespan", "longest_stage"]

_FINEST: Final = 1_000
"""Times must be multiples of a unit, the common part of fractions with denominators up to this."""


class Optimum(NamedTuple):
    """The best schedule that was found, and its value, which is infinite where none was; nothing is below the bound.

    proven: whether value and bound are the same; or, with an infinite value, whether no schedule fits the memory.
    """

    value: float
    bound: float
    proven: bool
    schedule: S.Schedule | None


@dataclass(frozen=True)
class Problem:
    """A pipeline in whole numbers.

    Attributes:
        kinds: of task, in the order in which a stage runs them for a microbatch.
        times: of each kind the duration on each stage.
        hops: from mesh to mesh.
        frees: what the end of each kind frees, in halves of what a forward makes.
        limit: what a mesh may keep, in such halves.
    """

    placement: S.Placement
    microbatches: int
    kinds: tuple[str, ...]
    times: dict[str, list[int]]
    hops: list[list[int]]
    frees: dict[str, int]
    limit: float
    unit: Fraction

    @cached_property
    def tasks(self) -> list[S.Task]:
        """Every task, those of a kind and stage in the order in which they run."""
        sizes = range(self.placement.stages), self.kinds, range(self.microbatches)
        return [S.Task(kind, stage, microbatch) for stage, kind, microbatch in product(*sizes)]

    def time(self, task: S.Task) -> int:
        """Returns the duration of a task."""
        return self.times[task.kind][task.stage]

    def needs(self, task: S.Task) -> Iterable[tuple[S.Task, int]]:
        """Yields the tasks that this one needs, and how long their results travel."""
        kind, stage, microbatch = task.kind, task.stage, task.microbatch
        place = self.kinds.index(kind)
        if place:
            yield S.Task(self.kinds[place - 1], stage, microbatch), 0
        source = {0: stage - 1, 1: stage + 1}.get(place, -1)
        if 0 <= source < self.placement.stages:
            yield S.Task(kind, source, microbatch), self.hops[self.placement[source]][self.placement[stage]]

    @cached_property
    def firsts(self) -> list[int]:
        """When the first microbatch reaches each mesh, at the earliest."""
        arrives, found = 0, dict[int, int]()
        for stage in range(self.placement.stages):
            mesh = self.placement[stage]
            found.setdefault(mesh, arrives)
            if stage + 1 < self.placement.stages:
                arrives += self.times["forward"][stage] + self.hops[mesh][self.placement[stage + 1]]
        return [found[mesh] for mesh in range(self.placement.meshes)]

    @cached_property
    def regular(self) -> bool:
        """Whether the first microbatch reaches every mesh before it comes back to one: then they start at `firsts`."""
        order = [self.placement[stage] for stage in range(self.placement.meshes)]
        return len(set(order)) == self.placement.meshes


def problem_of(
    placement: S.Placement,
    microbatches: int,
    costs: S.Costs,
    memory_limit: float = math.inf,
    released_at: Release = "W",
    split_backward: bool = True,
) -> Problem:
    """Returns the problem in whole numbers.

    Raises:
        ValueError: a stage is on several meshes, or times have no common unit.
    """
    if any(len(homes) > 1 for homes in placement.homes):
        raise ValueError(f"each stage must be on one mesh, found {placement}")
    kinds: tuple[str, ...] = ("forward", "input_grad", "weight_grad") if split_backward else ("forward", "backward")
    rows = [
        [S.Task(kind, stage, 0) for kind in kinds for stage in placement.stages_of(mesh)]
        for mesh in range(placement.meshes)
    ]
    sample = S.Schedule.of("sample", placement, rows)
    exact = {kind: [_fraction(time) for time in costs.at_home(kind, sample)] for kind in kinds}
    hops = [[_fraction(hop) for hop in row] for row in costs.pair("hop", sample)]
    for mesh in range(placement.meshes):
        hops[mesh][mesh] = Fraction(0)
    unit = _common_unit([time for row in (*exact.values(), *hops) for time in row])
    halves = {"W": (0, 2), "B": (2, 0), "half": (1, 1)}[released_at] if split_backward else (2,)
    return Problem(
        placement,
        microbatches,
        kinds,
        {kind: [int(time / unit) for time in times] for kind, times in exact.items()},
        [[int(hop / unit) for hop in row] for row in hops],
        dict(zip(kinds, (0, *halves), strict=True)),
        2 * memory_limit * placement.stages / placement.meshes + 1e-9,
        unit,
    )


def optimum(
    placement: S.Placement,
    microbatches: int,
    costs: S.Costs,
    memory_limit: float = math.inf,
    released_at: Release = "W",
    objective: Objective = "makespan",
    split_backward: bool = True,
    seconds: float = 60,
    hint: S.Schedule | None = None,
    bound: float = 0,
) -> Optimum:
    """Finds the best schedule, as far as it can be told in the time. The first arguments are those of `S.search`.

    It starts from the schedule `hint`; `bound` is a lower bound that is known already.

    Raises:
        ValueError: a stage is on several meshes, times have no common unit, or the longest stage is asked for where the
            start of a mesh is not known beforehand.
    """
    problem = problem_of(placement, microbatches, costs, memory_limit, released_at, split_backward)
    if objective == "longest_stage" and not problem.regular:
        raise ValueError(f"for the longest stage the first stages must be on different meshes, found {placement}")
    timetable = Timetable(problem, objective)
    timetable.model.add(timetable.value >= math.ceil(bound / float(problem.unit) - 1e-6))
    if hint is not None:
        timetable.start_from(hint, costs)
    return timetable.solve(seconds)


class Timetable:
    """The model: a start for each task."""

    def __init__(self, problem: Problem, objective: Objective) -> None:
        self.problem, self.objective = problem, objective
        self.model = cp_model.CpModel()
        delays = (delay for task in problem.tasks for _, delay in problem.needs(task))
        self.horizon = sum(map(problem.time, problem.tasks)) + sum(delays)
        self.starts = {task: self.model.new_int_var(0, self.horizon, str(task)) for task in problem.tasks}
        self.value = self.model.new_int_var(0, self.horizon, "value")
        for task in problem.tasks:  # after what it needs, and microbatches in order
            for need, delay in problem.needs(task):
                self.model.add(self.starts[task] >= self.end(need) + delay)
            if task.microbatch:
                before = S.Task(task.kind, task.stage, task.microbatch - 1)
                self.model.add(self.starts[task] >= self.end(before))
        for mesh in range(problem.placement.meshes):
            self.add_mesh(mesh)
            self.add_memory(mesh)
        self.model.minimize(self.value)

    def end(self, task: S.Task) -> cp_model.LinearExprT:
        """Returns when a task ends."""
        return self.starts[task] + self.problem.time(task)

    def add_mesh(self, mesh: int) -> None:
        """Makes a mesh run one task at a time, from when the first microbatch arrives to the end."""
        problem, model = self.problem, self.model
        tasks, stages, first = self.tasks_of(mesh), problem.placement.stages_of(mesh), problem.firsts[mesh]
        model.add_no_overlap(
            model.new_fixed_size_interval_var(self.starts[task], problem.time(task), f"{task} runs") for task in tasks
        )
        if problem.regular:
            model.add(self.starts[S.Task("forward", stages[0], 0)] == first)
        origin = first if self.objective == "longest_stage" else 0
        for stage in stages:
            last = S.Task(problem.kinds[-1], stage, problem.microbatches - 1)
            model.add(self.value >= self.end(last) - origin)
        model.add(self.value >= first - origin + sum(map(problem.time, tasks)))

    def add_memory(self, mesh: int) -> None:
        """Limits what the mesh keeps, from the start of a forward to the end of the task that frees it."""
        problem, model = self.problem, self.model
        if problem.limit >= 2 * len(problem.placement.stages_of(mesh)) * problem.microbatches:
            return
        alive: list[cp_model.IntervalVar] = []
        demands: list[int] = []
        for task in self.tasks_of(mesh):
            if problem.frees[task.kind]:
                made = self.starts[S.Task("forward", task.stage, task.microbatch)]
                length = model.new_int_var(0, self.horizon, f"{task} frees after")
                alive.append(model.new_interval_var(made, length, self.end(task), f"{task} frees"))
                demands.append(problem.frees[task.kind])
        model.add_cumulative(alive, demands, math.floor(problem.limit))

    def tasks_of(self, mesh: int) -> list[S.Task]:
        """Returns the tasks of a mesh."""
        return [task for task in self.problem.tasks if self.problem.placement[task.stage] == mesh]

    def start_from(self, hint: S.Schedule, costs: S.Costs) -> None:
        """Begins with a schedule that is known."""
        report, problem = S.simulate(hint, costs), self.problem
        times: dict[tuple[str, int], list[float]] = {}
        for task in hint:
            at = report.times(task)[0]
            for kind in [task.kind] if task.kind in problem.kinds else ["input_grad", "weight_grad"]:
                times.setdefault((kind, task.stage), []).append(at)
                at += float(problem.times[kind][task.stage] * problem.unit)
        for (kind, stage), starts in times.items():
            for microbatch, at in enumerate(sorted(starts)):
                self.model.add_hint(self.starts[S.Task(kind, stage, microbatch)], round(at / float(problem.unit)))

    def solve(self, seconds: float) -> Optimum:
        """Looks for the best timetable."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = solver.parameters.random_seed = 1
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return Optimum(math.inf, math.inf, True, None)
        bound = float(round(solver.best_objective_bound) * self.problem.unit)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Optimum(math.inf, bound, False, None)
        value = float(solver.value(self.value) * self.problem.unit)
        at: dict[S.Task, int] = {task: solver.value(start) for task, start in self.starts.items()}
        rows = [sorted(self.tasks_of(mesh), key=at.__getitem__) for mesh in range(self.problem.placement.meshes)]
        schedule = S.Schedule.of("optimum", self.problem.placement, rows)
        return Optimum(value, bound, status == cp_model.OPTIMAL, schedule)


def _fraction(time: float) -> Fraction:
    fraction = Fraction(time).limit_denominator(_FINEST)
    if not math.isclose(fraction, time, rel_tol=1e-12):
        raise ValueError(f"times must be fractions with a denominator of at most {_FINEST}, found {time!r}")
    return fraction


def _common_unit(times: list[Fraction]) -> Fraction:
    scale = math.lcm(*(time.denominator for time in times))
    return Fraction(math.gcd(*(int(time * scale) for time in times)), scale)
