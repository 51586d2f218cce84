"""How fast each mesh is: what the same function takes on one and on the others."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from jaxpp.ir.program import Call, Program
from jaxpp.runtime.measuring.trace import Event
from jaxpp.schedules.formats.chrome_trace import Label

SLOW = 0.75
"""What is at most so fast as the others is slow; the rest are differences of the moment."""

Average: TypeAlias = Callable[[Sequence[float]], float]
_Function: TypeAlias = tuple[str, int]
"""The name of a function, and the number of devices that it runs on."""
_Times: TypeAlias = Mapping[_Function, Mapping[int, float]]
"""The average time of each function on each mesh, in seconds."""


def mesh_speeds(
    program: Program, *steps: Sequence[Event], before: Sequence[Event] = (), average: Average = statistics.fmean
) -> list[float]:
    """The speed of each mesh, where 1 is that of most meshes: 0.5 of one that takes twice as long.

    Stages with equal layers run the same functions. The time of a function on a mesh is the mean of its runs there, but
    for the first one: a process that is stopped in bursts runs most of its tasks at full speed. The speed of a mesh is
    the median, over its functions that other meshes of its size run too, of what these take by what it takes. A mesh
    without such a function is compared with an earlier step: by how much it slowed down more than the others did. A
    mesh with a function that it runs faster than SLOW counts as 1, and so does one that can't be compared.

    Args:
        program: what was traced.
        steps: the events of each step, from `trace_step`, with those of all meshes.
        before: those of an earlier step of the same program.
        average: of the runs of a function on a mesh.
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
            changes[mesh].append(min(1.0, by_mesh[mesh] / times[function][mesh]))  # one that is faster slows no other
    for mesh, each in changes.items():
        if not ratios[mesh] and (others := [statistics.median(changes[k]) for k in changes if k != mesh]):
            usual = statistics.median(others)
            ratios[mesh] = [change / usual for change in each]
    return [statistics.median(each) if each and max(each) <= SLOW else 1.0 for each in ratios]


def _times(program: Program, steps: Iterable[Sequence[Event]], average: Average) -> _Times:
    """The times of the functions of single tasks, without the first run of each step on a mesh."""
    alone: dict[tuple[int, Label], list[_Function]] = defaultdict(list)
    for mesh, sequence in enumerate(program.sequences):
        for each in sequence:
            if isinstance(each, Call) and not each.fused:
                for task in each.tasks:
                    alone[mesh, Label(*task)].append((each.function, program.partitions[mesh]))
    functions = {place: calls[0] for place, calls in alone.items() if len(calls) == 1}  # none of tasks in two calls
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
