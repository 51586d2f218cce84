"""`memory_limit`: chooses which stages recompute, offload or evict residuals, so that a program fits its devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.once_per import CHOICES
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.verify_program import SMALLER, limits_of, worst
from jaxpp.hlo_passes.stages.split_forward import choices
from jaxpp.ir.byte_counts import UNITS, parse_bytes
from jaxpp.ir.errors import LimitError
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import callee, functions
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.phases import tasks_of
from jaxpp.ir.values import byte_size
from jaxpp.memory.fitting import Fitting, divided, program_peaks
from jaxpp.memory.other_orders import other_orders
from jaxpp.memory.task_times import Rates, TaskTimes
from jaxpp.schedules import Schedule, ScheduleError
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.search.stagewise import StageChoices

LIMITS = ("memory_limit", "host_memory_limit")
"""The options of passes that limit memory."""

LEVELS = 16
"""The most choices of a stage besides keeping all residuals (`split_forward.choices`)."""


Limit = int | str | Sequence[int | str] | None
"""The most bytes of each device: a number, or a text such as "70GiB"; one for all meshes, or one per mesh."""


def limit_text(limit: Limit | np.integer | Sequence[int | np.integer], meshes: int, name: str = "memory_limit") -> str:
    """Returns a limit in the text form of the option of `verify-program`; "" if it is None.

    Raises:
        TypeError: the limit is not a positive number, a text such as "70GiB", or a list of these.
        ValueError: there are several limits, but not one per mesh.
    """
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
    """The choice that `fit` made.

    Attributes:
        schedule: the text of a new schedule, if the order changed or residuals are evicted; otherwise as it was given.
        options: the options of `mpmd`.
        kept_less: the means that save memory, by name: "recompute", "offload", "evict", "order"; "" if not used.
        time: the makespan of the step, and the sum of the times of its tasks and copies.
    """

    schedule: str
    options: dict[str, Any]
    kept_less: dict[str, str]
    time: tuple[float, float] = (0.0, 0.0)


def smaller(options: Mapping[str, Any]) -> str:
    """Returns the hint of the error for a program that needs too much memory, with these options of `mpmd`."""
    names = [name for name in CHOICES if options.get(name, "microbatch") != "microbatch"]
    return "".join(f'take {name}="microbatch", ' for name in names) + SMALLER


NOTHING: Mapping[str, str] = {"recompute": "", "offload": "", "evict": "", "order": ""}
"""The `kept_less` of a program that keeps everything."""


def fit(
    module: ir.Module, schedule: str, meshes: int, options: Mapping[str, Any], rates: Rates | None = None
) -> Fitted:
    """Returns the fastest choice of recomputes, offloads, evictions and orders that stays within the memory limits.

    `simulate` gives the time of a step. The candidates are the given schedule, and the same with evicted residuals
    (`schedules.rewrites.evict`). For a schedule of the library, orders that keep fewer activations are candidates too.

    For a program with slices nothing is chosen: `verify-program` refuses it if it is too large. If only the memory of a
    host is too small, the nearest choice is returned, and `verify-program` refuses that.

    Raises:
        LimitError: no choice is enough for the devices. It names the mesh that is most above its limit, and the fewest
            bytes that this mesh needs.
        ScheduleError: the costs in `rates` belong to another schedule.
    """
    free = {name: value for name, value in options.items() if name not in LIMITS}
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
        if loop.slices > 1:  # `verify-program` refuses a program that is too large
            return Fitted(schedule, dict(options), dict(NOTHING))
        levels, plan = choices(base, LEVELS), loop.plan
        times = TaskTimes(_flops(base, loop), _entering(base, loop), rates or Rates())
    found, splits = list[_Found](), dict[str, ir.Module]()
    for other in _schedules(plan, over[:count], times):
        fitting = Fitting(base, other, free, limits, levels, times, splits)
        fits = [each.fitted.time for each in found if each.fits]
        if fits and fitting.time(fitting.nothing) >= min(fits):
            continue  # every other choice takes longer still
        choice = fitting.search()
        if choice is not None or not fits:
            found.append(_found(fitting, choice or fitting.nearest(), plan, schedule, options))
    best = min(found, key=lambda each: (each.excess, each.fitted.time))
    if not best.fits:
        best = _found(best.fitting, best.fitting.least(), plan, schedule, options)
    if best.excess[1] > 0:
        raise _refusal(best.peaks[:count], limits[:count], loop.op.location, smaller(options))
    return best.fitted  # `verify-program` refuses it if the memory of a host is too small


def _refusal(least: Sequence[int], limits: Sequence[float], location: ir.Location, hint: str) -> LimitError:
    """Returns the error if no choice is enough; it names the mesh that is most above its limit."""
    _, mesh = worst(least, limits)
    needed = f"mesh {mesh} needs at least {least[mesh]:,} bytes on each device"
    message = f"{needed}, its memory limit is {limits[mesh]:,.0f}"
    return LimitError(message, location=location, hint=hint, least=least)


class _Found(NamedTuple):
    """The outcome of the search for one schedule.

    Attributes:
        fitting: the search.
        fitted: the choice that fits, otherwise the choice that is nearest to the limits.
        peaks: the peak bytes of the devices of each mesh, then of the host of each mesh.
        excess: the bytes by which the worst host and the worst mesh exceed their limits; 0 if they do not.
    """

    fitting: Fitting
    fitted: Fitted
    peaks: list[int]
    excess: tuple[float, float]

    @property
    def fits(self) -> bool:
        """Whether all meshes and hosts are within their limits."""
        return self.excess == (0, 0)


def _found(fitting: Fitting, choice: StageChoices, plan: Schedule, schedule: str, options: Mapping[str, Any]) -> _Found:
    """Returns the outcome of a choice for the schedule of `fitting`.

    Args:
        fitting: the search.
        choice: the choice of each stage.
        plan: the original schedule.
        schedule: its text as it was given.
        options: the original options of `mpmd`.
    """
    chosen, peaks, count = fitting.options_of(choice), fitting.peaks(choice), len(fitting.limits) // 2
    text = schedule if fitting.plan is plan else str(fitting.plan)
    kept_less = dict(NOTHING) | chosen | _said(plan, fitting.plan)
    fitted = Fitted(text, {**options, **chosen}, kept_less, fitting.time(choice))
    on_hosts, on_devices = (fitting.excess(peaks, each) for each in (range(count, 2 * count), range(count)))
    return _Found(fitting, fitted, peaks, (max(on_hosts, 0), max(on_devices, 0)))


def _said(plan: Schedule, other: Schedule) -> dict[str, str]:
    """Returns the entry of `kept_less` for a schedule other than the original: evicting stages, or activations."""
    if other is plan:
        return {}
    evicted = sorted({task.stage for task in other if task.kind == "evict"})
    if evicted:
        return {"evict": " ".join(map(str, evicted))}
    return {"order": " ".join(map(str, activations(other)))}


def _schedules(plan: Schedule, over: Sequence[bool], times: TaskTimes) -> list[Schedule]:
    """Returns the schedule, the same with evicted residuals if it can evict, and other orders of its tasks."""
    evicted = _evicted(plan)
    costs = times.costs(plan, [(0, 0)] * plan.stages)
    return [plan, *([] if evicted is None else [evicted]), *other_orders(plan, over, costs)]


def _evicted(plan: Schedule) -> Schedule | None:
    """Returns the schedule with evicted residuals; None if it can't evict any, or evicting gains nothing."""
    try:
        made = evict(plan)
    except ScheduleError:
        return None
    return made if any(task.kind == "evict" for task in made) else None


def _flops(base: ir.Module, loop: MicrobatchLoop) -> dict[tuple[str, int], int]:
    """Returns the FLOPs of the function of each (kind, stage), summed over all devices of its mesh."""
    counter, by_name = FlopCounter(base), functions(base)
    return {task: counter.inside(by_name[callee(op)]) for task, op in tasks_of(base, loop.body).items()}


def _entering(base: ir.Module, loop: MicrobatchLoop) -> dict[int, int]:
    """Returns the bytes that the forward of each stage reads from other tasks, for one microbatch."""
    forwards = ((stage, op) for (kind, stage), op in tasks_of(base, loop.body).items() if kind == "forward")
    return {
        stage: sum(byte_size(each.type) for each in op.operands if loop.is_of_a_task(each)) for stage, op in forwards
    }
