"""Divides a computation into an early and a late half so that the fewest bytes stay alive between them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.ties import ties
from jaxpp.ir.min_cut import UNCUTTABLE, min_cut
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import MOST_RECOMPUTED, traits
from jaxpp.ir.values import ByteSizes


class Halves(Protocol):
    """The properties of values and operations that `divide` reads; operations are identified by their numbers."""

    @property
    def body(self) -> Numbered:
        """The operations of both halves."""
        ...

    def is_free(self, value: ir.Value) -> bool:
        """Whether both halves can have `value` at no cost."""
        ...

    def is_early(self, value: ir.Value) -> bool:
        """Whether the early half makes `value`, or has it from elsewhere."""
        ...

    def may_move(self, op: int) -> bool:
        """Whether `op`, a late operation whose operands are early, may become early."""
        ...

    def may_repeat(self, op: int) -> bool:
        """Whether the late half may rematerialise the results of `op`, an early operation."""
        ...


class Division(NamedTuple):
    """The late operations that move to the early half, and the early ones that the late half rematerialises."""

    moved: set[int]
    again: set[int]


def divide(
    halves: Halves,
    late: Sequence[int],
    wanted: Iterable[ir.Value] = (),
    size: Callable[[ir.Value], int] | None = None,
    together: Iterable[Sequence[ir.Value]] = (),
) -> Division:
    """Chooses operations to move or rematerialise so that the fewest bytes stay alive from the early to the late half.

    Two kinds of operations leave a choice. A late operation that depends only on the early half may move there. Its
    result is then kept instead of its operands. A cheap early operation may be rematerialised in the late half from its
    operands. The best choice is a minimum cut between the operations that must be early and those that must be late.
    The capacity of each value is its `size`. Chen et al. (arXiv:1604.06174) and the partitioner of PyTorch's
    AOTAutograd treat the same problem. Among equal cuts, `divide` takes the one that rematerialises the least.

    Args:
        halves: the properties of the values and operations.
        late: the operations of the late half, in program order.
        wanted: values that the late half needs, besides the operands of its operations.
        size: the cost of keeping a value; its bytes if not given.
        together: groups of `wanted` values that one operation reads whose result jumps; see `ties`.
    """
    return _FlowProblem(halves, size).solve(late, wanted, together)


def without_long_chains(halves: Halves, again: Sequence[int], is_wanted: Callable[[ir.Value], bool]) -> list[int]:
    """Returns the operations of `again` that belong to no chain longer than `MOST_RECOMPUTED`, in program order.

    A value at the end of a longer chain is kept. XLA fuses the operations that make a value into each fusion that uses
    the value. So a chain as long as the stage would be compiled, and computed, once for each value in it.

    Args:
        halves: gives the operands, results and producers.
        again: the operations that the late half would rematerialise, in program order.
        is_wanted: whether the late half reads a value.
    """
    body, lengths = halves.body, dict[int, int]()
    for op in again:
        length = 1 + sum(lengths.get(body.producers.get(value, -1), 0) for value in body.operands[op])
        if length <= MOST_RECOMPUTED:
            lengths[op] = length
    wanted = [result for op in lengths for result in body.results[op] if is_wanted(result)]
    return body.behind(wanted, lengths.__contains__)


class _FlowProblem:
    """The flow problem. Nodes 0 and 1 are the early and the late half; each value has an entry and an exit node."""

    def __init__(self, halves: Halves, size: Callable[[ir.Value], int] | None) -> None:
        self._halves, self._body = halves, halves.body
        self._cost = size or self._bytes
        self._sizes = ByteSizes()
        self._movable: set[int] = set()
        self._again: set[int] = set()
        self._nodes: dict[int | ir.Value, int] = {}
        """The entry node of each value; an operation that may move or be repeated has one for all its results."""
        self._edges: list[tuple[int, int, int]] = []
        self._pending: list[tuple[int, int]] = []

    def _bytes(self, value: ir.Value) -> int:
        return self._sizes[value.type]

    def _size(self, value: ir.Value) -> int:
        return 2 * self._cost(value)

    def solve(
        self, late: Sequence[int], wanted: Iterable[ir.Value], together: Iterable[Sequence[ir.Value]]
    ) -> Division:
        uses = self._find_uses(late)
        for value in wanted:
            if not self._halves.is_free(value):
                uses.setdefault(value, []).append(None)
        for value, users in uses.items():
            entry = self._entry(value)
            inside = [self._nodes[user] for user in users if user is not None and user in self._nodes]
            if entry is not None:
                self._edges.extend((entry + 1, node, UNCUTTABLE) for node in inside)
                if len(inside) < len(users):
                    self._edges.append((entry + 1, 1, UNCUTTABLE))
            producer = self._body.producers.get(value)
            if producer is not None and producer in self._movable:
                # An operation can only move to the early half together with the late operations that it depends on.
                above = self._nodes[producer]
                self._edges.extend((node, above, UNCUTTABLE) for node in inside)
        if not self._movable and not self._again:
            return Division(set(), set())
        self._add_ties(late, together)
        early = min_cut(self._edges, 2 + 2 * len(self._nodes))
        return Division(
            {op for op in self._movable if self._nodes[op] in early},
            {op for op in self._again if self._nodes[op] not in early},
        )

    def _add_ties(self, late: Sequence[int], together: Iterable[Sequence[ir.Value]]) -> None:
        """Adds edges by which, where one value of a tie is kept, the other one is not rematerialised."""
        for kept, again in ties(self._body, [*late, *self._again], self._again.__contains__, together):
            for key in (kept, *self._body.results[kept]):
                if key in self._nodes:
                    self._edges.append((self._nodes[key], self._nodes[again], UNCUTTABLE))

    def _find_uses(self, late: Sequence[int]) -> dict[ir.Value, list[int | None]]:
        """Returns the late operations that use each value, and adds a node for each operation that may move."""
        halves, body = self._halves, self._body
        uses: dict[ir.Value, list[int | None]] = {}
        for op in late:
            sources = [value for value in body.operands[op] if not halves.is_free(value)]
            early = all(body.producers.get(value) in self._movable or halves.is_early(value) for value in sources)
            if early and (results := body.results[op]) and halves.may_move(op):
                self._movable.add(op)
                # A view costs one unit more than an operand of its size, which another task may read anyway.
                self._add(op, sum(map(self._size, results)) + traits(body.ops[op]).view)
            for value in sources:
                uses.setdefault(value, []).append(op)
        return uses

    def _add(self, key: int | ir.Value, size: int) -> int:
        """Adds the two nodes of a value or of an operation. Returns the entry; the exit is the next number."""
        entry = self._nodes[key] = 2 + 2 * len(self._nodes)
        self._edges.append((entry, entry + 1, size))
        return entry

    def _entry(self, value: ir.Value) -> int | None:
        """Returns the entry node of a value; None if the early half neither has the value nor may make it."""
        entry = self._node(value)
        while self._pending:
            op, below = self._pending.pop()
            for operand in self._body.operands[op]:
                if not self._halves.is_free(operand):
                    above = self._node(operand)
                    self._edges.append((0 if above is None else above + 1, below, UNCUTTABLE))
        return entry

    def _node(self, value: ir.Value) -> int | None:
        op = self._body.producers.get(value)
        key = op if op is not None and (op in self._movable or op in self._again) else value
        if key in self._nodes:
            return self._nodes[key]
        if not self._halves.is_early(value):
            return None
        if op is None or not self._halves.may_repeat(op):
            entry = self._add(value, self._size(value))
            self._edges.append((0, entry, UNCUTTABLE))
            return entry
        self._again.add(op)
        entry = self._add(op, self._size(value))
        self._pending.append((op, entry))
        return entry
