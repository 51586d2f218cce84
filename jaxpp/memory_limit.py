"""`memory_limit`: what each stage computes again, offloads or evicts, so that a program fits into its devices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import own_copy
from jaxpp.hlo_passes import Pass, run_passes
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.verify_program import check_limits, limits_of
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
from jaxpp.schedules import Schedule, ScheduleError
from jaxpp.schedules.search.stagewise import Choice, Search, Way
from jaxpp.task_times import Rates, TaskTimes

LEVELS = 16
"""Into so many steps the bytes between all residuals and the least are divided."""
_MOST_COMPILES = 4
"""How often a program is compiled to find what leaves room for the temporaries of its tasks."""


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


NOTHING: Mapping[str, str] = {"recompute": "", "offload": "", "evict": "", "order": ""}
"""What is done where nothing is done to keep less."""


def fit(
    module: ir.Module, schedule: str, meshes: int, options: Mapping[str, str], rates: Rates | None = None
) -> Fitted:
    """The fastest program of `module` that stays within the limits of `options`, by what is done to keep less.

    The time of a step is that of `simulate`. The schedule is taken as it is, with residuals that wait on other meshes
    (`schedules.evict`), and, if it is one of the library or of the search, in orders that keep fewer activations.

    Raises:
        ProgramError: nothing of all this is enough; it names the mesh, and the least that the mesh needs.
        ScheduleError: costs are given, and for another schedule.
    """
    free = {name: value for name, value in options.items() if name not in ("memory_limit", "host_memory_limit")}
    before, after = _divided(mpmd(schedule, meshes, **free))
    base = own_copy(module)
    run_passes(base, before)
    peaks = _peaks(base, after)
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
    least, found = peaks[:count], list[Fitted]()
    for other in _schedules(plan, over[:count], times):
        fitting = _Fitting(base, other, free, limits, levels, times, least)
        if found and fitting.time(fitting.nothing) >= min(each.time for each in found):
            continue  # whatever else is done takes longer still
        with base.context:
            loop = loop if other is plan else loop.rescheduled(lambda _, other=other: other)
        choice = fitting.search()
        least = fitting.least
        if choice is not None:
            chosen = fitting.options_of(choice)
            text = schedule if other is plan else str(other)
            kept_less = dict(NOTHING) | chosen | _said(plan, other)
            found.append(Fitted(text, {**options, **chosen}, kept_less, fitting.time(choice)))
    if not found:
        check_limits(least, list(map(int, limits[:count])), least=True)
        return Fitted(schedule, dict(options), dict(NOTHING))  # each mesh can be below its limit, but not all at once
    return min(found, key=lambda each: each.time)


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


_Made = TypeVar("_Made")


def compile_within(
    limits: str,
    make: Callable[[str], _Made],
    memory: Callable[[_Made], tuple[Sequence[int], Sequence[int | None]]],
    *,
    may_choose: bool = True,
) -> _Made:
    """Compile a program; where its temporaries are too much, again with limits that leave room for them.

    Args:
        limits: of the devices, as the option of `verify-program`; empty: none.
        make: compiles the program that is within such limits without its temporaries.
        memory: what one needs of each mesh, without temporaries and with them; None of one that is not known.
        may_choose: whether another limit may give another program.

    Raises:
        ProgramError: a mesh needs more than its limit.
    """
    made, refusal = make(limits), None
    for left in reversed(range(_MOST_COMPILES)):
        compiled = _Needs(limits, *memory(made)) if limits else None
        if compiled is None or compiled.fits:
            return made
        refusal = compiled.refusal()
        if not left or not may_choose or None in compiled.needed:  # a process that runs nothing of it can't choose
            break
        try:
            made = make(compiled.with_room)
        except ProgramError as error:
            raise refusal from error
    assert refusal is not None
    raise refusal


@dataclass(frozen=True)
class _Needs:
    """What a compiled program needs of each mesh, where it is limited.

    Attributes:
        limits: of the devices, as the option of `verify-program`.
        peaks: what the program needs without temporaries.
        needed: with them; None of a mesh that other processes compile for.
    """

    limits: str
    peaks: Sequence[int]
    needed: Sequence[int | None]

    @property
    def fits(self) -> bool:
        """Whether each known mesh is within its limit."""
        return all(need is None or need <= limit for need, limit in zip(self.needed, self._each, strict=False))

    @property
    def with_room(self) -> str:
        """The limits for the program alone with which there is room for these temporaries."""
        temporaries = [(need or 0) - peak for need, peak in zip(self.needed, self.peaks, strict=True)]
        idle = [0] * (len(self._each) - len(temporaries))
        pairs = zip(self._each, [*temporaries, *idle], strict=True)
        return " ".join(str(max(limit - size, 1)) for limit, size in pairs)

    def refusal(self) -> ProgramError:
        """The error about the mesh that needs most above its limit."""
        known = [need or 0 for need in self.needed]
        _, mesh = max((need - limit, mesh) for mesh, (need, limit) in enumerate(zip(known, self._each, strict=False)))
        return ProgramError(
            f"mesh {mesh} needs {known[mesh]:,} bytes on each device, {known[mesh] - self.peaks[mesh]:,} of them for "
            f"temporaries of its compiled tasks; its memory limit is {self._each[mesh]:,}",
            hint="give the step smaller microbatches, more devices per stage or more stages",
        )

    @property
    def _each(self) -> list[int]:
        words = [int(word) for word in self.limits.split()]
        return words * len(self.peaks) if len(words) == 1 else words


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
        least: the least that the devices of each mesh needed in all that was tried and kept to the limit of its host.
    """

    base: ir.Module
    plan: Schedule
    options: dict[str, str]
    limits: Sequence[float]
    levels: Mapping[int, Sequence[tuple[int, int]]]
    times: TaskTimes
    least: list[int]
    _peaks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    _plans: dict[tuple[str, str], Schedule] = field(default_factory=dict[tuple[str, str], Schedule])

    def search(self) -> Choice | None:
        """The fastest choice that fits, or None."""
        again, moved = self._stages("recompute"), self._stages("offload")
        count = len(self.limits) // 2
        groups = [([*meshes, *(count + mesh for mesh in meshes)], stages) for meshes, stages in _groups(self.plan)]
        return Search(groups, self.levels, again, moved, self.limits, self.peaks, self.time).run()

    @property
    def nothing(self) -> Choice:
        """The choice of no stage."""
        return {stage: Way() for stage in self.levels}

    def _stages(self, kind: str) -> set[int]:
        """The stages of which the schedule has such tasks."""
        return {task.stage for task in self.plan if task.kind == kind}

    def peaks(self, choice: Choice) -> list[int]:
        """The bytes that the devices of each mesh need, and the hosts: by the program itself."""
        chosen = self.options_of(choice)
        key = str(chosen)
        if key not in self._peaks:
            found = self._peaks[key] = _peaks(self.base, _divided(mpmd("", 0, **self.options | chosen))[1])
            count = len(self.least)
            for mesh in range(count):
                if found[count + mesh] <= self.limits[count + mesh]:
                    self.least[mesh] = min(self.least[mesh], found[mesh])
        return self._peaks[key]

    def options_of(self, choice: Choice) -> dict[str, str]:
        """The options of `mpmd` that say it."""
        keeps = [f"{stage}:{self.levels[stage][way.level][0]}B" for stage, way in choice.items() if way.level]
        stages = [str(stage) for stage, way in choice.items() if way.offload]
        return {"recompute": " ".join(keeps), "offload": " ".join(stages)}

    def time(self, choice: Choice) -> tuple[float, float]:
        """The time of the step, and the sum of what its meshes compute and copy."""
        again = [stage for stage, way in choice.items() if way.level]
        moved = [stage for stage, way in choice.items() if way.offload]
        key = str(again), str(moved)
        if key not in self._plans:
            plan = schedules.recompute(self.plan, *again) if again else self.plan
            self._plans[key] = schedules.offload(plan, *moved) if moved else plan
        made = self._stages("recompute")  # of which only inputs are kept
        kept = [self.levels[n][choice[n].level] for n in range(self.plan.stages)]
        kept = [(0, self.times.flops.get(("forward", n), 0)) if n in made else each for n, each in enumerate(kept)]
        plan = self._plans[key]
        costs = self.times.costs(plan, kept)
        report = schedules.simulate(plan, costs)
        return report.makespan, report.busy + sum(costs.at_home("offload", plan)[stage] for stage in moved)


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


def _peaks(base: ir.Module, passes: Sequence[Pass]) -> list[int]:
    """The bytes that the devices of each mesh need, and then the hosts."""
    module = own_copy(base)
    run_passes(module, passes)
    names = (at.PEAK_BYTES, at.PEAK_HOST_BYTES)
    return [at.integer(function, name) or 0 for name in names for function in mesh_functions(module)]
