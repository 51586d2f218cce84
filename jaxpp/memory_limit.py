"""`memory_limit`: what each stage computes again, offloads or evicts, so that a program fits into its devices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import own_copy
from jaxpp.hlo_passes import Pass, run_passes
from jaxpp.hlo_passes.loop.delay_reductions import CHOICES
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.verify_program import SMALLER, limits_of
from jaxpp.hlo_passes.stages.residuals import tasks_of
from jaxpp.hlo_passes.stages.split_forward import SplitForward, choices
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import callee, functions
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.values import byte_size
from jaxpp.other_orders import other_orders
from jaxpp.schedules import Costs, Schedule, ScheduleError
from jaxpp.schedules.search.stagewise import Search, StageChoices, Way
from jaxpp.schedules.simulate import task_times
from jaxpp.task_times import Rates, TaskTimes

LEVELS = 16
"""Into so many steps the bytes between all residuals and the least are divided."""


def limit_text(
    limit: int | np.integer | Sequence[int | np.integer] | None, meshes: int, name: str = "memory_limit"
) -> str:
    """Bytes as the option of `verify-program`. Raises TypeError or ValueError for what is no limit of these meshes."""
    if limit is None:
        return ""
    each: list[Any] = list(limit) if isinstance(limit, list | tuple) else [limit]
    if not all(isinstance(one, int | np.integer) and not isinstance(one, bool) and one > 0 for one in each):
        raise TypeError(f"{name} is {limit!r}, expected bytes per device: a positive whole number, or a list")
    if len(each) not in (1, meshes):
        raise ValueError(f"{name} has {len(each)} numbers for {meshes} meshes, expected one, or one for each")
    return " ".join(map(str, each))


@dataclass(frozen=True)
class Fitted:
    """What was chosen.

    Attributes:
        schedule: another one than that of the loop, where the order is another or residuals wait on other meshes; else
            as it was given.
        options: of `mpmd`.
        kept_less: what is done to keep less, by name: "recompute", "offload", "evict", "order".
        time: of the step and of its tasks.
    """

    schedule: str
    options: dict[str, str]
    kept_less: dict[str, str]
    time: tuple[float, float] = (0.0, 0.0)


def smaller(options: Mapping[str, str]) -> str:
    """What to do about a program with these options of `mpmd` that needs too much, whatever is kept."""
    names = [name for name in CHOICES if options.get(name, "microbatch") != "microbatch"]
    return "".join(f'take {name}="microbatch", ' for name in names) + SMALLER


class LimitError(ProgramError):
    """Nothing that is done to keep less is enough.

    Attributes:
        least: what each mesh needs on each device, without temporaries, by the choice that comes nearest to the limits.
    """

    def __init__(
        self, least: Sequence[int], limits: Sequence[float], location: ir.Location, hint: str = SMALLER
    ) -> None:
        self.least = least
        _, mesh = max((need - limit, mesh) for mesh, (need, limit) in enumerate(zip(least, limits, strict=True)))
        needed = f"mesh {mesh} needs at least {least[mesh]:,} bytes on each device"
        super().__init__(f"{needed}, its memory limit is {limits[mesh]:,.0f}", location=location, hint=hint)


NOTHING: Mapping[str, str] = {"recompute": "", "offload": "", "evict": "", "order": ""}
"""What is done where nothing is done to keep less."""


def fit(
    module: ir.Module, schedule: str, meshes: int, options: Mapping[str, str], rates: Rates | None = None
) -> Fitted:
    """The fastest program of `module` that stays within the limits of `options`, by what is done to keep less.

    The time of a step is that of `simulate`. The schedule is taken as it is, with residuals that wait on other meshes
    (`schedules.evict`), and, if it is one of the library or of the search, in orders that keep fewer activations.

    Raises:
        LimitError: nothing of all this is enough; it names the mesh in the way, and the least that this one needs.
        ScheduleError: costs are given, and for another schedule.
    """
    free = {name: value for name, value in options.items() if name not in ("memory_limit", "host_memory_limit")}
    before, after = _divided(mpmd(schedule, meshes, **free))
    base = own_copy(module)
    run_passes(base, before)
    peaks = _peaks(own_copy(base), after)
    count = len(peaks) // 2
    limits = [float(limit) for limit in limits_of(options["memory_limit"], count)]
    hosts = options.get("host_memory_limit", "")
    limits += map(float, limits_of(hosts, count)) if hosts else [float("inf")] * count
    over = [peak > limit for peak, limit in zip(peaks, limits, strict=True)]
    if not any(over):
        return Fitted(schedule, dict(options), dict(NOTHING))
    with base.context:
        loop = MicrobatchLoop.of(base)
        if loop.slices > 1:  # nothing is chosen for these: `verify-program` refuses what is too large
            return Fitted(schedule, dict(options), dict(NOTHING))
        levels, plan = choices(base, LEVELS), loop.plan
        times = TaskTimes(_flops(base, loop), _entering(base, loop), rates or Rates())
    found, splits = list[_Found](), dict[str, ir.Module]()
    for other in _schedules(plan, over[:count], times):
        fitting = _Fitting(base, other, free, limits, levels, times, splits)
        fits = [each.fitted.time for each in found if each.fits]
        if fits and fitting.time(fitting.nothing) >= min(fits):
            continue  # whatever else is done takes longer still
        choice = fitting.search()
        if choice is not None or not fits:
            found.append(_found(fitting, choice or fitting.nearest(), plan, schedule, options))
    best = min(found, key=lambda each: (each.excess, each.fitted.time))
    if not best.fits:
        best = _found(best.fitting, best.fitting.least(), plan, schedule, options)
    if best.excess[1] > 0:
        raise LimitError(best.peaks[:count], limits[:count], loop.op.location, smaller(options))
    return best.fitted  # where a host is in the way, `verify-program` refuses it


class _Found(NamedTuple):
    """What comes of one schedule.

    Attributes:
        fitting: the search that found it.
        fitted: the choice that fits, or else the one that is nearest to the limits.
        peaks: the bytes that the devices of each mesh need, and the hosts.
        excess: how far the worst host and the worst mesh are above their limits; 0 where they are not.
    """

    fitting: "_Fitting"
    fitted: Fitted
    peaks: list[int]
    excess: tuple[float, float]

    @property
    def fits(self) -> bool:
        """Whether all are within their limits."""
        return self.excess == (0, 0)


def _found(
    fitting: "_Fitting", choice: StageChoices, plan: Schedule, schedule: str, options: Mapping[str, str]
) -> _Found:
    """What comes of a choice for the schedule of `fitting`, in place of `plan`, whose text is `schedule`."""
    chosen, peaks, count = fitting.options_of(choice), fitting.peaks(choice), len(fitting.limits) // 2
    text = schedule if fitting.plan is plan else str(fitting.plan)
    kept_less = dict(NOTHING) | chosen | _said(plan, fitting.plan)
    fitted = Fitted(text, {**options, **chosen}, kept_less, fitting.time(choice))
    on_hosts, on_devices = (fitting.excess(peaks, each) for each in (range(count, 2 * count), range(count)))
    return _Found(fitting, fitted, peaks, (max(on_hosts, 0), max(on_devices, 0)))


def _said(plan: Schedule, other: Schedule) -> dict[str, str]:
    """What another schedule does to keep less."""
    if other is plan:
        return {}
    evicted = sorted({task.stage for task in other if task.kind == "evict"})
    if evicted:
        return {"evict": " ".join(map(str, evicted))}
    return {"order": " ".join(map(str, schedules.activations(other)))}


def _schedules(plan: Schedule, over: Sequence[bool], times: TaskTimes) -> list[Schedule]:
    """The schedule, and what it can become: what evicts residuals of it, and other orders of its tasks."""
    evicted = _evicted(plan)
    costs = times.costs(plan, [(0, 0)] * plan.stages)
    return [plan, *([] if evicted is None else [evicted]), *other_orders(plan, over, costs)]


@dataclass
class _Fitting:
    """One schedule, and what its stages may do.

    Attributes:
        base: the module before the first pass that depends on the choice.
        plan: its schedule.
        options: of `mpmd`, without the limits.
        limits: of the devices of each mesh, and then of the hosts.
        levels: what a recompute of each stage may keep: (bytes, FLOPs).
        times: of the tasks.
        splits: the module whose forwards are split, for each option of `split-forward`, whatever the schedule.
    """

    base: ir.Module
    plan: Schedule
    options: dict[str, str]
    limits: Sequence[float]
    levels: Mapping[int, Sequence[tuple[int, int]]]
    times: TaskTimes
    splits: dict[str, ir.Module]
    _tried: dict[str, tuple[StageChoices, list[int]]] = field(default_factory=dict[str, tuple[StageChoices, list[int]]])
    _plans: dict[tuple[int, ...], Schedule] = field(default_factory=dict[tuple[int, ...], Schedule])
    _times: dict[tuple[Way, ...], tuple[float, float]] = field(
        default_factory=dict[tuple[Way, ...], tuple[float, float]]
    )

    def search(self) -> StageChoices | None:
        """The fastest choice that fits, or None."""
        again, groups = self._stages("recompute"), self._groups()
        return Search(
            groups, self.levels, again, self._unmoved, self.limits, self.peaks, self.time, self.at_least
        ).run()

    @property
    def _unmoved(self) -> set[int]:
        """The stages of which no choice offloads anything."""
        return self._stages("offload") if self.times.rates.has_host else set(self.levels)

    def nearest(self) -> dict[int, Way]:
        """Of all that was tried the choice that comes nearest to the limits of devices within those of the hosts."""
        best: dict[int, Way] = {}
        for meshes, stages in self._groups():
            hosts, devices = meshes[len(meshes) // 2 :], meshes[: len(meshes) // 2]
            over = [(max(self.excess(need, hosts), 0), self.excess(need, devices)) for _, need in self._tried.values()]
            choice, _ = list(self._tried.values())[over.index(min(over))]
            best |= {stage: choice[stage] for stage in stages}
        return best

    def least(self) -> StageChoices:
        """The nearest choice that no change of one stage of each group brings nearer to the limits.

        What a stage does to keep less may need more at another moment: that of a copy, or of what is made again.
        """
        best, groups = self.nearest(), self._groups()
        while True:
            before = best
            for position in range(max(len(stages) for _, stages in groups)):
                changed = [stages[position] for _, stages in groups if position < len(stages)]
                for again, offload in product((False, True), repeat=2):
                    self.peaks(best | {stage: self._extreme(stage, again, offload) for stage in changed})
                best = self.nearest()
            if best == before:
                return best

    def _extreme(self, stage: int, again: bool, offload: bool) -> Way:
        """All that a stage can do again, or nothing of it; and whether it is offloaded too, if it can be."""
        last = 0 if stage in self._stages("recompute") else len(self.levels[stage]) - 1
        return Way(last if again else 0, offload and stage not in self._unmoved)

    def excess(self, peaks: Sequence[int], meshes: Iterable[int]) -> float:
        """How far the worst of these meshes and hosts is above its limit; below 0: how much room it has."""
        return max(peaks[mesh] - self.limits[mesh] for mesh in meshes)

    def _groups(self) -> list[tuple[list[int], list[int]]]:
        """Meshes and their hosts, whose memory depends on the same stages, with these stages."""
        count = len(self.limits) // 2
        return [([*meshes, *(count + mesh for mesh in meshes)], stages) for meshes, stages in _groups(self.plan)]

    @property
    def nothing(self) -> StageChoices:
        """The choice of no stage."""
        return {stage: Way() for stage in self.levels}

    def _stages(self, kind: str) -> set[int]:
        """The stages of which the schedule has such tasks."""
        return {task.stage for task in self.plan if task.kind == kind}

    def peaks(self, choice: StageChoices) -> list[int]:
        """The bytes that the devices of each mesh need, and the hosts: by the program itself."""
        chosen = self.options_of(choice)
        key = str(chosen)
        if key not in self._tried:
            split, *passes = _divided(mpmd("", 0, **self.options | chosen))[1]
            if chosen["recompute"] not in self.splits:
                self.splits[chosen["recompute"]] = module = own_copy(self.base)
                run_passes(module, [split])
            module = own_copy(self.splits[chosen["recompute"]])
            plan = self._changed(tuple(stage for stage in range(self.plan.stages) if choice[stage].level))
            with module.context:
                MicrobatchLoop.of(module).rescheduled(lambda _: plan)
            self._tried[key] = choice, _peaks(module, passes)
        return self._tried[key][1]

    def options_of(self, choice: StageChoices) -> dict[str, str]:
        """The options of `mpmd` that say it."""
        keeps = [f"{stage}:{self.levels[stage][way.level][0]}B" for stage, way in choice.items() if way.level]
        stages = [str(stage) for stage, way in choice.items() if way.offload]
        return {"recompute": " ".join(keeps), "offload": " ".join(stages)}

    def time(self, choice: StageChoices) -> tuple[float, float]:
        """The time of the step, and the sum of what its meshes compute and copy."""
        ways = tuple(choice[stage] for stage in range(self.plan.stages))
        if ways not in self._times:
            moved = [stage for stage, way in enumerate(ways) if way.offload]
            plan = self._changed(tuple(stage for stage, way in enumerate(ways) if way.level))
            plan = schedules.offload(plan, *moved) if moved else plan
            costs = self._costs(plan, [way.level for way in ways])
            report = schedules.simulate(plan, costs)
            copied = sum(costs.at_home("offload", plan)[stage] for stage in moved)
            self._times[ways] = report.makespan, report.busy + copied
        return self._times[ways]

    def at_least(self, choice: StageChoices) -> float:
        """The least that the step may take: until the first task of a mesh, and for all of its tasks."""
        flops = [self.levels[stage][choice[stage].level][1] for stage in range(self.plan.stages)]
        again = (sum(time * flops[stage] for stage, time in each.items()) for each in self._again)
        return max(before + more for before, more in zip(self._busy, again, strict=True)) * (1 - 1e-6)

    def _changed(self, again: tuple[int, ...]) -> Schedule:
        """The schedule in which these stages are recomputed."""
        if again not in self._plans:
            self._plans[again] = schedules.recompute(self.plan, *again) if again else self.plan
        return self._plans[again]

    def _costs(self, plan: Schedule, chosen: Sequence[int]) -> Costs:
        """The costs of what the schedule has become, if each stage keeps what its level says."""
        made = self._stages("recompute")  # of which only inputs are kept
        kept = [self.levels[stage][level] for stage, level in enumerate(chosen)]
        flops = self.times.flops
        kept = [(0, flops.get(("forward", n), 0)) if n in made else each for n, each in enumerate(kept)]
        return self.times.costs(plan, kept)

    @cached_property
    def _busy(self) -> list[float]:
        """When each mesh would be done if nothing is changed and it never waits after its first task."""
        plan, graph = self.plan, self.plan.graph
        costs = self._costs(plan, [0] * plan.stages)
        times, starts = task_times(plan, costs), schedules.simulate(plan, costs).run.starts
        own = [[number for number in row if number not in graph.asides] for row in graph.rows]
        return [min(starts[n] for n in row) + sum(times[n] for n in row) if row else 0.0 for row in own]

    @cached_property
    def _again(self) -> list[dict[int, float]]:
        """For each mesh and stage the time of each FLOP that is done again, for all microbatches."""
        made = self._stages("recompute")
        last = [0 if stage in made else len(self.levels[stage]) - 1 for stage in range(self.plan.stages)]
        plan = self._changed(tuple(stage for stage, level in enumerate(last) if level))
        graph, times = plan.graph, task_times(plan, self._costs(plan, last))
        found = [dict[int, float]() for _ in graph.rows]
        for mesh, row in enumerate(graph.rows):
            for number in row:
                stage = graph.tasks[number].stage
                if graph.tasks[number].kind == "recompute" and (flops := self.levels[stage][last[stage]][1]):
                    found[mesh][stage] = found[mesh].get(stage, 0.0) + times[number] / flops
        return found


def _divided(passes: Sequence[Pass]) -> tuple[Sequence[Pass], Sequence[Pass]]:
    """The passes before the first that depends on a choice, and the others."""
    first = next(number for number, step in enumerate(passes) if isinstance(step, SplitForward))
    return passes[:first], passes[first:]


def _evicted(plan: Schedule) -> Schedule | None:
    """The schedule with residuals that wait on other meshes; None where it can't have any, or has what it needs."""
    try:
        made = schedules.evict(plan)
    except ScheduleError:
        return None
    return made if any(task.kind == "evict" for task in made) else None


