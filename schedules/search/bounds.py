"""Lower bounds: no schedule is better."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.durations import cells_of
from jaxpp.schedules.engine.ordered_cells import needs_in_any_order
from jaxpp.schedules.engine.problem import Objective, Problem
from jaxpp.schedules.model.schedule import Schedule


def lower_bound(problem: Problem) -> float:
    """Returns the largest of several lower bounds on the objective, within the memory limits.

    - A microbatch goes through the whole pipeline. The makespan also has the paths to a mesh before and after its work.
    - A mesh runs all its tasks, and idles while its memory leaves it no task to run (`_idle`).
    - An activation lives at least for the shortest path from its forward to its release. At no time do activations fill
      more than the memory of their mesh, summed over all stages (`_filled`) or for one stage (`_last_forward`).
    """
    makespan = problem.objective == "makespan"
    tails = problem.tails.max(1)
    ends = [head + time for head, time in zip(problem.heads, problem.times, strict=True)]
    bounds = [max(ends)] if makespan else []
    for mesh, types in enumerate(problem.types_of):
        forwards = [each for each in types if each < problem.stages]
        before = min(problem.heads[each] for each in types)
        after = float(min(tails[each] for each in types))
        filled = _filled(problem, mesh)
        busy = problem.loads[mesh] + _idle(problem, mesh)
        if makespan:
            lasts = [problem.heads[each] + _last_forward(problem, each) + float(tails[each]) for each in forwards]
            bounds += [before + busy + after, before + filled, *lasts]
        else:
            lasts = [_last_forward(problem, each) + float(problem.tails[each, mesh]) for each in forwards]
            bounds += [busy, filled, max(ends[each] for each in types) - before, *lasts]
    return max(bounds)


def least_memory(problem: Problem) -> list[float]:
    """Returns for each mesh the least memory that any schedule needs.

    A schedule needs that much if it runs one microbatch after another, and delays no weight gradients.
    """
    return [
        max(accumulate(problem.memory[each] for each in row)) for row in replace(problem, microbatches=1).one_by_one
    ]


def _filled(problem: Problem, mesh: int) -> float:
    """Returns the time for which the activations of a mesh fill its memory."""
    area = 0.0
    for each in problem.types_of[mesh]:
        if each >= problem.stages:
            # The memory that a backward releases is taken from the start of the forward to the end of the backward.
            area -= problem.memory[each] * _life(problem, each)
    return problem.microbatches * area / problem.limits[mesh] if problem.limits[mesh] else 0.0


def _life(problem: Problem, backward: int) -> float:
    """Returns the least time from the start of a forward to the end of its (input or weight) gradient `backward`."""
    return problem.heads[backward] + problem.times[backward] - problem.heads[backward % problem.stages]


def _last_forward(problem: Problem, stage: int) -> float:
    """Returns the least time from the start of a stage's first forward to the end of its last one.

    Only k activations fit. So the forward of microbatch j + k waits until the activation of microbatch j is released.
    Up to the forward of microbatch j + k + i the mesh runs i more forwards, and the tasks that release i activations.
    """
    size, time = problem.memory[stage], problem.times[stage]
    steps = problem.microbatches - 1
    backwards = range(stage + problem.stages, problem.types, problem.stages)
    # An activation may be released in parts. A whole one fits at the earliest when the first part is released.
    release = next((each for each in backwards if problem.memory[each]), None)
    fit = _fitting(problem, problem.mesh_of[stage], size)
    if release is None or not 0 < fit <= steps:
        return (steps + 1) * time
    work = time + math.fsum(problem.times[each] for each in backwards if each <= release)
    waits = ((rounds, steps - rounds * fit) for rounds in (1, steps // fit))
    return max(rounds * _life(problem, release) + rest * work for rounds, rest in waits) + time


def _idle(problem: Problem, mesh: int) -> float:
    """Returns the least time for which a mesh idles between its first task and its last.

    Until its first backward a mesh only runs the forwards that fit the memory. After its last forward it only runs the
    remaining tasks of the activations that it keeps. These two times do not overlap, unless all forwards fit at once.
    """
    stages, heads = problem.stages, problem.heads
    forwards = [each for each in problem.types_of[mesh] if each < stages]
    every = problem.microbatches * len(forwards)
    fit = min(every, _fitting(problem, mesh, min(problem.memory[each] for each in forwards)))
    way = min(heads[each + stages] for each in forwards) - min(heads[each] for each in forwards)
    start = way - fit * max(problem.times[each] for each in forwards)
    end = min(float(problem.tails[each, mesh]) for each in forwards) - _left(problem, mesh, forwards, fit)
    start, end = max(0.0, start), max(0.0, end)
    return start + end if fit < every else max(start, end)


def _fitting(problem: Problem, mesh: int, size: float) -> float:
    """Returns how many activations of this size fit the memory of a mesh at once."""
    return problem.rooms[mesh] // size if size > 0 else math.inf


def _left(problem: Problem, mesh: int, forwards: list[int], fit: float) -> float:
    """Returns the most work that the activations that fit the memory of a mesh leave for it."""
    stages, times, memory = problem.stages, problem.times, problem.memory
    # Activations that wait for all their backwards, and those that wait only for their weight gradient: (work, bytes).
    whole: list[tuple[float, float]] = []
    rests: list[tuple[float, float]] = []
    for each in forwards:
        backwards = range(each + stages, problem.types, stages)
        whole.append((math.fsum(times[backward] for backward in backwards), memory[each]))
        if len(backwards) > 1:
            rests.append((times[backwards[-1]], -memory[backwards[-1]]))
    if all(rest >= size for (_, rest), (_, size) in zip(rests, whole, strict=False)):
        return fit * max(work for work, _ in whole)
    # More than `fit` activations may fit if some have already released a part. No mixture leaves more work per byte
    # than this.
    return problem.rooms[mesh] * max(work / size if size > 0 else math.inf for work, size in (*whole, *rests))


def bound_in_any_order(schedule: Schedule, costs: Costs, objective: Objective) -> float:
    """Returns a lower bound for all orders of the cells of a schedule.

    A mesh runs all its cells, and needs the least paths before and after them.
    """
    cells = cells_of(schedule, costs)
    times, needs = cells.times, needs_in_any_order(schedule, cells)
    heads, tails = [0.0] * len(times), [0.0] * len(times)
    for cell, earlier in needs.items():
        heads[cell] = max((heads[need] + times[need] + delay for need, delay in earlier.items()), default=0.0)
    for cell, earlier in reversed(needs.items()):
        for need, delay in earlier.items():
            tails[need] = max(tails[need], delay + times[cell] + tails[cell])
    own = [[cell for cell in row if cell not in cells.asides] for row in cells.rows]
    loads = [math.fsum(times[cell] for cell in row) for row in own]
    if objective == "longest_stage":
        return max(loads)
    around = (min(heads[cell] for cell in row) + min(tails[cell] for cell in row) if row else 0.0 for row in own)
    return max(*map(math.fsum, zip(heads, times, tails, strict=True)), *map(sum, zip(loads, around, strict=True)))


def bound_at_any_home(schedule: Schedule, costs: Costs, objective: Objective) -> float:
    """Returns a lower bound for all orders of the cells and all choices of meshes for microbatches.

    All meshes share the work, and hops take no time.
    """
    cells = cells_of(schedule, costs)
    times = [time * share for time, share in zip(cells.times, _least_shares(schedule, costs), strict=True)]
    work = math.fsum(time for cell, time in enumerate(times) if cell not in cells.asides) / schedule.meshes
    if objective == "longest_stage":
        return work
    ends = [0.0] * len(times)
    for cell, earlier in needs_in_any_order(schedule, cells).items():
        ends[cell] = times[cell] + max((ends[need] for need in earlier), default=0.0)
    return max(work, *ends)


def _least_shares(schedule: Schedule, costs: Costs) -> Iterator[float]:
    """Yields for each cell the least share of its time that it takes on any mesh of its stages."""
    kinds = {task.kind for task in schedule}
    times = {kind: [costs.on_mesh(kind, mesh, schedule) for mesh in range(schedule.meshes)] for kind in kinds}
    for mesh, row in enumerate(schedule.cells):
        for cell in row:
            shares = [1.0]
            for task in cell:
                here, *there = (times[task.kind][m][task.stage] for m in (mesh, *schedule.placement.homes[task.stage]))
                shares += [time / here for time in there if here]
            yield min(shares)
