"""Cuts on which one microbatch fits if every stage recomputes: the least memory that there may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.dispatch import TOLERANCE
from jaxpp.schedules.search.cuts import FEW_CUTS, Cuts, all_cuts, beside
from jaxpp.schedules.search.placed_row import PlacedRow

_STEPS: Final = 20_000
"""Of many cuts, so many beginnings are looked at one after the other."""

_FOUND: Final = 20
"""And so many that fit are enough."""


def with_room(placed: PlacedRow) -> Iterator[Cuts]:
    """Cuts on which one microbatch fits if every stage recomputes, those with most room first.

    All of few; of many those that moves of single layers make of the starts, and the first that are found in turn.
    """
    layers, stages, room = len(placed.row.times), placed.shape.stages, _Room(placed)
    if math.comb(layers - 1, stages - 1) <= FEW_CUTS:
        choices = list(all_cuts(layers, stages))
    else:
        choices = list({*map(room.roomiest, dict.fromkeys(placed.starts())), *islice(room.fitting(), _FOUND)})
    for lacks, cuts in sorted(zip(room.lacks(choices), choices, strict=True)):
        if lacks[0] <= TOLERANCE:
            yield cuts


class _Filled(NamedTuple):
    """What a mesh has of the first stages, for each of several choices.

    there: the bytes that are there at all times.
    inputs: those of one microbatch that its stages keep.
    most: the most of a microbatch at once, when the last of these stages goes back; before, later ones have gone.
    """

    there: NDArray[np.float64]
    inputs: NDArray[np.float64]
    most: NDArray[np.float64]

    @property
    def bytes(self) -> NDArray[np.float64]:
        return self.there + self.most


class _Room:
    """What cuts of a row leave of its limits."""

    def __init__(self, placed: PlacedRow) -> None:
        row = placed.row
        self._limits, self._shape, self._layers = row.memory.limits, placed.shape, len(row.times)
        self._kept = _sums(row.bytes("activation_bytes"))
        self._messages = np.array([0.0, *row.bytes("message_bytes")])
        self._there = [_sums(sizes) for sizes in zip(*row.resident, strict=True)]

    def _with(self, filled: _Filled, mesh: int, first: NDArray[np.intp], behind: NDArray[np.intp]) -> _Filled:
        """A mesh with another stage, of the layers from `first` to before `behind`."""
        there = self._there[mesh][behind] - self._there[mesh][first]
        whole = self._kept[behind] - self._kept[first]
        inputs = np.minimum(whole, self._messages[first])
        most = np.maximum(filled.most, filled.inputs + whole)
        return _Filled(filled.there + there, filled.inputs + inputs, most)

    def lacks(self, choices: Sequence[Cuts]) -> list[list[float]]:
        """For each choice what each mesh lacks, most first: shares of their limits, below 0 where it fits."""
        ends = np.cumsum(choices, axis=1, dtype=np.intp)
        starts = ends - np.array(choices)
        filled = [_Filled(*np.zeros((3, len(choices))))] * len(self._limits)
        for stage in range(self._shape.stages):
            mesh = self._shape[stage]
            filled[mesh] = self._with(filled[mesh], mesh, starts[:, stage], ends[:, stage])
        shares = np.stack([each.bytes / limit - 1 for each, limit in zip(filled, self._limits, strict=True)], axis=1)
        return np.sort(shares, axis=1)[:, ::-1].tolist()

    def roomiest(self, cuts: Cuts) -> Cuts:
        """The cuts after moves of single layers, for as long as these leave more room."""
        while near := list(beside(cuts)):
            least, *lacks = self.lacks([cuts, *near])
            if min(lacks) >= least:
                break
            cuts = near[lacks.index(min(lacks))]
        return cuts

    def fitting(self) -> Iterator[Cuts]:
        """Cuts that fit, those with large first stages first; of a long search only the beginning."""
        stages, steps = self._shape.stages, 0
        limits = [limit * (1 + TOLERANCE) + TOLERANCE for limit in self._limits]
        stack: list[tuple[Cuts, tuple[_Filled, ...]]] = [((), (_Filled(*np.zeros((3, 1))),) * len(limits))]
        while stack and steps < _STEPS:
            cuts, filled = stack.pop()
            stage, first = len(cuts), sum(cuts)
            if stage == stages:
                yield cuts
                continue
            mesh, last = self._shape[stage], self._layers - (stages - stage - 1)
            ends = np.arange(first + 1 if stage < stages - 1 else last, last + 1)
            here = self._with(filled[mesh], mesh, np.full_like(ends, first), ends)
            fits = here.bytes <= limits[mesh]
            steps += len(ends)
            for each in range(len(ends) if fits.all() else int(fits.argmin())):
                one = _Filled(*(values[each : each + 1] for values in here))
                stack.append(((*cuts, int(ends[each]) - first), (*filled[:mesh], one, *filled[mesh + 1 :])))


def _sums(values: Sequence[float]) -> NDArray[np.float64]:
    """The sums of the first 0, 1, 2... values."""
    return np.concatenate([[0.0], np.cumsum(values)])
