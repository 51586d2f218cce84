"""Rehearses a job: a plan's step, drawn many times under given conditions, and the failures of days."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from jaxpp import schedules
from jaxpp.planning.conditions import DAY, HOUR, Conditions
from jaxpp.planning.failures import Saves, best_interval
from jaxpp.planning.numbers import Numbers
from jaxpp.planning.rehearsal import LostTime, RehearsedJob, with_dispatch
from jaxpp.planning.show_rehearsal import as_text
from jaxpp.runtime.measuring.units import time_text
from jaxpp.targets.target import PlanError

_STEPS, _JOBS = 200, 200
"""The most steps and jobs that are drawn."""

_TASKS = 400_000
"""The most tasks that are simulated in all drawn steps together; at least 20 steps are drawn."""


class Rehearsal(RehearsedJob):
    """A rehearsed job. `print(rehearsal)` shows it; `RehearsedJob` has the attributes."""

    def __str__(self) -> str:
        """Returns the rehearsal as text."""
        return as_text(self)


def rehearse(plan: Numbers, conditions: Conditions | None = None) -> Rehearsal:
    """Rehearses a job whose step is planned.

    Args:
        plan: the plan of the step.
        conditions: the conditions of the job; by default, those without prices, failures and stragglers.

    Raises:
        PlanError: the plan takes no time, or a job of `days` is shorter than a step.
    """
    conditions = conditions or Conditions()
    if not plan.step_seconds:
        raise PlanError(f"rehearse: the step of {plan.name} takes no time: plan a step that computes")
    loop, first = _SlowedLoop.of(plan), _first(plan, conditions)
    steps = _drawn_steps(plan, loop, conditions)
    step = statistics.fmean(steps)
    if conditions.days * DAY < step:
        raise PlanError(
            f"rehearse: days is {conditions.days:g}, which is {time_text(conditions.days * DAY)}, expected at least a "
            f"step, which takes {time_text(step)}"
        )
    parts = _parts(plan, loop, conditions)
    return Rehearsal(plan, conditions, first, parts, steps, _losses(plan, conditions, first, step))


@dataclasses.dataclass(frozen=True)
class _SlowedLoop:
    """The loop over microbatches of a plan, in the simulator of schedules. A plan without a schedule has no tasks."""

    schedule: schedules.Schedule | None
    costs: schedules.Costs

    @classmethod
    def of(cls, plan: Numbers) -> "_SlowedLoop":
        return cls(schedules.parse(plan.schedule) if plan.schedule else None, plan.costs("s"))

    def seconds(self, **changes: object) -> float:
        """Returns the time of the loop under changed costs."""
        if self.schedule is None:
            return 0.0
        return schedules.simulate(self.schedule, dataclasses.replace(self.costs, **changes)).makespan

    def slowed(self, factors: Sequence[float]) -> float:
        """Returns the time of the loop on meshes that are slower by these factors."""
        if self.schedule is None:
            return 0.0
        speeds = self.costs.per_mesh("speed", self.schedule)
        return self.seconds(speed=[speed / factor for speed, factor in zip(speeds, factors, strict=True)])


def _first(plan: Numbers, conditions: Conditions) -> dict[str, float]:
    """Returns the parts of the time to the first results. All programs of a host compile at once.

    "arguments" is the time in which the arguments of a step move between the devices and the memory of their hosts.
    """
    return {
        **({"tracing and passes": plan.prepare_seconds} if plan.prepare_seconds else {}),
        "compiling": max(mesh.compile_seconds for mesh in plan.meshes),
        "arguments": max(mesh.argument_bytes for mesh in plan.meshes) / plan.facts.host.bandwidth,
        "step": with_dispatch(plan.step_seconds, plan, conditions),
    }


def _parts(plan: Numbers, loop: _SlowedLoop, conditions: Conditions) -> dict[str, float]:
    """Returns `Rehearsal.parts`. Messages take what the loop is shorter without them."""
    means = [
        statistics.fmean(getattr(mesh, name) for mesh in plan.meshes)
        for name in ("product_seconds", "memory_seconds", "collective_seconds")
    ]
    idle = max(plan.step_seconds - sum(means), 0.0)
    messages = min(max(loop.seconds() - loop.seconds(hop=0.0, bandwidth=math.inf), 0.0), idle)
    return {
        "compute": means[0],
        "memory": means[1],
        "links": means[2] + messages,
        "dispatch": with_dispatch(plan.step_seconds, plan, conditions) - plan.step_seconds,
        "bubble": idle - messages,
    }


def _drawn_steps(plan: Numbers, loop: _SlowedLoop, conditions: Conditions) -> list[float]:
    """Returns the times of drawn steps: one, if nothing is drawn.

    A mesh is slow in a step if one of its chips is. Work around the loop waits for the slowest mesh.
    """
    if not conditions.stragglers and not conditions.jitter:
        return [with_dispatch(plan.step_seconds, plan, conditions)]
    around = plan.step_seconds - loop.seconds()
    tasks = len(loop.schedule.graph.tasks) if loop.schedule else 1
    random, spread = np.random.default_rng(conditions.seed), conditions.jitter
    chips = np.array([mesh.devices / plan.facts.devices for mesh in plan.meshes])
    is_slow = 1 - (1 - conditions.stragglers) ** chips
    found: list[float] = []
    for _ in range(max(20, min(_STEPS, _TASKS // tasks))):
        factors = np.exp(spread * random.standard_normal(len(chips)) - spread**2 / 2)
        factors *= np.where(random.random(len(chips)) < is_slow, conditions.slowdown, 1.0)
        seconds = loop.slowed(factors.tolist()) + around * float(factors.max())
        found.append(with_dispatch(seconds, plan, conditions))
    return found


def _losses(plan: Numbers, conditions: Conditions, first: Mapping[str, float], step: float) -> dict[str, LostTime]:
    """Returns the losses by failures of a job whose steps take `step` seconds on average.

    Its state is saved after whole steps. A healed training finds its programs in the cache of compilations.

    first: the parts of the time to the first results.
    """
    mean = conditions.mtbf * HOUR / (plan.devices / plan.facts.devices)
    load = first["arguments"]
    save = load if conditions.checkpoint is None else conditions.checkpoint
    again = sum(seconds for part, seconds in first.items() if part != "step")
    ways = {
        "restarted": (save, conditions.restart + again),
        "healed": (load, conditions.heal + again - first["compiling"]),
    }
    if mean == math.inf:
        saves = Saves(conditions.interval or math.inf, save if conditions.interval else 0.0, 0.0)
        return {"no failures": LostTime(saves, saves.lost(mean), ())}
    found: dict[str, LostTime] = {}
    for name, (stop, restart) in ways.items():
        interval = conditions.interval or best_interval(mean, stop)
        saves = Saves(step * max(1, round(interval / step)), stop, restart)
        expected = saves.lost(mean)
        seconds = conditions.days * DAY
        found[name] = LostTime(
            saves, expected, saves.drawn(mean, seconds, _JOBS, conditions.seed) if expected < 0.999 else ()
        )
    return found
