"""Contiguous cuts of a row of layers into stages: the best by the cost of each stage, and neighbours of given cuts."""

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
"""The number of cuts up to which all cuts are tried."""

_NODES: Final = 300
"""The most nodes of the search tree of an integer programme."""

_UNSURE: Final = 1e-6
"""The share by which a solver's bounds may be wrong."""


def best_cuts(costs: NDArray[np.float64]) -> tuple[float, Cuts] | None:
    """Returns the cuts with the least maximum cost of a stage and, of these, the least sum of squares.

    It uses dynamic programming over the ends of stages, as PipeDream (Narayanan et al., SOSP 2019) and DAPPLE (arXiv
    2007.01045) do.

    Args:
        costs: [stage, first layer, layer after the last], infinite where a stage can't have these layers.

    Returns:
        The maximum cost and the cuts; None if no cuts have a finite cost.
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


def sums(values: Sequence[float]) -> NDArray[np.float64]:
    """Returns the sums of the first 0, 1, 2... values."""
    return np.concatenate([[0.0], np.cumsum(values)])


def spans(values: Sequence[float]) -> NDArray[np.float64]:
    """Returns [first layer, layer after the last]: the sum of the values of these layers.

    The sum is infinite if there are no such layers.
    """
    ends = sums(values)
    table = ends[None, :] - ends[:, None]
    rows, columns = np.indices(table.shape)
    return np.where(rows < columns, table, np.inf)


def even_cuts(layers: int, stages: int) -> Cuts:
    """Returns cuts with equally many layers per stage. If that is not possible, the first stages have one more."""
    size, rest = divmod(layers, stages)
    return tuple(size + (stage < rest) for stage in range(stages))


def all_cuts(layers: int, stages: int) -> Iterator[Cuts]:
    """Yields all cuts of the layers."""
    for borders in combinations(range(1, layers), stages - 1):
        yield tuple(end - start for start, end in pairwise((0, *borders, layers)))


def beside(cuts: Cuts) -> Iterator[Cuts]:
    """Yields the neighbours of the cuts, where one stage has a layer less and another stage one more.

    All borders between the two stages move by one layer.
    """
    for giver, taker in permutations(range(len(cuts)), 2):
        if cuts[giver] > 1:
            yield tuple(size - (stage == giver) + (stage == taker) for stage, size in enumerate(cuts))


def least_time(times: Sequence[float], speeds: Sequence[float], ways: Sequence[float], nodes: int = _NODES) -> float:
    """Returns a lower bound on the time of the last mesh, for every assignment of the layers to meshes.

    It solves an integer programme, in which a mesh may have any of the layers. Cuts are such assignments, however many
    stages a mesh has. A large programme is not solved to the end, and gives a lower bound that is less tight.

    Args:
        times: the time of each layer on a mesh of speed 1.
        speeds: the speed of each mesh.
        ways: the time that each mesh needs beside its layers.
        nodes: the most nodes of the solver's tree.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # imported here, so that schedules start without scipy
    from scipy.sparse import coo_array

    sizes, counts = np.unique(times, return_counts=True)
    kinds, meshes = len(sizes), len(speeds)
    # The variables are the layers of each kind on each mesh, then the time of the last mesh in units of the mean time.
    unit = float(np.sum(times)) / math.fsum(speeds)
    which, where = np.divmod(np.arange(kinds * meshes), meshes)
    taken = np.append(sizes[which] / np.asarray(speeds)[where] / unit, np.full(meshes, -1.0))
    columns = np.append(np.arange(kinds * meshes), np.full(meshes, kinds * meshes))
    shared = coo_array((np.ones(kinds * meshes), (which, np.arange(kinds * meshes))), (kinds, kinds * meshes + 1))
    loads = coo_array((taken, (np.append(where, np.arange(meshes)), columns)), (meshes, kinds * meshes + 1))
    all_ = cast("float", counts)  # scipy's type hints allow only numbers
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
