"""The number of activations that a schedule keeps alive."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from jaxpp.schedules.engine.memory import Sizes, changes
from jaxpp.schedules.engine.merged_order import merged_numbers
from jaxpp.schedules.model.graph import Graph
from jaxpp.schedules.model.schedule import Schedule, check_type


def activations(schedule: Schedule) -> list[int]:
    """Returns for each mesh the peak number of activations alive at once, in (stage, microbatch) pairs.

    GPipe keeps m on every mesh, 1F1B min(m, p - i) on mesh i (arXiv 2006.09503, section 2.2). An activation is alive:

    - from the start of its forward to the end of its backward, or to the end of its weight gradient if the backward is
      split. Without any backward it ends with its forward.
    - if it is recomputed, from the start of the recompute. Neither the stage's input that is kept until then nor a move
      of that input counts.
    - if it is offloaded, not from the end of the offload to the start of the reload.
    - if it is evicted, on the mesh of the `evict` from the end of the forward to the start of the `load`. The tasks
      start in the order in which one process starts them (`merged_order`).

    The schedule must be valid.
    """
    return _peaks(schedule, 0.0)


def waiting(schedule: Schedule) -> list[int]:
    """Returns the same as `activations`, but counts an activation that will be recomputed from its forward on."""
    return _peaks(schedule, 1.0)


def _peaks(schedule: Schedule, inputs: float) -> list[int]:
    """Returns the peak of each mesh, where the input of a recompute counts as `inputs` activations."""
    check_type(schedule)
    graph, ones = schedule.graph, [1.0] * schedule.stages
    sizes = Sizes(ones, ones, [inputs] * schedule.stages)
    when = list(range(len(graph.tasks)))
    if graph.sources:
        for turn, (_, number) in enumerate(merged_numbers(schedule)):
            when[number] = turn
    return [_peak(graph, mesh, sizes, when) for mesh in range(schedule.meshes)]


def _peak(graph: Graph, mesh: int, sizes: Sizes, when: Sequence[int]) -> int:
    """Returns the peak on a mesh, if task i starts at turn `when[i]`."""
    turns: list[tuple[int, float, float]] = []
    for number, start, end in changes(graph, mesh, sizes):
        source = graph.sources.get(number, number)
        # A peer takes an activation as soon as it is made, but gives it back only when a task asks for it.
        early = graph.homes[number] != mesh and source not in graph.sources
        turns.append((when[source if early else number], start, end))
    now = peak = 0.0
    for _, start, end in sorted(turns, key=itemgetter(0)):
        peak = max(peak, now + start)
        now += start + end
    return round(peak)
