"""Side work in the bubbles of a schedule (FreeRide, arXiv 2409.06941)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain

from jaxpp.schedules.builders.language import Operation
from jaxpp.schedules.costs import Costs, one
from jaxpp.schedules.engine.report import Bubble, Report
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.engine.timeline import with_tasks
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.kinds import COMPUTE, Kind
from jaxpp.schedules.model.schedule import Schedule, check_type
from jaxpp.schedules.model.task import Task


def fill(
    schedule: Schedule,
    operation: Operation,
    costs: Costs | None = None,
    *,
    most: float = 0.9,
    size: float = 0.0,
    limits: Sequence[float] | None = None,
) -> Schedule:
    """Puts tasks of side work into the bubbles of a schedule, as many as fit without making it longer.

    Each task has a stage of its mesh and a microbatch, which only number the pieces of work. Its duration is the `time`
    of the operation, or the time that the costs give its kind. As for all kinds, a scalar is for a whole mesh,
    and its stages share it. A microbatch or slice of another size takes its share.

    Args:
        schedule: a schedule without such tasks.
        operation: a kind of task that needs no other task, and uses only the turn of its mesh.
        costs: the costs from which the bubbles follow, as for `simulate`.
        most: the largest share of each bubble to fill, so that work which takes longer than expected delays nothing.
        size: the bytes that a task of the side work needs.
        limits: for each mesh the bytes that activations and side work may take together.

    Raises:
        ScheduleError: when the operation needs other tasks, or does more than take time. Also when the schedule already
            has such tasks, nothing gives their time, or a number is out of range.
    """
    check_type(schedule)
    costs, name, kind = costs or Costs(), operation.name, operation.kind
    if not 0 < most <= 1:
        raise ScheduleError(f"most must be a share above 0, up to 1, found {most!r}")
    if limits is not None and len(limits) != schedule.meshes:
        raise ScheduleError(f"fill: expected {schedule.meshes} limits, one per mesh, found {len(limits)}")
    if kind is None or kind.needs:
        raise ScheduleError(f"fill: {name} waits for other tasks, so that it has a place: take `insert`")
    if replace(kind, uses=kind.uses or (COMPUTE,)) != Kind(name, uses=(COMPUTE,), time=kind.time):
        raise ScheduleError(f"fill: expected an operation that only takes time, found '{kind}': size= says its memory")
    if any(task.kind == name for task in schedule):
        raise ScheduleError(f"fill: {schedule.name} has {name} tasks already")
    kinds = [*(each for each in schedule.kinds if each.name != name), kind]
    known = Schedule.of(schedule.name, schedule.placement, schedule.cells, kinds, schedule.skipped)
    times = [costs.on_mesh(name, mesh, known) for mesh in range(schedule.meshes)]
    report, share = simulate(schedule, costs), costs.size(known) or one
    units = [_units(schedule, mesh) for mesh in range(schedule.meshes)]
    before: list[dict[int, list[Task]]] = [{} for _ in units]
    for bubble in report.bubbles:
        if limits is not None and _most_bytes(report, bubble) + size > limits[bubble.mesh]:
            continue
        left, mesh = most * bubble.length, bubble.mesh
        place = before[mesh].setdefault(_position(report, bubble), [])
        while (unit := next(units[mesh], None)) is not None:
            task = Task(name, *unit)
            left -= times[mesh][task.stage] * share(task)
            if left < 0:
                units[mesh] = chain([unit], units[mesh])
                break
            place.append(task)
    rows = map(with_tasks, schedule.cells, before)
    made = Schedule.of(schedule.name, schedule.placement, rows, kinds, schedule.skipped)
    check(made)
    return made


def bubbles_used(report: Report, *kinds: str) -> float:
    """Returns the share of the bubbles that tasks of these kinds fill.

    The bubbles are the time in which meshes would otherwise be idle.
    """
    used = sum(end - start for task in report.schedule if task.kind in kinds for start, end in [report.times(task)])
    idle = sum(bubble.length for bubble in report.bubbles)
    return used / (used + idle) if used else 0.0


def _units(schedule: Schedule, mesh: int) -> Iterator[tuple[int, int]]:
    """Yields the (stage, microbatch) for the tasks of a mesh, for the stages whose first home is this mesh."""
    stages = [stage for stage, homes in enumerate(schedule.placement.homes) if homes[0] == mesh]
    return ((stage, microbatch) for stage in stages for microbatch in range(schedule.microbatches))


def _position(report: Report, bubble: Bubble) -> int:
    """Returns the position of the cell that follows a bubble on its mesh."""
    graph, starts, middle = report.schedule.graph, report.run.starts, bubble.start + bubble.length / 2
    heads = [number for number in graph.rows[bubble.mesh] if graph.spans[number]]
    later = (at for at, head in enumerate(heads) if head not in graph.asides and starts[head] > middle)
    return next(later, len(heads))


def _most_bytes(report: Report, bubble: Bubble) -> float:
    """Returns the most bytes of activations that the mesh of a bubble holds during the bubble."""
    changes = report.live_bytes(bubble.mesh)
    times = [time for time, _ in changes]
    levels = list(accumulate(change for _, change in changes))
    begin = max(bisect_right(times, bubble.start) - 1, 0)
    end = bisect_left(times, bubble.start + bubble.length)
    return max(levels[begin:end], default=0.0)
