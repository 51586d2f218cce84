"""Moves of microbatches between the meshes of a stage, for all stages that several meshes hold, or for one.

All tasks of a mesh for a stage and a microbatch move together, so that no residuals are sent. A moved task takes a
position in the order of the other mesh by its previous start time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import TypeAlias

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.model.kinds import ALL
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Cell

_Homes: TypeAlias = dict[tuple[int, int], int]
"""The mesh on which a stage runs a microbatch: (stage, microbatch) -> mesh."""


def at_other_homes(schedule: Schedule, costs: Costs) -> Iterator[list[list[Cell]]]:
    """Yields the cells of each mesh after one move.

    A move takes a microbatch to other meshes at all stages or at one, or exchanges the meshes of two microbatches.
    Cells that are fused with other stages or microbatches stay, and so do pairs with tasks on several meshes. The costs
    give the start times of cells. Some of the orders may have a deadlock.
    """
    moves = _moves(schedule)
    starts = _starts(schedule, costs) if moves else []
    for homes in moves:
        rows: list[list[Cell]] = [[] for _ in schedule.cells]
        times: list[list[float]] = [[] for _ in schedule.cells]
        moved: list[tuple[float, int, Cell]] = []
        for mesh, row in enumerate(schedule.cells):
            for cell, start in zip(row, starts[mesh], strict=True):
                home = homes.get((cell[0].stage, cell[0].microbatch), mesh)
                if home != mesh:
                    moved.append((start, home, cell))
                else:
                    rows[mesh].append(cell)
                    times[mesh].append(start)
        for start, home, cell in sorted(moved, key=lambda each: each[0]):
            at = next((at for at, other in enumerate(times[home]) if other > start), len(times[home]))
            rows[home].insert(at, cell)
            times[home].insert(at, start)
        yield rows


def _moves(schedule: Schedule) -> list[_Homes]:
    """Returns the distinct moves, each as the new meshes of the pairs that move."""
    now = _movable(schedule)
    changed = (
        frozenset((pair, home) for pair, home in homes.items() if home != now[pair])
        for homes in _choices(schedule, now)
    )
    return [dict(move) for move in dict.fromkeys(changed) if move]


def _choices(schedule: Schedule, now: _Homes) -> Iterator[_Homes]:
    """Yields the meshes of some movable pairs after one choice.

    A choice moves a microbatch at all stages, exchanges two microbatches, or moves a microbatch at one stage.
    """
    homes, microbatches = schedule.placement.homes, range(schedule.microbatches)

    def further(pair: tuple[int, int], ahead: int) -> int:
        own = homes[pair[0]]
        return own[(own.index(now[pair]) + ahead) % len(own)]

    for microbatch, ahead in product(microbatches, range(1, max(map(len, homes)))):
        yield {pair: further(pair, ahead) for pair in now if pair[1] == microbatch}
    for one, other in pairwise(microbatches):
        pairs = [(stage, each) for stage, each in now if each in (one, other) and (stage, one + other - each) in now]
        yield {(stage, each): now[stage, one + other - each] for stage, each in pairs}
    for pair in now:
        for ahead in range(1, len(homes[pair[0]])):
            yield {pair: further(pair, ahead)}


def _movable(schedule: Schedule) -> _Homes:
    """Returns the present mesh of each pair of stage and microbatch that may move."""
    homes, rules = schedule.placement.homes, schedule.rules
    found: _Homes = {}
    fixed: set[tuple[int, int]] = set()
    for mesh, row in enumerate(schedule.cells):
        for cell in row:
            pairs = {(task.stage, task.microbatch) for task in cell}
            waits_for_all = any(need.microbatch == ALL for task in cell for need in rules[task.kind].needs)
            if len(pairs) > 1 or waits_for_all:
                fixed |= pairs
            # An evicted activation is on two meshes.
            fixed |= {pair for pair in pairs if found.setdefault(pair, mesh) != mesh}
    return {pair: home for pair, home in found.items() if len(homes[pair[0]]) > 1 and pair not in fixed}


def _starts(schedule: Schedule, costs: Costs) -> list[list[float]]:
    """Returns for each mesh when each of its cells begins."""
    graph, run = schedule.graph, simulate(schedule, costs).run
    return [[run.starts[number] for number in row if graph.spans[number]] for row in graph.rows]
