"""The search for cuts on one placement: dynamic programming and moves, each evaluated by a search for the order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from typing import Final, TypeAlias

import numpy as np

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.memory import byte_sizes
from jaxpp.schedules.engine.problem import Orders, Problem
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.rewrites.tasks import recompute
from jaxpp.schedules.search.bounds import lower_bound
from jaxpp.schedules.search.candidates import published
from jaxpp.schedules.search.cuts import Cuts, beside, best_cuts
from jaxpp.schedules.search.effort import Effort, seconds_of
from jaxpp.schedules.search.improve import improve
from jaxpp.schedules.search.keep_less import fits_bytes, keep_less
from jaxpp.schedules.search.placed_row import UNITS, PlacedRow, empty_of
from jaxpp.schedules.search.room import with_room
from jaxpp.schedules.search.search import Running, Try

SHARES: Final = (0.005, 0.05)
"""The effort of a search for the order on one choice of cuts, as shares of all effort: for the first search on many
cuts, and for the second search on cuts that may still be better."""

_STEPS: Final = 20
"""The least number of orders that a search may simulate, whatever its share."""

_FINISHED: Final = 3
"""The number of cuts, and of finished schedules for each of them, that are brought into a limit in bytes."""

_CUT: Final = 0.3
"""With limits in bytes, the share of all effort for cuts and for orders without copies to the host."""

_KEPT_LESS: Final = 0.8
"""The share of all effort after which no more finished schedules are brought into the limit. The rest is for the order
of the best."""

_NEIGHBOURS: Final = 6
"""The number of neighbours per stage that are tried: those with the most balanced loads."""


@dataclass(frozen=True)
class Stages:
    """One choice of cuts, and the best order on it so far.

    Attributes:
        cuts: the layers of each stage.
        again: the stages that recompute.
        problem: the problem of the order, with the times and the memory that recomputes need.
        orders: the orders of the problem's types.
        value: the value of these orders.
    """

    cuts: Cuts
    again: tuple[int, ...]
    problem: Problem
    orders: Orders
    value: float

    @property
    def schedule(self) -> Schedule:
        """The orders as a schedule."""
        made = self.problem.schedule("search", self.orders)
        return recompute(made, *self.again) if self.again else made


_Finished: TypeAlias = tuple[Cuts, Schedule, float]
"""Cuts, a schedule for them, and its makespan."""


@dataclass
class Cutting:
    """The search on one placement.

    Attributes:
        row: the layers on the placement.
        effort: the budget.
        rng: the source of random choices of the searches for orders.
        best: the best stages so far.
        finished: the cuts on which finished schedules were brought into the limit.
        tried: all cuts that were tried, with the effort of the search and its result.
    """

    row: PlacedRow
    effort: Effort
    rng: np.random.Generator
    best: Stages | None = None
    finished: set[Cuts] = field(default_factory=set[Cuts])
    tried: dict[Cuts, tuple[float, Stages | None]] = field(default_factory=dict[Cuts, "tuple[float, Stages | None]"])

    @property
    def value(self) -> float:
        """The best value so far; infinite if nothing fits."""
        return math.inf if self.best is None else self.best.value

    def improve(self, seconds: float) -> None:
        """Alternates between cuts and searches for the order, until neither gains.

        Each search for the order spends at most `seconds`.
        """
        for cuts in self.row.starts():
            self._attempt(cuts, seconds)
        while self.best is not None and self._left > 0:
            if not any(self._attempt(cuts, seconds) for cuts in self._next(self.best)):
                return

    @property
    def _left(self) -> float:
        """The effort that cuts may still spend."""
        return self.effort.left - (self.effort.seconds * (1 - _CUT) if self.row.in_bytes else 0.0)

    @cached_property
    def bound(self) -> float:
        """A lower bound for all cuts and all orders on this placement."""
        return self.row.bound(self.effort)

    def _next(self, best: Stages) -> Iterator[Cuts]:
        """Yields cuts that may be better than the best.

        First come cuts balanced after the idle times of each mesh are added to its loads. Neighbours of the best cuts
        follow, ranked by the makespan of the best orders on them.
        """
        ends = best.problem.run(best.orders)
        assert ends is not None
        loads = self.row.loads()
        idle = [best.value - load for load in best.problem.loads]
        outside = [
            row[0] - best.problem.times[order[0]] + best.value - row[-1]
            for row, order in zip(ends, best.orders, strict=True)
        ]
        for each in (idle, outside):
            weights = np.array([each[self.row.shape[stage]] for stage in range(self.row.shape.stages)])
            if (found := best_cuts(loads + weights[:, None, None])) is not None:
                yield found[1]
        near = sorted(beside(best.cuts), key=self.row.unevenness)[: _NEIGHBOURS * self.row.shape.stages]
        ranked: list[tuple[float, Cuts]] = []
        for cuts in near:
            self.effort.spend(best.problem.types * self.row.microbatches * UNITS)
            problem = self._problem(cuts, best.again)
            if problem is not None and lower_bound(problem) < best.value * (1 - TOLERANCE):
                ranked.append((problem.value(best.orders), cuts))
        yield from (cuts for _, cuts in sorted(ranked))

    def _attempt(self, cuts: Cuts, seconds: float) -> bool:
        """Searches for the order on these cuts, and returns whether the result is the best so far."""
        spent, known = self.tried.get(cuts, (0.0, None))
        if spent >= seconds or (self.best is not None and self._left <= 0):
            return False
        found = known
        costs = self.row.costs.cut(cuts)
        for again, careful in self._again(cuts):
            problem = self._problem(cuts, again, careful=careful)
            if problem is None or (found is not None and lower_bound(problem) >= found.value * (1 - TOLERANCE)):
                continue
            least = seconds_of(_STEPS, problem.types * problem.microbatches * UNITS)
            tried = Try(problem, costs)
            tried.take(self.best and self.best.orders, "beside")
            made = Running([tried], self.effort.part(max(seconds, least)), self.rng, None).run()
            stages = Stages(cuts, again, problem, made.orders, made.value)
            if again:
                if not fits_bytes(stages.schedule, costs, self.row.left(cuts)):
                    continue
                # In the schedule a recompute may start before the gradient of its backward arrives.
                stages = replace(stages, value=simulate(stages.schedule, costs).makespan)
            if found is None or stages.value < found.value:
                found = stages
        self.tried[cuts] = seconds, found
        if found is None or found.value >= self.value * (1 - TOLERANCE):
            return False
        self.best = found
        return True

    def _again(self, cuts: Cuts) -> list[tuple[tuple[int, ...], bool]]:
        """Returns the choices of stages that recompute, and whether they are `careful` (`_problem`).

        Without a limit in bytes the only choice is none. With one, the choices are none, the stages of the meshes on
        which 1F1B does not fit, and all stages.
        """
        if not self.row.in_bytes:
            return [((), False)]
        shape = self.row.shape
        sizes = self.row.costs.cut(cuts).bytes("activation_bytes", empty_of(shape))
        left, stages = self.row.left(cuts), range(shape.stages)
        kept = [0.0] * shape.meshes
        for stage in stages:
            kept[shape[stage]] += min(self.row.microbatches, shape.stages - stage) * sizes[stage]
        tight = tuple(stage for stage in stages if kept[shape[stage]] > left[shape[stage]])
        recomputing = dict.fromkeys([tight, tuple(stages)] if tight else [tuple(stages)])
        return [((), False), *product(recomputing, (False, True))]

    def _problem(self, cuts: Cuts, again: Sequence[int], *, careful: bool = True) -> Problem | None:
        """Returns the problem of the order on these cuts; None if one microbatch does not fit.

        With `careful`, stages of `again` reserve memory for the residuals that exist only while their forward runs.
        """
        left = self.row.left(cuts)
        if min(left) <= 0:
            return None
        problem = self.row.problem(cuts, replace(self.row.memory, limits=tuple(left)))
        if again:
            problem = _recomputing(problem, self.row.costs.cut(cuts), again, careful)
        if min(problem.limits) <= 0 or not problem.fits(problem.one_by_one):
            return None
        return problem

    def finish(self) -> tuple[Cuts, Schedule, float]:
        """Returns the best cuts, their schedule and its makespan, after the rest of the effort is spent on the order.

        With limits in bytes, it also brings finished schedules that need more memory into the limit. It does so on the
        best cuts so far and on balanced cuts, then on the neighbours of the best. At last `improve` orders the tasks of
        the best schedule, with its recomputes and offloads.

        Raises:
            ScheduleError: nothing fits the memory.
        """
        best = self.best
        if best is not None and self._left > 0 and lower_bound(best.problem) < self.value * (1 - TOLERANCE):
            self._attempt(best.cuts, self._left)
        found = [] if self.best is None else [(self.best.cuts, self.best.schedule, self.best.value)]
        if self.row.in_bytes and (best is None or best.value > self.bound * (1 + TOLERANCE)):
            found = self._finished(found, until=_KEPT_LESS * self.effort.seconds)
        if not found and self.row.in_bytes:
            found = sorted(
                islice(self._kept_less(with_room(self.row), math.inf), _FINISHED),
                key=lambda each: each[2],
            )
        if not found:
            why = self.row.why_nothing_fits()
            raise ScheduleError(f"partition: no cuts fit the memory{why}")
        cuts, schedule, value = found[0]
        if self.row.in_bytes and self.effort.left > 0 and value > self.bound * (1 + TOLERANCE):
            seed, limits = int(self.rng.integers(1 << 32)), self.row.left(cuts)
            costs, seconds = self.row.costs.cut(cuts), self.effort.left
            # Layers without activations need no limit: their resident bytes already fit.
            in_bytes = limits if any(costs.bytes("activation_bytes", schedule)) else None
            better = improve(schedule, costs, memory_bytes=in_bytes, seconds=seconds, seed=seed)
            schedule, value = replace(better, name=schedule.name), better.value
        return cuts, schedule, value

    def _finished(self, found: list[_Finished], until: float) -> list[_Finished]:
        """Returns the best of `found` and of finished schedules brought into the limit, or an empty list."""
        tried = sorted((each for _, each in self.tried.values() if each), key=lambda each: each.value)
        choices = list(dict.fromkeys([*self.row.starts(), *(each.cuts for each in tried[:_FINISHED])]))
        while True:
            least = min((value for _, _, value in found), default=math.inf)
            found = sorted([*found, *self._kept_less(choices, until)], key=lambda each: each[2])[:1]
            if not found or found[0][2] >= least * (1 - TOLERANCE) or self.effort.spent >= until:
                return found
            near = sorted(beside(found[0][0]), key=self.row.unevenness)[:_FINISHED]
            choices = [cuts for cuts in near if cuts not in self.finished]

    def _kept_less(self, choices: Iterable[Cuts], until: float) -> Iterator[_Finished]:
        """Yields fast schedules on these cuts that recomputes and offloads bring into the limit.

        It stops when `until` of the effort is spent. As long as nothing fits, it tries the cuts in any case.
        """
        fits = self.best is not None
        for cuts in choices:
            if fits and self.effort.spent >= until:
                return
            self.finished.add(cuts)
            costs, limits = self.row.costs.cut(cuts), self.row.left(cuts)
            problem = self.row.problem(cuts)
            tried = Try(problem, costs)
            Running([tried], self.effort.part(SHARES[0] * self.effort.seconds), self.rng, None).run()
            plans = [problem.schedule("search", tried.orders)]
            plans += (p for p in published(self.row.shape, problem.microbatches, costs) if problem.orders(p))
            if not fits:  # the order that needs the least memory
                plans.append(problem.schedule("search", problem.one_by_one))
            left = _FINISHED
            for plan in sorted(plans, key=lambda plan: simulate(plan, costs).makespan):
                if min(limits) <= 0 or not left or (fits and self.effort.spent >= until):
                    break
                kept = keep_less(plan, costs, limits, self.effort)
                if kept is not None and fits_bytes(kept, costs, limits):
                    left, fits = left - 1, True
                    yield cuts, kept, simulate(kept, costs).makespan


def _recomputing(problem: Problem, costs: Costs, again: Sequence[int], careful: bool) -> Problem:
    """Returns the problem if the stages of `again` recompute.

    Such a stage recomputes its forward directly before its backward, and keeps only its input. The limit of a mesh is
    reduced by the memory that exists only during a recompute or, with `careful`, during a forward.
    """
    empty = empty_of(problem.placement)
    sizes, times = byte_sizes(empty, costs), costs.at_home("recompute", empty)
    problem = replace(problem, times=list(problem.times), memory=list(problem.memory), limits=list(problem.limits))
    beside = [0.0] * problem.meshes
    for stage in again:
        mesh, whole, kept = problem.mesh_of[stage], sizes.activation[stage], sizes.input[stage]
        rest = -problem.memory[2 * problem.stages + stage] if len(problem.kinds) > 2 else 0.0
        problem.times[problem.stages + stage] += times[stage]
        problem.memory[stage] -= whole - kept
        problem.memory[problem.stages + stage] += whole - kept
        beside[mesh] = max(beside[mesh], whole - (kept if careful else max(kept, rest)))
    return replace(problem, limits=[limit - more for limit, more in zip(problem.limits, beside, strict=True)])
