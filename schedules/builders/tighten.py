"""Moves tasks to earlier slots around the steady state of a repeated building block, on a V-shaped placement.

This is the method of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362). A building block has one slot
for each forward, input gradient and weight gradient of a stage, and its repetition gives the steady state. Then the
tasks before and after the steady state move to earlier free slots, as far as the memory of the steady state allows.
Weight gradients go into the slots that remain free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

from jaxpp.schedules.model.task import Task

PERIOD: Final = 6
"""Slots per microbatch: three for each of the two stages of a mesh."""

Filled: TypeAlias = bytearray
"""The content of each slot of a mesh, as an index of `_FREE`, `_FORWARD`, `_INPUT_GRAD` or `_WEIGHT_GRAD`."""

Slots: TypeAlias = tuple[int, int, int, int]
"""The slots of a mesh's tasks for the first microbatch, by task type.

Types 0 and 1 are the forwards of the mesh's lower and upper stage. Types 2 and 3 are the input gradients of its upper
and lower stage. Type 4, which has no slot here, is the weight gradients of both stages.
"""


def tightened(block: Sequence[Slots], microbatches: int) -> list[list[Task]]:
    """Returns the orders of all meshes, for stages 0, 1, ... p-1 down the meshes and p, ... 2p-1 up again."""
    meshes = len(block)
    # The tasks around the steady state do not depend on its length.
    inner = min(microbatches, 2 * meshes + 6)
    table = _Table(block, inner)
    table.move(with_weights=True)
    table.squeeze()
    table.move(with_weights=False)
    return [_order(table.slots[mesh][:4], mesh, meshes, microbatches) for mesh in range(meshes)]


class _Table:
    """The slot of every task, as `slots[mesh][type][microbatch]`; the weight gradients of both stages are one type."""

    def __init__(self, block: Sequence[Slots], microbatches: int) -> None:
        self.microbatches = microbatches
        self.slots = [[[slot + PERIOD * mb for mb in range(microbatches)] for slot in row] for row in block]
        for row in self.slots:
            row.append(_freed(_filled(row)))
        self.limit = max(_peak(_filled(row)) for row in self.slots)
        # The slots of all input gradients, in order: weight gradient i comes after input gradient i.
        self.input_grads = [sorted(row[2] + row[3]) for row in self.slots]

    def move(self, *, with_weights: bool) -> None:
        """Moves the tasks before and after the steady state to earlier slots, in the order of their slots.

        With weights, weight gradients keep their slots until they are moved themselves. Without weights, they take any
        free slots, and only the tasks after the steady state move.
        """
        types = 5 if with_weights else 4
        filled = [_filled(row[:types]) for row in self.slots]
        phase = 0
        for slot, mesh, kind, number in self._by_slot(types):
            if phase == 0 and mesh == 0 and kind == 3:
                phase = 1
            steady = phase == 1 or (phase == 0 and not with_weights)
            if phase == 1 and kind == 0 and number == self.microbatches - 1:
                phase = 2
            if steady:
                continue
            row, first = filled[mesh], self._earliest(mesh, kind, number)
            earlier = first - 1
            while (earlier := row.find(_FREE, earlier + 1, slot)) >= 0:
                row[slot], row[earlier] = _FREE, _CONTENTS[kind]
                # An earlier gradient frees its memory no later, but an earlier forward holds its memory for longer.
                if (with_weights and kind >= 2) or _peak(row) <= self.limit:
                    self._put(mesh, kind, number, earlier)
                    break
                row[slot], row[earlier] = _CONTENTS[kind], _FREE

    def squeeze(self) -> None:
        """Moves every task to the earliest slot that the order of its mesh allows."""
        last = [-1] * len(self.slots)
        for _, mesh, kind, number in self._by_slot(5):
            last[mesh] = max(last[mesh] + 1, self._earliest(mesh, kind, number))
            self._put(mesh, kind, number, last[mesh])

    def _by_slot(self, types: int) -> list[tuple[int, int, int, int]]:
        """Returns the tasks of the first `types` types as (slot, mesh, type, number), sorted."""
        return sorted(
            (slot, mesh, kind, number)
            for mesh, row in enumerate(self.slots)
            for kind, column in enumerate(row[:types])
            for number, slot in enumerate(column)
        )

    def _put(self, mesh: int, kind: int, number: int, slot: int) -> None:
        column = self.slots[mesh][kind]
        if _CONTENTS[kind] == _INPUT_GRAD:
            input_grads = self.input_grads[mesh]
            del input_grads[bisect_left(input_grads, column[number])]
            insort(input_grads, slot)
        column[number] = slot

    def _earliest(self, mesh: int, kind: int, number: int) -> int:
        """Returns the first slot after all tasks that a task has to follow."""
        row = self.slots[mesh]
        after = row[kind][number - 1] if number else -1
        if kind == 4:
            return max(after, self.input_grads[mesh][number]) + 1
        if kind:
            after = max(after, row[kind - 1][number])
        source = mesh - 1 if kind in (0, 2) else mesh + 1
        if 0 <= source < len(self.slots):
            after = max(after, self.slots[source][kind][number])
        return after + 1


_FREE, _FORWARD, _INPUT_GRAD, _WEIGHT_GRAD = range(4)
_CONTENTS: Final = (_FORWARD, _FORWARD, _INPUT_GRAD, _INPUT_GRAD, _WEIGHT_GRAD)
"""The content of a slot, by the type of its task."""


def _filled(row: Sequence[Sequence[int]]) -> Filled:
    """Returns the content of each slot of a mesh, with enough free slots at the end for all weight gradients."""
    filled = bytearray(1 + max(map(max, row)) + 2 * len(row[0]))
    for kind, column in enumerate(row):
        for slot in column:
            filled[slot] = _CONTENTS[kind]
    return filled


def _freed(filled: Filled) -> list[int]:
    """Returns the slots of the weight gradients.

    If none is placed, each takes the first free slot after its input gradient.
    """
    if _WEIGHT_GRAD in filled:
        return [slot for slot, content in enumerate(filled) if content == _WEIGHT_GRAD]
    freed: list[int] = []
    owed = 0
    for slot, content in enumerate(filled):
        if content == _INPUT_GRAD:
            owed += 1
        elif content == _FREE and owed:
            owed -= 1
            freed.append(slot)
    return freed


def _peak(filled: Filled) -> int:
    """Returns the largest number of activations alive at once."""
    frees = _WEIGHT_GRAD if _WEIGHT_GRAD in filled else _FREE
    alive = peak = owed = 0
    for content in filled.rstrip(b"\0"):  # free slots at the end only free memory
        if content == _FORWARD:
            alive += 1
            if alive > peak:
                peak = alive
        elif content == _INPUT_GRAD:
            owed += 1
        elif content == frees and owed:
            owed -= 1
            alive -= 1
    return peak


def _order(row: Sequence[Sequence[int]], mesh: int, meshes: int, microbatches: int) -> list[Task]:
    """Returns the tasks of a mesh by slot, with the steady state repeated until there are enough microbatches."""
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
    weights = set(_freed(_filled(columns)))
    stages = (mesh, 2 * meshes - 1 - mesh, 2 * meshes - 1 - mesh, mesh)
    order: list[Task] = []
    owed: deque[Task] = deque()
    for slot in sorted({*slots, *weights}):
        if slot in weights:
            order.append(owed.popleft())
            continue
        kind, mb = slots[slot]
        order.append(Task("forward" if kind < 2 else "input_grad", stages[kind], mb))
        if kind >= 2:
            owed.append(Task("weight_grad", stages[kind], mb))
    return order
