"""Activations that wait for their backward in the memory of the host."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.timeline import Life, Timeline, timelines
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Task
from jaxpp.schedules.model.values import positive
from jaxpp.schedules.rewrites.tasks import held_stages


def offload(schedule: Schedule, *stages: int, ahead: int | None = None, k: float = 1.0) -> Schedule:
    """Moves activations to the host after the forward, and back in time for the backward (PipeOffload, 2503.01328).

    Both copies run beside the mesh's own tasks. Each activation comes back as late as possible without delaying its
    backward. This assumes that the forward, input gradient and weight gradient of a mesh take equally long, and that a
    hop takes no time. Under this assumption the schedule takes as long as before, whatever `k`.

    An activation stays on its mesh if there is no time for its copies, or if it waits on another mesh (`evict`). For a
    stage that is recomputed, the input that the recompute reads moves instead of the activation.

    Args:
        schedule: a schedule without copies of these stages.
        stages: the stages whose activations move.
        ahead: how many cells before its backward, or its recompute, an activation starts to come back; None: as late as
            possible. Activations that are needed within `ahead` cells after their forward stay. With 0, all leave
            except activations that the next cell needs. A backward then waits for its activation, and a mesh holds one
            at a time.
        k: the time of both copies of an activation, as a share of the time of its forward and backward.

    Raises:
        ScheduleError: when a stage does not exist, or already has copies, or a number is out of range.
    """
    held = held_stages(schedule, stages)
    moved = next((task for task in schedule if task.kind == "offload" and task.stage in held), None)
    if moved is not None:
        raise ScheduleError(f"offload: {schedule.name} has {moved.words} already")
    if ahead is not None:
        ahead = whole_number(ahead, "ahead", least=0)
    k = positive(k, "offload: k")
    costs = Costs()
    both = zip(*(costs.at_home(kind, schedule) for kind in ("forward", "backward")), strict=True)
    seconds = [k / 2 * sum(times) / schedule.slices for times in both]
    evicted = {task.unit for task in schedule if task.kind == "evict"}
    rows: list[list[tuple[Task, ...]]] = []
    for timeline in timelines(schedule):
        lives = [life for life in timeline.lives if life.unit[0] in held and life.unit not in evicted]
        if ahead is None:
            trips = _in_time(timeline, lives, seconds)
        else:
            trips = [(life, life.read - ahead) for life in lives if life.made + max(ahead, 1) < life.read]
        before: dict[int, list[Task]] = {}
        for life, _ in trips:
            before.setdefault(life.made + 1, []).append(Task("offload", *life.unit))
        for life, returns in sorted(trips, key=itemgetter(1)):
            before.setdefault(returns, []).append(Task("reload", *life.unit))
        rows.append(timeline.with_tasks(before))
    made = Schedule.of(schedule.name, schedule.placement, rows, schedule.kinds, schedule.skipped)
    check(made)
    return made


def _in_time(timeline: Timeline, lives: Sequence[Life], seconds: Sequence[float]) -> list[tuple[Life, int]]:
    """Returns the activations that can be copied to the host and back in time, and the cell before which each returns.

    Each direction copies one activation at a time: to the host as early as possible, and back as late as possible.
    """
    starts, ends = timeline.starts, timeline.ends
    going = sorted(lives, key=lambda life: life.read)
    while True:
        there: dict[Life, float] = {}
        clock = 0.0
        for life in sorted(going, key=lambda life: life.made):
            clock = there[life] = max(clock, ends[life.made]) + seconds[life.unit[0]]
        back: dict[Life, float] = {}
        clock = ends[-1] if ends else 0.0
        for life in reversed(going):
            clock = back[life] = min(clock, starts[life.read]) - seconds[life.unit[0]]
        late = {life for life in going if back[life] < there[life] - _TOLERANCE}
        if not late:
            return [(life, bisect_right(ends, back[life] + _TOLERANCE)) for life in going]
        going = [life for life in going if life not in late]


_TOLERANCE = 1e-9
