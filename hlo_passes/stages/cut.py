"""Divides a computation into an early and a late half so that the fewest bytes stay alive between them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.ties import ties
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import MOST_RECOMPUTED, traits
from jaxpp.ir.recomputation import OpNode, Recomputation, ValueNode
from jaxpp.ir.values import ByteSizes, closure


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
    body, find, sizes = halves.body, halves.body.producers.get, ByteSizes()
    movable: dict[int, list[ir.Value]] = {}

    def sources(op: int) -> list[ir.Value]:
        return [value for value in body.operands[op] if not halves.is_free(value)]

    def is_there(value: ir.Value) -> bool:
        return find(value) in movable or halves.is_early(value)

    needed = [value for value in wanted if not halves.is_free(value)]
    for op in late:
        operands = sources(op)
        if body.results[op] and all(map(is_there, operands)) and halves.may_move(op):
            movable[op] = operands
        else:
            needed += operands
    optional = dict(movable)  # the operations that the late half may run or leave, each with the values that it reads

    def read(value: ir.Value) -> Sequence[ir.Value]:
        op = find(value)
        if op is not None and op not in optional and halves.may_repeat(op) and all(map(is_there, sources(op))):
            optional[op] = sources(op)
        return () if op is None else optional.get(op, ())

    values = {value: number for number, value in enumerate(closure(filter(is_there, needed), read))}
    ops = [op for op in sorted(optional) if any(result in values for result in body.results[op])]
    steps = {op: number for number, op in enumerate(ops)}
    cheap = {op for op in ops if op not in movable}

    def node(value: ir.Value) -> ValueNode:
        op = find(value)
        bytes_ = sizes[value.type] if size is None else size(value)
        # A view costs one unit more than an operand of its size, which another task may read anyway.
        is_view = op is not None and op in movable and traits(body.ops[op]).view
        return ValueNode(2 * bytes_ + is_view, None if op is None else steps.get(op))

    # An operation can only move to the early half together with the late operations that it depends on.
    tied = [(op, maker) for op in movable for value in movable[op] if (maker := find(value)) in movable]
    tied += ties(body, [*late, *cheap], cheap.__contains__, together)
    choice = Recomputation(
        list(map(node, values)),
        [OpNode([values[value] for value in optional[op]], 0) for op in ops],
        [values[value] for value in needed if value in values],
        [(values[result], steps[op]) for kept, op in tied for result in body.results[kept] if result in values],
    )
    again = {ops[step] for step in choice.cut()}
    return Division((steps.keys() & movable.keys()) - again, again.difference(movable))


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
