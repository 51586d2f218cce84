"""The minimum cut of a graph whose edges have bytes for capacities."""

from collections.abc import Sequence

import numpy as np

UNCUTTABLE = -1

# Capacities of the flow problem are 32-bit integers.
_LARGEST = 2**30


def min_cut(edges: Sequence[tuple[int, int, int]], count: int) -> set[int]:
    """The nodes on the side of node 0 of the minimum cut between nodes 0 and 1 that is nearest to node 1.

    Edges are (tail, head, capacity in bytes), with UNCUTTABLE for one that can't be cut. Several between the same two
    nodes count together.
    """
    from scipy.sparse import csr_matrix  # here: it takes longer to import than the whole of jaxpp-opt
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    total = sum(size for _, _, size in edges if size != UNCUTTABLE)
    unit = max(1, -(-total // _LARGEST))
    endless = total // unit + len(edges) + 1
    capacities: dict[tuple[int, int], int] = {}
    for tail, head, size in edges:
        capacity = endless if size == UNCUTTABLE else -(-size // unit)
        capacities[tail, head] = min(endless, capacities.get((tail, head), 0) + capacity)
    rows, columns = zip(*capacities, strict=True)
    graph = csr_matrix((np.array(list(capacities.values()), np.int32), (rows, columns)), shape=(count, count))
    residual = graph - maximum_flow(graph, 0, 1).flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    late = breadth_first_order(residual.T.tocsr(), 1, return_predecessors=False)
    return set(range(count)).difference(late.tolist())
