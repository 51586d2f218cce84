"""The minimum cut of a graph whose edges have capacities in bytes."""

from collections.abc import Iterator, Sequence

UNCUTTABLE = -1


def min_cut(edges: Sequence[tuple[int, int, int]], count: int) -> set[int]:
    """Returns the nodes on node 0's side of the minimum cut between nodes 0 and 1; of equal cuts, the one nearest to 1.

    A maximum flow along shortest paths finds the cut (Dinitz, Soviet Mathematics Doklady 11, 1970). The graphs of
    stages have at most a few thousand edges, and take milliseconds. scipy's flow is compiled, but takes longer to
    import. The time grows with the edges times the number of different lengths of shortest paths: a chain of 1,000
    nodes with an exit at each takes a second.

    Edges are (tail, head, capacity in bytes), with UNCUTTABLE for an edge that can't be cut. The capacities of several
    edges between the same two nodes add up.
    """
    endless = 1 + sum(size for _, _, size in edges if size != UNCUTTABLE)
    spare: list[dict[int, int]] = [{} for _ in range(count)]
    for tail, head, size in edges:
        spare[tail][head] = spare[tail].get(head, 0) + (endless if size == UNCUTTABLE else size)
        spare[head].setdefault(tail, 0)
    while 0 in (distance := _distances(spare)):
        for path in _shortest_paths(spare, distance):
            flow = min(spare[tail][head] for tail, head in path)
            for tail, head in path:
                spare[tail][head] -= flow
                spare[head][tail] += flow
    return set(range(count)).difference(distance)


def _distances(spare: Sequence[dict[int, int]]) -> dict[int, int]:
    """Returns how many edges with spare capacity lead from each node to node 1; other nodes are absent."""
    distance = {1: 0}
    work = [1]
    for head in work:
        for tail in spare[head]:
            if tail not in distance and spare[tail][head]:
                distance[tail] = distance[head] + 1
                work.append(tail)
    return distance


def _shortest_paths(spare: Sequence[dict[int, int]], distance: dict[int, int]) -> Iterator[list[tuple[int, int]]]:
    """Yields shortest paths from node 0 to node 1 until none is left. The caller must fill each path that it takes."""
    ahead: dict[int, list[int]] = {}
    path: list[tuple[int, int]] = []
    node = 0
    while True:
        if node not in ahead:
            ahead[node] = [head for head in spare[node] if distance.get(head) == distance[node] - 1]
        heads = ahead[node]
        while heads and not spare[node][heads[-1]]:
            heads.pop()
        if heads:
            path.append((node, heads[-1]))
            node = heads[-1]
        elif path:
            node, _ = path.pop()
            ahead[node].pop()
        else:
            return
        if node == 1:
            yield path
            first = next(number for number, (tail, head) in enumerate(path) if not spare[tail][head])
            node = path[first][0]
            del path[first:]
