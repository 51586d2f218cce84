"""How many activations a schedule keeps alive."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from jaxpp.schedules.graph import Graph
from jaxpp.schedules.order import merged_numbers
from jaxpp.schedules.pools import Sizes, changes
from jaxpp.schedules.schedule import Schedule, check_type


def activations(schedule: Schedule) -> list[int]:
    """For each mesh the peak number of activations alive at once, in (stage, microbatch) pairs.

    An activation lives from the start of its forward to the end of its backward, or of its weight gradient where the
    backward is split; without any backward it is gone when its forward ends. Where it is recomputed it lives from the
    start of its recompute on: what it is made of does not count, nor its moves; where it is offloaded, it is gone
    from the end of the offload to the start of the reload. Where it is evicted it leaves its mesh with the end of the
    forward, for the mesh of the `evict`, and comes back with the start of the `load`, in the order in which one process
    starts all tasks (`merged_order`). GPipe keeps m on every mesh, 1F1B min(m, p - i) on mesh i (arXiv 2006.09503,
    section 2.2). The schedule must be valid.
    """
    return _peaks(schedule, 0.0)


def waiting(schedule: Schedule) -> list[int]:
    """As `activations`, but one that will be recomputed counts from its forward on, for what it is made of."""
    return _peaks(schedule, 1.0)


def _peaks(schedule: Schedule, inputs: float) -> list[int]:
    """The peak of each mesh, if the input of a recompute counts as much."""
    check_type(schedule)
    graph, ones = schedule.graph, [1.0] * schedule.stages
    sizes = Sizes(ones, ones, [inputs] * schedule.stages)
    when = list(range(len(graph.tasks)))
    if graph.sources:
        for turn, (_, number) in enumerate(merged_numbers(schedule)):
            when[number] = turn
    return [_peak(graph, mesh, sizes, when) for mesh in range(schedule.meshes)]


def _peak(graph: Graph, mesh: int, sizes: Sizes, when: Sequence[int]) -> int:
    """The most that is alive on a mesh, if the tasks run in these turns."""
    turns: list[tuple[int, float, float]] = []
    for number, start, end in changes(graph, mesh, sizes):
        source = graph.sources.get(number, number)
        # What a peer takes leaves as soon as it is made, but what it gives back only when that is asked for.
        early = graph.homes[number] != mesh and source not in graph.sources
        turns.append((when[source if early else number], start, end))
    now = peak = 0.0
    for _, start, end in sorted(turns, key=itemgetter(0)):
        peak = max(peak, now + start)
        now += start + end
    return round(peak)
