"""`memory_limit`: what each stage computes again, offloads or evicts, so that a program fits into its devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import own_copy
from jaxpp.fitting import Fitting, divided, program_peaks
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.once_per import CHOICES
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.verify_program import SMALLER, limits_of
from jaxpp.hlo_passes.stages.residuals import tasks_of
from jaxpp.hlo_passes.stages.split_forward import choices
from jaxpp.ir.byte_counts import UNITS, parse_bytes
from jaxpp.ir.errors import LimitError
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import callee, functions
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.values import byte_size
from jaxpp.other_orders import other_orders
from jaxpp.schedules import Schedule, ScheduleError
from jaxpp.schedules.search.stagewise import StageChoices
from jaxpp.task_times import Rates, TaskTimes

LEVELS = 16
"""Into so many steps the bytes between all residuals and the least are divided."""


Limit = int | str | Sequence[int | str] | None
"""The bytes that each device may need: a number, or a text such as "70GiB"; one for all meshes, or one for each."""


def limit_text(limit: Limit | np.integer | Sequence[int | np.integer], meshes: int, name: str = "memory_limit") -> str:
    """Bytes as the option of `verify-program`. Raises TypeError or ValueError for what is no limit of these meshes."""
    if limit is None:
        return ""
    each: list[Any] = list(limit) if isinstance(limit, list | tuple) else [limit]
    if wrong := next((one for one in each if isinstance(one, str) and not parse_bytes(one)), None):
        raise TypeError(f"{name} is {wrong!r}, expected bytes per device, such as '70GiB'; units are {UNITS}")
    each = [(parse_bytes(one) or 0) if isinstance(one, str) else one for one in each]
    if not all(isinstance(one, int | np.integer) and not isinstance(one, bool) and one > 0 for one in each):
        raise TypeError(
            f"{name} is {limit!r}, expected bytes per device: a positive whole number, a text such as '70GiB', or a "
            "list of them"
        )
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


NOTHING: Mapping[str, str] = {"recompute": "", "offload": "", "evict": "", "order": ""}
"""What is done where nothing is done to keep less."""


def fit(
    module: ir.Module, schedule: str, meshes: int, options: Mapping[str, str], rates: Rates | None = None
) -> Fitted:
    """The fastest program of `module` that stays within the limits of `options`, by what is done to keep less.

    The time of a step is that of `simulate`. The schedule is taken as it is, with residuals that wait on other meshes
    (`schedules.evict`), and, if it is one of the library, in orders that keep fewer activations.

    Raises:
        LimitError: nothing of all this is enough; it names the mesh in the way, and the least that this one needs.
        ScheduleError: costs are given, and for another schedule.
    """
    free = {name: value for name, value in options.items() if name not in ("memory_limit", "host_memory_limit")}
    before, after = divided(mpmd(schedule, meshes, **free))
    base = own_copy(module)
    run_passes(base, before)
    peaks = program_peaks(own_copy(base), after)
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
        fitting = Fitting(base, other, free, limits, levels, times, splits)
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
        raise _refusal(best.peaks[:count], limits[:count], loop.op.location, smaller(options))
    return best.fitted  # where a host is in the way, `verify-program` refuses it


def _refusal(least: Sequence[int], limits: Sequence[float], location: ir.Location, hint: str) -> LimitError:
    """The error where nothing that is done to keep less is enough; it is about the mesh most above its limit."""
    _, mesh = max((need - limit, mesh) for mesh, (need, limit) in enumerate(zip(least, limits, strict=True)))
    needed = f"mesh {mesh} needs at least {least[mesh]:,} bytes on each device"
    message = f"{needed}, its memory limit is {limits[mesh]:,.0f}"
    return LimitError(message, location=location, hint=hint, least=least)


class _Found(NamedTuple):
    """What comes of one schedule.

    Attributes:
        fitting: the search that found it.
        fitted: the choice that fits, or else the one that is nearest to the limits.
        peaks: the bytes that the devices of each mesh need, and the hosts.
        excess: how far the worst host and the worst mesh are above their limits; 0 where they are not.
    """

    fitting: Fitting
    fitted: Fitted
    peaks: list[int]
    excess: tuple[float, float]

    @property
    def fits(self) -> bool:
        """Whether all are within their limits."""
        return self.excess == (0, 0)


def _found(fitting: Fitting, choice: StageChoices, plan: Schedule, schedule: str, options: Mapping[str, str]) -> _Found:
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


def _evicted(plan: Schedule) -> Schedule | None:
    """The schedule with residuals that wait on other meshes; None where it can't have any, or has what it needs."""
    try:
        made = schedules.evict(plan)
    except ScheduleError:
        return None
    return made if any(task.kind == "evict" for task in made) else None


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
