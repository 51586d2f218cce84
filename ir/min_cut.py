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

    tails, heads, sizes = np.array(edges, np.int64).T
    can_be_cut = sizes != UNCUTTABLE
    total = int(sizes[can_be_cut].sum())
    unit = max(1, -(-total // _LARGEST))
    endless = total // unit + len(edges) + 1
    graph = csr_matrix((np.where(can_be_cut, -(-sizes // unit), endless), (tails, heads)), shape=(count, count))
    graph.data = np.minimum(graph.data, endless).astype(np.int32)
    residual = graph - maximum_flow(graph, 0, 1).flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    late = breadth_first_order(residual.T.tocsr(), 1, return_predecessors=False)
    return set(range(count)).difference(late.tolist())
