"""How fast each mesh is: what the same function takes on one and on the others."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from jaxpp.ir.program import Call, Program
from jaxpp.runtime.measuring.trace import Event
from jaxpp.schedules.formats.chrome_trace import Label

SLOW = 0.75
"""What is at most so fast as the others is slow; the rest are differences of the moment."""


def mesh_speeds(program: Program, *steps: Sequence[Event]) -> list[float]:
    """The speed of each mesh, where 1 is that of most meshes: 0.5 of one that takes twice as long.

    Stages with equal layers run the same functions. The time of a function on a mesh is the median of its runs there,
    but for the first one. The speed of a mesh is the median, over its functions that other meshes of its size run too,
    of what these take by what it takes. A mesh without such a function counts as 1, and so does one with a function
    that it runs faster than SLOW.

    Args:
        program: what was traced.
        steps: the events of each step, from `trace_step`, with those of all meshes.
    """
    alone: dict[tuple[int, Label], list[tuple[str, int]]] = defaultdict(list)
    for mesh, sequence in enumerate(program.sequences):
        for each in sequence:
            if isinstance(each, Call) and not each.fused:
                for task in each.tasks:
                    alone[mesh, Label(*task)].append((each.function, program.partitions[mesh]))
    functions = {place: calls[0] for place, calls in alone.items() if len(calls) == 1}  # none of tasks in two calls
    times: defaultdict[tuple[str, int], dict[int, list[float]]] = defaultdict(dict)
    for events in steps:
        runs: defaultdict[tuple[tuple[str, int], int], list[float]] = defaultdict(list)
        for each in events:
            if each.target is None and (each.mesh, each.label) in functions:
                runs[functions[each.mesh, each.label], each.mesh].append(each.seconds)
        for (function, mesh), seconds in runs.items():
            times[function].setdefault(mesh, []).extend(seconds[1:] or seconds)
    ratios: list[list[float]] = [[] for _ in program.sequences]
    for by_mesh in times.values():
        medians = {mesh: statistics.median(seconds) for mesh, seconds in by_mesh.items()}
        for mesh, median in medians.items():
            if others := [other for k, other in medians.items() if k != mesh]:
                ratios[mesh].append(statistics.median(others) / median)
    return [statistics.median(each) if each and max(each) <= SLOW else 1.0 for each in ratios]
