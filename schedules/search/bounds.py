"""Lower bounds: no schedule is better."""

from __future__ import annotations

import math

from jaxpp.schedules.problem import Problem


def lower_bound(problem: Problem) -> float:
    """The largest of some bounds on the objective; no schedule within the memory limits is better.

    - a microbatch goes through the whole pipeline; the makespan also has the ways to a mesh before and after its work;
    - a mesh runs all its tasks;
    - an activation lives at least as long as the shortest way from its forward to its backward, and at no time do
      activations fill more than the memory of their mesh.
    """
    makespan = problem.objective == "makespan"
    tails = problem.tails.max(1)
    ends = [head + time for head, time in zip(problem.heads, problem.times, strict=True)]
    bounds = [max(ends)] if makespan else []
    for mesh, types in enumerate(problem.types_of):
        before = min(problem.heads[each] for each in types)
        after = float(min(tails[each] for each in types))
        filled = _filled(problem, mesh)
        if makespan:
            bounds += [before + problem.loads[mesh] + after, before + filled]
        else:
            bounds += [problem.loads[mesh], filled, max(ends[each] for each in types) - before]
    return max(bounds)


def least_memory(problem: Problem) -> list[float]:
    """For each mesh the least that it keeps: all of one microbatch, as it runs every forward before any backward."""
    return [math.fsum(problem.memory[each] for each in types if each < problem.stages) for types in problem.types_of]


def _filled(problem: Problem, mesh: int) -> float:
    """The time for which the activations of a mesh fill its memory."""
    area = 0.0
    for each in problem.types_of[mesh]:
        if each >= problem.stages:
            # What a backward gives back was there from the start of the forward to its own end.
            forward = each % problem.stages
            life = problem.heads[each] + problem.times[each] - problem.heads[forward]
            area -= problem.memory[each] * life
    return problem.microbatches * area / problem.limits[mesh] if problem.limits[mesh] else 0.0
