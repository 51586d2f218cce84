"""Periodic orders, in which a microbatch goes up and down the pipeline without a stop, as a train by its timetable.

Time is divided into slots, in which one forward wave and one backward wave can cross on every mesh. A round of slots is
as long as the life of a microbatch. In each round as many microbatches start as the memory holds, evenly spread. Weight
gradients run in between.

With one stage per mesh, microbatches may also start only in the first part of a round. A shorter part lets the last
microbatch start earlier, but leaves fewer slots for weight gradients between the starts. If the memory is about half of
1F1B's memory, these orders are near the optimum for any number of meshes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.engine.problem import Problem
from jaxpp.schedules.search.effort import Effort

_LONGER: Final = 4
"""The number of lengths of a round that are tried, from the shortest on."""

_TURNS: Final = 6
"""The number of slots that are tried as the first of a round."""

_PARTS: Final = 6
"""The number of parts of a round that are tried: from all of its slots to those without half of the spare ones. A round
has spare slots if it has more slots than microbatches."""

_UNITS: Final = 15
"""The units of effort to place and run a task."""


def waves(problem: Problem, effort: Effort) -> list[list[int]] | None:
    """Returns the best periodic orders; None if none fits the memory.

    The first orders are tried whatever they cost.
    """
    best, least = None, math.inf
    for number, starts in enumerate(_timetables(problem)):
        if not effort.spend(problem.types * problem.microbatches * _UNITS) and number:
            break
        orders = [_order(problem, mesh, starts) for mesh in range(problem.meshes)]
        value = problem.value(orders) if problem.fits(orders) else math.inf
        if value < least:
            best, least = orders, value
    return best


def _timetables(problem: Problem) -> Iterator[list[float]]:
    """Yields the start times of the microbatches, for rounds of several lengths."""
    stages, times, delays = problem.stages, problem.times, problem.delays
    slot = max(
        math.fsum(
            times[each] + delays[each]
            for stage in problem.placement.stages_of(mesh)
            for each in (stage, stage + stages)
        )
        for mesh in range(problem.meshes)
    )
    last = (len(problem.kinds) - 1) * stages
    life = problem.heads[last] + times[last]
    if not slot or not problem.memory[0]:
        return
    together = int(min(problem.rooms[problem.mesh_of[0]] / problem.memory[0], problem.microbatches, life / slot + 1))
    shortest = math.ceil(life / slot - TOLERANCE)
    rounds = [divmod(number, together) for number in range(problem.microbatches)]
    for length in range(shortest, shortest + _LONGER):
        for slots in _parts(together, length) if stages == problem.meshes else _turns(together, length):
            yield [(slots[place] + length * number) * slot for number, place in rounds]


def _parts(together: int, length: int) -> Iterable[Sequence[int]]:
    """Returns the slots in which microbatches start: evenly spread over a round, then over shorter parts of it."""
    spare, scale = max(0, length - together), 2 * (_PARTS - 1)
    parts = [length * scale - spare * share for share in range(_PARTS)]
    return dict.fromkeys(tuple(number * part // (together * scale) for number in range(together)) for part in parts)


def _turns(together: int, length: int) -> Iterable[Sequence[int]]:
    """Yields the slots in which microbatches start: evenly spread over a round that begins at different slots."""
    spread = [number * length // together for number in range(together)]
    for turn in range(0, together, max(1, together // _TURNS)):
        yield [*spread[turn:], *(each + length for each in spread[:turn])]


def _order(problem: Problem, mesh: int, starts: Sequence[float]) -> list[int]:
    """Returns the order of a mesh.

    Forwards and backwards follow the timetable. Weight gradients run when there is time, or when a forward needs their
    memory.
    """
    stages, memory, heads, times = problem.stages, problem.memory, problem.heads, problem.times
    planned = sorted(
        (start + heads[each], each) for start in starts for each in problem.types_of[mesh] if each < 2 * stages
    )
    order: list[int] = []
    owed: list[int] = []
    clock = kept = 0.0
    for begin, each in planned:
        full = each < stages and kept + memory[each] > problem.rooms[mesh]
        while owed and (full or clock + times[owed[0]] <= begin + TOLERANCE):
            weight = owed.pop(0)
            order.append(weight)
            clock, kept = clock + times[weight], kept + memory[weight]
            full = each < stages and kept + memory[each] > problem.rooms[mesh]
        order.append(each)
        clock, kept = max(clock, begin) + times[each], kept + memory[each]
        if each >= stages and len(problem.kinds) > 2:
            owed.append(each + stages)
    return order + owed