def _groups(plan: Schedule) -> list[tuple[list[int], list[int]]]:
    """Meshes whose memory depends on the same stages, with these stages."""
    groups: list[tuple[set[int], set[int]]] = []
    for mesh, row in enumerate(plan.cells):
        meshes, stages = {mesh}, {task.stage for cell in row for task in cell}
        for group in [each for each in groups if each[1] & stages]:
            groups.remove(group)
            meshes, stages = meshes | group[0], stages | group[1]
        groups.append((meshes, stages))
    return [(sorted(meshes), sorted(stages)) for meshes, stages in groups]


def _flops(base: ir.Module, loop: MicrobatchLoop) -> dict[tuple[str, int], int]:
    """The FLOPs of the function of each kind and stage, on all devices of its mesh together."""
    counter, by_name = FlopCounter(base), functions(base)
    return {task: counter.inside(by_name[callee(op)]) for task, op in tasks_of(base, loop).items()}


def _entering(base: ir.Module, loop: MicrobatchLoop) -> dict[int, int]:
    """The bytes that the forward of each stage gets from other tasks, for one microbatch."""
    forwards = ((stage, op) for (kind, stage), op in tasks_of(base, loop).items() if kind == "forward")
    return {
        stage: sum(byte_size(each.type) for each in op.operands if loop.is_of_a_task(each)) for stage, op in forwards
    }


def _peaks(module: ir.Module, passes: Sequence[Pass]) -> list[int]:
    """The bytes that the devices of each mesh need, and then the hosts, once these passes ran on `module`."""
    run_passes(module, passes)
    names = (at.PEAK_BYTES, at.PEAK_HOST_BYTES)
    return [at.integer(function, name) or 0 for name in names for function in mesh_functions(module)]
