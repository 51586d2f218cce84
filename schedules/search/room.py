"""Cuts on which one microbatch fits if every stage recomputes, which is the least memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.engine.dispatch import TOLERANCE
from jaxpp.schedules.search.cuts import FEW_CUTS, Cuts, all_cuts, beside, sums
from jaxpp.schedules.search.placed_row import PlacedRow

_STEPS: Final = 20_000
"""The most partial cuts that a depth-first search visits, if all cuts are too many to list."""

_FOUND: Final = 20
"""The most fitting cuts that the depth-first search returns."""


def with_room(placed: PlacedRow) -> Iterator[Cuts]:
    """Yields cuts on which one microbatch fits if every stage recomputes, those with most room first.

    If there are few cuts, it tries all of them. Otherwise it tries the starts after moves of single layers, and the
    first cuts that a depth-first search finds.
    """
    layers, stages, room = len(placed.times), placed.shape.stages, _Room(placed)
    if math.comb(layers - 1, stages - 1) <= FEW_CUTS:
        choices = list(all_cuts(layers, stages))
    else:
        choices = list({*map(room.roomiest, dict.fromkeys(placed.starts())), *islice(room.fitting(), _FOUND)})
    for lacks, cuts in sorted(zip(room.lacks(choices), choices, strict=True)):
        if lacks[0] <= TOLERANCE:
            yield cuts


class _Filled(NamedTuple):
    """The memory that the first stages take on a mesh, as arrays over several choices of cuts.

    Attributes:
        there: the resident bytes.
        inputs: the bytes of the stage inputs that one microbatch keeps.
        most: the peak bytes of a microbatch. The backward of a stage needs its whole activation, beside the inputs of
            earlier stages.
    """

    there: NDArray[np.float64]
    inputs: NDArray[np.float64]
    most: NDArray[np.float64]

    @property
    def bytes(self) -> NDArray[np.float64]:
        return self.there + self.most


class _Room:
    """The memory that cuts of a row leave of the limits."""

    def __init__(self, placed: PlacedRow) -> None:
        self._limits, self._shape, self._layers = placed.memory.limits, placed.shape, len(placed.times)
        self._kept = sums(placed.bytes("activation_bytes"))
        self._messages = np.array([0.0, *placed.bytes("message_bytes")])
        self._there = [sums(sizes) for sizes in zip(*placed.resident, strict=True)]

    def _with(self, filled: _Filled, mesh: int, first: NDArray[np.intp], behind: NDArray[np.intp]) -> _Filled:
        """Returns the memory of a mesh after one more stage, whose layers are `first` to `behind` - 1."""
        there = self._there[mesh][behind] - self._there[mesh][first]
        whole = self._kept[behind] - self._kept[first]
        inputs = np.minimum(whole, self._messages[first])
        most = np.maximum(filled.most, filled.inputs + whole)
        return _Filled(filled.there + there, filled.inputs + inputs, most)

    def lacks(self, choices: Sequence[Cuts]) -> list[list[float]]:
        """Returns for each choice the excess of each mesh, as a share of its limit, the largest first.

        The excess of a mesh that fits is at most 0.
        """
        ends = np.cumsum(choices, axis=1, dtype=np.intp)
        starts = ends - np.array(choices)
        filled = [_Filled(*np.zeros((3, len(choices))))] * len(self._limits)
        for stage in range(self._shape.stages):
            mesh = self._shape[stage]
            filled[mesh] = self._with(filled[mesh], mesh, starts[:, stage], ends[:, stage])
        shares = np.stack([each.bytes / limit - 1 for each, limit in zip(filled, self._limits, strict=True)], axis=1)
        return np.sort(shares, axis=1)[:, ::-1].tolist()

    def roomiest(self, cuts: Cuts) -> Cuts:
        """Returns the cuts after moves of single layers, as long as a move leaves more room."""
        while near := list(beside(cuts)):
            least, *lacks = self.lacks([cuts, *near])
            if min(lacks) >= least:
                break
            cuts = near[lacks.index(min(lacks))]
        return cuts

    def fitting(self) -> Iterator[Cuts]:
        """Yields cuts that fit, those with large first stages first. It stops after `_STEPS` partial cuts."""
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
