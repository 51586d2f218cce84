"""Cuts on which one microbatch fits if every stage recomputes: the least memory that there may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import Final, NamedTuple

from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.search.cuts import Cuts, all_cuts, beside
from jaxpp.schedules.search.layer_row import LayerRow, empty_of
from jaxpp.schedules.task import Placement

_FEW: Final = 500
"""So many cuts are all looked at."""

_STEPS: Final = 20_000
"""Of more, so many beginnings are looked at one after the other."""

_FOUND: Final = 20
"""And so many that fit are enough."""


def with_room(row: LayerRow, shape: Placement, starts: Iterable[Cuts]) -> Iterator[Cuts]:
    """Cuts on which one microbatch fits if every stage recomputes, those with most room first.

    All of few; of many those that moves of single layers make of the starts, and the first that are found in turn.
    """
    layers, stages = len(row.times), shape.stages
    if math.comb(layers - 1, stages - 1) <= _FEW:
        choices = set(all_cuts(layers, stages))
    else:
        room = _Room(row, shape)
        choices = {room.roomiest(cuts) for cuts in dict.fromkeys(starts)} | {*islice(room.fitting(), _FOUND)}
    room = _Room(row, shape)
    lacks = {cuts: room.lacks(cuts) for cuts in choices}
    yield from (cuts for cuts in sorted(choices, key=lacks.__getitem__) if lacks[cuts][0] <= TOLERANCE)


class _Filled(NamedTuple):
    """What a mesh has of the first stages.

    there: the bytes that are there at all times.
    inputs: those of one microbatch that its stages keep.
    most: the most of a microbatch at once, when the last of these stages goes back; before, later ones have gone.
    """

    there: float = 0.0
    inputs: float = 0.0
    most: float = 0.0

    @property
    def bytes(self) -> float:
        return self.there + self.most


class _Room:
    """What cuts of a row leave of its limits."""

    def __init__(self, row: LayerRow, shape: Placement) -> None:
        self._limits, self._shape, self._layers = row.memory.limits, shape, len(row.times)
        layers = empty_of(Placement.of(*[0] * self._layers))
        self._kept = list(accumulate(row.costs.bytes("activation_bytes", layers), initial=0.0))
        self._messages = [0.0, *row.costs.bytes("message_bytes", layers)]
        by_mesh = zip(*row.resident, strict=True)
        self._there = [list(accumulate(sizes, initial=0.0)) for sizes in by_mesh]

    def _with(self, filled: _Filled, mesh: int, first: int, behind: int) -> _Filled:
        """A mesh with another stage, of the layers from `first` to before `behind`."""
        there = self._there[mesh][behind] - self._there[mesh][first]
        whole = self._kept[behind] - self._kept[first]
        inputs = min(whole, self._messages[first])
        most = max(filled.most, filled.inputs + whole)
        return _Filled(filled.there + there, filled.inputs + inputs, most)

    def lacks(self, cuts: Cuts) -> list[float]:
        """What each mesh lacks, that with the least room first: shares of their limits, below 0 where it fits."""
        filled, first = [_Filled()] * len(self._limits), 0
        for stage, size in enumerate(cuts):
            mesh = self._shape[stage]
            filled[mesh] = self._with(filled[mesh], mesh, first, first + size)
            first += size
        pairs = zip(filled, self._limits, strict=True)
        return sorted((each.bytes / limit - 1 if limit < math.inf else -1.0 for each, limit in pairs), reverse=True)

    def roomiest(self, cuts: Cuts) -> Cuts:
        """The cuts after moves of single layers, for as long as these leave more room."""
        while True:
            better = min(beside(cuts), key=self.lacks, default=cuts)
            if self.lacks(better) >= self.lacks(cuts):
                return cuts
            cuts = better

    def fitting(self) -> Iterator[Cuts]:
        """Cuts that fit, those with large first stages first; of a long search only the beginning."""
        stages, steps = self._shape.stages, 0
        limits = [limit * (1 + TOLERANCE) + TOLERANCE for limit in self._limits]
        stack: list[tuple[Cuts, int, tuple[_Filled, ...]]] = [((), 0, (_Filled(),) * len(limits))]
        while stack and steps < _STEPS:
            cuts, first, filled = stack.pop()
            stage = len(cuts)
            if stage == stages:
                yield cuts
                continue
            mesh, last = self._shape[stage], self._layers - (stages - stage - 1)
            for behind in range(first + 1 if stage < stages - 1 else last, last + 1):
                steps += 1
                here = self._with(filled[mesh], mesh, first, behind)
                if here.bytes > limits[mesh]:
                    break
                stack.append(((*cuts, behind - first), behind, (*filled[:mesh], here, *filled[mesh + 1 :])))
