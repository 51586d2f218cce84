"""Schedules from a building block: what a microbatch does on each mesh, repeated every six slots of time.

The method of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362): a V-shaped
placement, one slot for each forward, input gradient and weight gradient of a stage. Repeating the block gives the
steady state; then the tasks before and after it are moved to earlier free slots, as far as the memory of the steady
state allows; weight gradients go into the slots that stay free.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxpp.schedules.task import Task

PERIOD = 6
"""Slots per microbatch: three for each of the two stages of a mesh."""

Block = Sequence[tuple[int, int, int, int]]
"""For each mesh the slots of the first microbatch: forward and forward of its lower and upper stage, then the input
gradients of the upper and the lower one. These are the four types of task below."""


def repeat(block: Block, microbatches: int) -> list[list[Task]]:
    """The orders that the block leads to, for stages 0, 1, ... p-1 down the meshes and p, ... 2p-1 up again."""
    meshes = len(block)
    # What happens around the steady state does not depend on its length.
    inner = min(microbatches, 2 * meshes + 6)
    table = _Table(block, inner)
    table.move(with_weights=True)
    table.squeeze()
    table.move(with_weights=False)
    return [_order(table.slots[mesh], mesh, meshes, microbatches) for mesh in range(meshes)]


class _Table:
    """The slot of every task: slots[mesh][type][microbatch]."""

    def __init__(self, block: Block, microbatches: int) -> None:
        self.microbatches = microbatches
        self.slots = [[[slot + PERIOD * mb for mb in range(microbatches)] for slot in row] for row in block]
        self.weights = [_free_slots(row) for row in self.slots]
        peaks = [_peak(row, weights) for row, weights in zip(self.slots, self.weights, strict=True)]
        self.limit = max(peaks)

    def move(self, *, with_weights: bool) -> None:
        """Move tasks to earlier slots, in the order of their slots, up to the steady state and behind it.

        With weights: weight gradients keep their slots until they are moved themselves. Without: they take whatever
        is free, and only what lies behind the steady state is moved.
        """
        tables = [table if with_weights else table[:4] for table in self._tables()]
        order = _by_slot(tables)
        used = [{slot for column in table for slot in column} for table in tables]
        phase = 0
        for slot, mesh, kind, number in order:
            if phase == 0 and mesh == 0 and kind == 3:
                phase = 1
            steady = phase == 1 or (phase == 0 and not with_weights)
            if phase == 1 and kind == 0 and number == self.microbatches - 1:
                phase = 2
            if steady:
                continue
            column = tables[mesh][kind]
            for earlier in range(self._earliest(tables, mesh, kind, number), slot):
                if earlier in used[mesh]:
                    continue
                column[number] = earlier
                # An earlier gradient frees no later what it frees; an earlier forward needs its memory for longer.
                fits = with_weights and kind >= 2
                if fits or _peak(tables[mesh][:4], tables[mesh][4] if with_weights else None) <= self.limit:
                    used[mesh].remove(slot)
                    used[mesh].add(earlier)
                    break
                column[number] = slot

    def squeeze(self) -> None:
        """Move every task to the earliest slot that the order of its mesh allows."""
        tables = self._tables()
        last = [-1] * len(tables)
        for _, mesh, kind, number in _by_slot(tables):
            last[mesh] = max(last[mesh] + 1, self._earliest(tables, mesh, kind, number))
            tables[mesh][kind][number] = last[mesh]

    def _tables(self) -> list[list[list[int]]]:
        return [[*row, weights] for row, weights in zip(self.slots, self.weights, strict=True)]

    def _earliest(self, tables: list[list[list[int]]], mesh: int, kind: int, number: int) -> int:
        """The slot behind everything that a task has to come after."""
        table = tables[mesh]
        after = [-1]
        if number:
            after.append(table[kind][number - 1])
        if kind == 4:
            after.append(sorted(table[2] + table[3])[number])
            return max(after) + 1
        if kind:
            after.append(table[kind - 1][number])
        source = mesh - 1 if kind in (0, 2) else mesh + 1
        if 0 <= source < len(tables):
            after.append(tables[source][kind][number])
        return max(after) + 1


def _by_slot(tables: list[list[list[int]]]) -> list[tuple[int, int, int, int]]:
    """All tasks as (slot, mesh, type, number), in that order."""
    return sorted(
        (slot, mesh, kind, number)
        for mesh, table in enumerate(tables)
        for kind, column in enumerate(table)
        for number, slot in enumerate(column)
    )


def _free_slots(row: Sequence[Sequence[int]]) -> list[int]:
    """Slots for the weight gradients: each the first free one behind its input gradient."""
    taken = {slot: kind for kind, column in enumerate(row) for slot in column}
    found: list[int] = []
    owed, slot, last = 0, 0, max(taken)
    while slot <= last or owed:
        if slot in taken:
            owed += taken[slot] >= 2
        elif owed:
            found.append(slot)
            owed -= 1
        slot += 1
    return found


def _peak(row: Sequence[Sequence[int]], weights: Sequence[int] | None) -> int:
    """The most activations alive; weight gradients without a slot of their own take the free ones."""
    freed = _free_slots(row) if weights is None else weights
    changes = sorted([(slot, 1) for slot in (*row[0], *row[1])] + [(slot, -1) for slot in freed])
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


def _order(row: Sequence[Sequence[int]], mesh: int, meshes: int, microbatches: int) -> list[Task]:
    """The tasks of a mesh by slot; the steady state in the middle is repeated until there are enough microbatches."""
    inner = len(row[0])
    shift = microbatches - inner
    columns = [
        [
            *column[: inner // 2],
            *(column[inner // 2] + PERIOD * mb for mb in range(shift)),
            *(slot + PERIOD * shift for slot in column[inner // 2 :]),
        ]
        for column in row
    ]
    slots = {slot: (kind, mb) for kind, column in enumerate(columns) for mb, slot in enumerate(column)}
    weights = set(_free_slots(columns))
    stages = (mesh, 2 * meshes - 1 - mesh, 2 * meshes - 1 - mesh, mesh)
    order: list[Task] = []
    owed: list[Task] = []
    for slot in sorted({*slots, *weights}):
        if slot in weights:
            order.append(owed.pop(0))
            continue
        kind, mb = slots[slot]
        order.append(Task("forward" if kind < 2 else "input_grad", stages[kind], mb))
        if kind >= 2:
            owed.append(Task("weight_grad", stages[kind], mb))
    return order
