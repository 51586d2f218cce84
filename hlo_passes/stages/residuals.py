"""Residuals: on which side of the cut a value is computed that the backward alone needs."""

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir.values import byte_size
from jaxpp.hlo_passes.stages.assign import Assignment

# Capacities of the flow problem are 32-bit integers.
_LARGEST = 2**30


def place_residuals(assignment: Assignment) -> None:
    """Move operations from each backward task to its forward task where that keeps fewer bytes alive in between.

    An operation can move when it depends on the forward alone and only the backward uses it: the forward then hands on
    its result instead of its operands. Which ones move is a minimum cut between the values of the forward and the
    rest of the backward, with the bytes of each value as its capacity. Among equal cuts the one with the least work
    in the forward is taken.
    """
    assignment.refresh()
    for stage in range(assignment.tasks.stages):
        forward, backward = assignment.tasks.forward(stage), assignment.tasks.backward(stage)
        if forward in assignment.task.values():
            for op in _moved(assignment, forward, backward):
                assignment.task[op] = forward


def _moved(assignment: Assignment, forward: int, backward: int) -> list[ir.Operation]:
    movable: dict[ir.Operation, None] = {}
    kept_for: dict[ir.Value, list[ir.Operation]] = {}
    for op in assignment.live():
        if assignment.task.get(op) != backward:
            continue
        sources = [value for value in assignment.operands[op] if not assignment.is_free(value)]
        early = all(
            assignment.producer(value) in movable
            or ((task := assignment.task_of(value)) is not None and task <= forward)
            for value in sources
        )
        if early and len(op.results) and all(assignment.used_by(result) <= {backward} for result in op.results):
            movable[op] = None
        for value in sources:
            kept_for.setdefault(value, []).append(op)
    if not movable:
        return []
    return _cut(assignment, forward, list(movable), kept_for)


def _cut(
    assignment: Assignment,
    forward: int,
    movable: Sequence[ir.Operation],
    kept_for: dict[ir.Value, list[ir.Operation]],
) -> list[ir.Operation]:
    """The movable operations on the forward's side of the minimum cut."""
    nodes: dict[ir.Operation | ir.Value, int] = {}
    edges: list[tuple[int, int, int]] = []
    endless = -1

    def node(key: ir.Operation | ir.Value, size: int) -> int:
        """The entry of the pair of nodes that stands for a value or an operation's results; its exit is one more."""
        if key not in nodes:
            nodes[key] = 2 + 2 * len(nodes)
            edges.append((nodes[key], nodes[key] + 1, size))
        return nodes[key]

    for op in movable:
        node(op, sum(byte_size(result.type) for result in op.results))
    for value, users in kept_for.items():
        producer = assignment.producer(value)
        if producer is not None and producer in nodes:
            entry = nodes[producer]
        elif (task := assignment.task_of(value)) is not None and task <= forward:
            entry = node(value, byte_size(value.type))
            edges.append((0, entry, endless))
        else:
            continue
        edges.extend((entry + 1, nodes.get(user, 1), endless) for user in users)
    reached = _source_side(edges, 2 + 2 * len(nodes))
    return [op for op in movable if nodes[op] in reached]


def _source_side(edges: Sequence[tuple[int, int, int]], count: int) -> set[int]:
    """The nodes on the source's (node 0) side of the minimum cut from node 0 to node 1 that is nearest to it."""
    from scipy.sparse import csr_matrix  # here: it takes longer to import than the whole of jaxpp-opt
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    total = sum(size for _, _, size in edges if size > 0)
    unit = max(1, -(-total // _LARGEST))
    endless = total // unit + len(edges) + 1
    capacities: dict[tuple[int, int], int] = {}
    for tail, head, size in edges:
        capacities[tail, head] = endless if size < 0 else -(-size // unit)
    rows, columns = zip(*capacities, strict=True)
    graph = csr_matrix((np.array(list(capacities.values()), np.int32), (rows, columns)), shape=(count, count))
    residual = graph - maximum_flow(graph, 0, 1).flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    return set(breadth_first_order(residual, 0, return_predecessors=False).tolist())
