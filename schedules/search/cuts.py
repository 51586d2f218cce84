"""Contiguous cuts of a row of layers into stages: the best by the cost of each stage, and those beside given ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations
from typing import Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

Cuts: TypeAlias = tuple[int, ...]
"""The layers of each stage, from the first one on."""

FEW_CUTS: Final = 500
"""Where there are so many cuts or fewer, all are looked at."""

_NODES: Final = 300
"""Of a search tree, that an integer programme may look at."""

_UNSURE: Final = 1e-6
"""The share by which a solver's bounds may be wrong."""


def best_cuts(costs: NDArray[np.float64]) -> tuple[float, Cuts] | None:
    """The cuts with the least cost of the stage that costs most and, of these, the least sum of squares.

    By dynamic programming over the ends of stages, as PipeDream (Narayanan et al., SOSP 2019) and DAPPLE
    (arXiv 2007.01045) cut.

    Args:
        costs: [stage, first layer, first layer behind it], infinite where a stage can't have these layers.

    Returns:
        That cost and the cuts; None if there are none of a finite cost.
    """
    count = costs.shape[1]
    least = np.full(count, np.inf)
    least[0] = -np.inf
    for table in costs:
        least = np.maximum(least[:, None], table).min(axis=0)
    worst = float(least[-1])
    if not worst < np.inf:
        return None
    allowed = np.where(costs <= worst, costs, np.inf)
    total = np.full(count, np.inf)
    total[0] = 0.0
    starts: list[NDArray[np.intp]] = []
    for table in allowed:
        sums = total[:, None] + table**2
        starts.append(sums.argmin(axis=0))
        total = sums.min(axis=0)
    ends = [count - 1]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return worst, tuple(np.diff(ends[::-1]).tolist())


def spans(values: Sequence[float]) -> NDArray[np.float64]:
    """[first, first behind]: the sum of the values of these layers; infinite where there is none."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    table = sums[None, :] - sums[:, None]
    rows, columns = np.indices(table.shape)
    return np.where(rows < columns, table, np.inf)


def even_cuts(layers: int, stages: int) -> Cuts:
    """Equally many layers for each stage; where that is not possible, the first ones have one more."""
    size, rest = divmod(layers, stages)
    return tuple(size + (stage < rest) for stage in range(stages))


def all_cuts(layers: int, stages: int) -> Iterator[Cuts]:
    """Every way to cut the layers."""
    for borders in combinations(range(1, layers), stages - 1):
        yield tuple(end - start for start, end in pairwise((0, *borders, layers)))


def beside(cuts: Cuts) -> Iterator[Cuts]:
    """The cuts where one stage has a layer less and another one more: all borders between the two move by one."""
    for giver, taker in permutations(range(len(cuts)), 2):
        if cuts[giver] > 1:
            yield tuple(size - (stage == giver) + (stage == taker) for stage, size in enumerate(cuts))


def least_time(times: Sequence[float], speeds: Sequence[float], ways: Sequence[float], nodes: int = _NODES) -> float:
    """No way to share out things among meshes lets the last mesh be done earlier: an integer programme.

    Cuts are such ways, however many stages a mesh has. Where they make a large programme it is left half solved, and
    says less.

    Args:
        times: what each thing takes on a mesh of speed 1.
        speeds: of each mesh.
        ways: the time that each mesh needs beside its share.
        nodes: of the solver's tree, at most.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # here: schedules start without it
    from scipy.sparse import coo_array

    sizes, counts = np.unique(times, return_counts=True)
    kinds, meshes = len(sizes), len(speeds)
    # How many of each kind each mesh has; behind these, in means of the meshes, when the last one is done.
    unit = float(np.sum(times)) / math.fsum(speeds)
    which, where = np.divmod(np.arange(kinds * meshes), meshes)
    taken = np.append(sizes[which] / np.asarray(speeds)[where] / unit, np.full(meshes, -1.0))
    columns = np.append(np.arange(kinds * meshes), np.full(meshes, kinds * meshes))
    shared = coo_array((np.ones(kinds * meshes), (which, np.arange(kinds * meshes))), (kinds, kinds * meshes + 1))
    loads = coo_array((taken, (np.append(where, np.arange(meshes)), columns)), (meshes, kinds * meshes + 1))
    all_ = cast("float", counts)  # scipy's types know numbers alone
    found = milp(
        np.append(np.zeros(kinds * meshes), 1.0),
        integrality=np.append(np.ones(kinds * meshes), 0.0),
        bounds=Bounds(0.0, cast("float", np.append(counts[which], np.inf))),
        constraints=[
            LinearConstraint(shared.tocsr(), all_, all_),
            LinearConstraint(loads.tocsr(), -np.inf, cast("float", -np.asarray(ways) / unit)),
        ],
        options={"node_limit": nodes, "mip_rel_gap": 0.0},
    )
    if not found.success:
        return unit * float(found.mip_dual_bound or 0.0) * (1 - _UNSURE)
    numbers = np.round(found.x[:-1]).reshape(kinds, meshes)
    return float(np.max(sizes @ numbers / np.asarray(speeds) + np.asarray(ways)))
