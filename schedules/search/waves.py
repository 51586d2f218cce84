"""Orders in waves: a microbatch goes up and down the pipeline without a stop, as a train does by its timetable.

Time is divided into slots, in which one wave up and one wave down can cross on every mesh. As many microbatches begin
in a round of slots, as long as one of them lives, as the memory holds, evenly spread; weight gradients run in between.
With one stage per mesh it also tries to start them in the first part of a round only. A shorter part lets the last
microbatch begin earlier, but leaves fewer slots for weight gradients between the starts.
Where the memory is about half of what 1F1B has, this is near the optimum for any number of meshes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.problem import Problem
from jaxpp.schedules.search.effort import Effort

_LONGER: Final = 4
"""Lengths of a round that are tried, from the shortest on."""

_TURNS: Final = 6
"""Slots of a round that are tried as its first."""

_PARTS: Final = 6
"""How many parts of a round are tried, from all of its slots to those without half of the spare ones: it has more slots
than microbatches."""

_UNITS: Final = 15
"""What it costs to place and run a task."""


def waves(problem: Problem, effort: Effort) -> list[list[int]] | None:
    """The best orders in waves, the first of them whatever it costs; None where none fits the memory."""
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
    """When the microbatches start: in rounds of several lengths."""
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
    """Yield the slots in which microbatches start: evenly spread over a round, then over shorter parts of it."""
    spare, scale = max(0, length - together), 2 * (_PARTS - 1)
    parts = [length * scale - spare * share for share in range(_PARTS)]
    return dict.fromkeys(tuple(number * part // (together * scale) for number in range(together)) for part in parts)


def _turns(together: int, length: int) -> Iterable[Sequence[int]]:
    """Yield the slots in which microbatches start: evenly spread over a round, which begins at different slots."""
    spread = [number * length // together for number in range(together)]
    for turn in range(0, together, max(1, together // _TURNS)):
        yield [*spread[turn:], *(each + length for each in spread[:turn])]


def _order(problem: Problem, mesh: int, starts: Sequence[float]) -> list[int]:
    """The order of a mesh: forwards and backwards by the timetable, weight gradients as soon as there is time."""
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
