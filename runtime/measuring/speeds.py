"""The speed of each mesh, from the times of the same function on different meshes."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from jaxpp.ir.program import Program
from jaxpp.runtime.measuring.events import Event
from jaxpp.schedules.engine.spans import Label

SLOW = 0.75
"""A mesh is slow if its speed is at most this. Smaller differences are taken for noise."""

Average: TypeAlias = Callable[[Sequence[float]], float]
_Function: TypeAlias = tuple[str, int]
"""The name of a function, and the number of devices that it runs on."""
_Times: TypeAlias = Mapping[_Function, Mapping[int, float]]
"""The average time of each function on each mesh, in seconds."""


def mesh_speeds(
    program: Program, *steps: Sequence[Event], before: Sequence[Event] = (), average: Average = statistics.fmean
) -> list[float]:
    """Returns the speed of each mesh relative to the others: 0.5 for a mesh that takes twice as long, 1 if not slow.

    Stages with equal layers run the same functions. The time of a function on a mesh is the average of its runs there,
    without the first run of each step. The default average is the mean, because a process that is stopped in bursts
    runs most of its tasks at full speed.

    The speed compares a function's median time on the other meshes of equal size with its time on this mesh. The
    result is the median over the functions. A mesh whose functions no other mesh runs is compared with the earlier
    step: its slowdown since then against the slowdown of the other meshes. A mesh counts as 1 if one of its ratios is
    above SLOW, or if it can't be compared.

    Args:
        program: the traced program.
        steps: the events of each step on all meshes, from `trace_step`.
        before: the events of an earlier step of the same program.
        average: averages the runs of a function on a mesh.
    """
    times, earlier = _times(program, steps, average), _times(program, [before], average)
    ratios: list[list[float]] = [[] for _ in program.sequences]
    for by_mesh in times.values():
        for mesh, time in by_mesh.items():
            if others := [other for k, other in by_mesh.items() if k != mesh]:
                ratios[mesh].append(statistics.median(others) / time)
    changes: defaultdict[int, list[float]] = defaultdict(list)
    for function, by_mesh in earlier.items():
        for mesh in by_mesh.keys() & times.get(function, {}).keys():
            changes[mesh].append(min(1.0, by_mesh[mesh] / times[function][mesh]))  # a speedup must not slow the others
    for mesh, each in changes.items():
        if not ratios[mesh] and (others := [statistics.median(changes[k]) for k in changes if k != mesh]):
            usual = statistics.median(others)
            ratios[mesh] = [change / usual for change in each]
    return [statistics.median(each) if each and max(each) <= SLOW else 1.0 for each in ratios]


def _times(program: Program, steps: Iterable[Sequence[Event]], average: Average) -> _Times:
    """Returns the times of functions that run one task alone, without the first run of each step on a mesh."""
    alone: dict[tuple[int, Label], list[_Function]] = defaultdict(list)
    for mesh, calls in enumerate(program.calls):
        for each in calls:
            if not each.fused:
                for task in each.tasks:
                    alone[mesh, Label(*task)].append((each.function, program.partitions[mesh]))
    functions = {place: calls[0] for place, calls in alone.items() if len(calls) == 1}  # no task that two calls run
    times: defaultdict[_Function, dict[int, list[float]]] = defaultdict(dict)
    for events in steps:
        runs: defaultdict[tuple[_Function, int], list[float]] = defaultdict(list)
        for each in events:
            if each.target is None and (each.mesh, each.label) in functions:
                runs[functions[each.mesh, each.label], each.mesh].append(each.seconds)
        for (function, mesh), seconds in runs.items():
            times[function].setdefault(mesh, []).extend(seconds[1:] or seconds)
    return {
        function: {mesh: average(seconds) for mesh, seconds in by_mesh.items()} for function, by_mesh in times.items()
    }
