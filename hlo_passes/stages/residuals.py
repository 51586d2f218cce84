"""Residuals: what a forward task hands to its backward, and what is computed on which side."""

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir.cheap import is_cheap
from jaxpp.hlo_passes.ir.values import byte_size
from jaxpp.hlo_passes.stages.assign import Assignment

# Capacities of the flow problem are 32-bit integers.
_LARGEST = 2**30


def place_residuals(assignment: Assignment) -> None:
    """Choose the residuals of each stage so that the fewest bytes stay alive from its forward to its backward.

    Two kinds of operations leave a choice. One that depends on the forward alone and that only the backward uses may
    move to the forward, which then hands on its result instead of its operands. A cheap one of the forward may be
    computed again in the backward, from its operands. The best choice is a minimum cut between what the forward must
    compute and what the backward must, with the bytes of each value as its capacity (the same problem as in the
    partitioning of Chen et al., arXiv:1604.06174, and of PyTorch's AOTAutograd). Among equal cuts the one that computes
    the least again is taken.
    """
    assignment.refresh()
    by_task: dict[int, list[ir.Operation]] = {}
    for op in assignment.live():
        if op in assignment.task:
            by_task.setdefault(assignment.task[op], []).append(op)
    for stage in range(assignment.tasks.stages):
        forward, backward = assignment.tasks.forward(stage), assignment.tasks.backward(stage)
        if forward in by_task and backward in by_task:
            _Cut(assignment, forward, backward).apply(by_task[backward])


class _Cut:
    """The flow problem of one stage. Nodes 0 and 1 are the forward and the backward; each value has two nodes."""

    def __init__(self, assignment: Assignment, forward: int, backward: int) -> None:
        self._assignment = assignment
        self._forward, self._backward = forward, backward
        self._movable: dict[ir.Operation, None] = {}
        self._again: dict[ir.Operation, None] = {}
        self._nodes: dict[ir.Operation | ir.Value, int] = {}
        self._edges: list[tuple[int, int, int]] = []
        self._pending: list[tuple[ir.Operation, int]] = []

    def apply(self, ops: Sequence[ir.Operation]) -> None:
        """Solve it for `ops`, those of the backward in program order, and change the assignment accordingly."""
        uses = self._find_uses(ops)
        for value, users in uses.items():
            entry = self._entry(value)
            if entry is not None:
                self._edges.extend((entry + 1, self._nodes.get(user, 1), -1) for user in users)
            producer = self._assignment.producer(value)
            if producer is not None and producer in self._movable:
                # What moves to the forward takes along what it depends on.
                above = self._nodes[producer]
                self._edges.extend((self._nodes[user], above, -1) for user in users if user in self._nodes)
        if not self._movable and not self._again:
            return
        early = _source_side(self._edges, 2 + 2 * len(self._nodes))
        for op in self._movable:
            if self._nodes[op] in early:
                self._assignment.task[op] = self._forward
        again = {op for op in self._again if self._nodes[op] not in early}
        self._assignment.recomputed[self._backward] = again

    def _find_uses(self, ops: Sequence[ir.Operation]) -> dict[ir.Value, list[ir.Operation]]:
        """What the operations of the backward use, the movable ones told apart."""
        assignment = self._assignment
        uses: dict[ir.Value, list[ir.Operation]] = {}
        for op in ops:
            sources = [value for value in assignment.operands[op] if not assignment.is_free(value)]
            early = all(
                assignment.producer(value) in self._movable
                or ((task := assignment.task_of(value)) is not None and task <= self._forward)
                for value in sources
            )
            if early and len(op.results) and all(assignment.used_by(r) <= {self._backward} for r in op.results):
                self._movable[op] = None
                self._add(op, sum(byte_size(result.type) for result in op.results))
            for value in sources:
                uses.setdefault(value, []).append(op)
        for op in assignment.marks_after(self._backward):
            for value in assignment.operands[op]:
                if not assignment.is_free(value):
                    uses.setdefault(value, []).append(op)
        return uses

    def _add(self, key: ir.Operation | ir.Value, size: int) -> int:
        """The entry node of a value, or of an operation's results, with its capacity; the exit is one more."""
        entry = self._nodes[key] = 2 + 2 * len(self._nodes)
        self._edges.append((entry, entry + 1, size))
        return entry

    def _entry(self, value: ir.Value) -> int | None:
        """The entry node of a value that the forward has; None for one that only the backward has."""
        entry = self._node(value)
        while self._pending:
            op, below = self._pending.pop()
            for operand in self._assignment.operands[op]:
                if not self._assignment.is_free(operand):
                    above = self._node(operand)
                    self._edges.append((0 if above is None else above + 1, below, -1))
        return entry

    def _node(self, value: ir.Value) -> int | None:
        op = self._assignment.producer(value)
        key = op if op is not None and (op in self._movable or op in self._again) else value
        if key in self._nodes:
            return self._nodes[key]
        task = self._assignment.task_of(value)
        if task is None or task > self._forward:
            return None
        if op is None or task != self._forward or self._assignment.task.get(op) != task or not is_cheap(op):
            entry = self._add(value, byte_size(value.type))
            self._edges.append((0, entry, -1))
            return entry
        self._again[op] = None
        entry = self._add(op, byte_size(value.type))
        self._pending.append((op, entry))
        return entry


def _source_side(edges: Sequence[tuple[int, int, int]], count: int) -> set[int]:
    """The nodes on the side of node 0 of the minimum cut between nodes 0 and 1 that is nearest to node 1.

    Edges are (tail, head, capacity in bytes), with -1 for one that can't be cut.
    """
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
    late = breadth_first_order(residual.T.tocsr(), 1, return_predecessors=False)
    return set(range(count)).difference(late.tolist())
