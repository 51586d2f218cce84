"""Stage marks inside of `jax.checkpoint`: the backward computes up to them again, and has their values already."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import boundary
from jaxpp.hlo_passes.ir.functions import operands_with_captures
from jaxpp.hlo_passes.ir.values import defining_op
from jaxpp.hlo_passes.loop.canonicalize import split_barrier
from jaxpp.hlo_passes.loop.marks import Marks, find_marks


def reuse_recomputed_marks(loop: ir.Operation) -> None:
    """Give the users of a mark that `jax.checkpoint` computes again the value of the first one, which is the same.

    So each stage computes again from its own boundary on, whatever the checkpoint encloses: a block with a mark in it,
    or the whole model. The barriers of `jax.checkpoint`, which then hold values of several stages, are one for each.
    """
    forward = [(op, mark) for op, mark in find_marks(loop) if mark.phase == "forward"]
    if len({mark.stage for _, mark in forward}) == len(forward):
        return
    # All of it before the first edit: the hash of an operation is made of its operands, and would change.
    found, barriers = _find(loop.regions[1].blocks[0], forward)
    for again, first in found:
        for result, value in zip(list(again.results), list(first.results), strict=True):
            result.replace_all_uses_with(value)
    for again, _ in found:
        again.erase()
    for barrier in barriers:
        split_barrier(barrier)


def _find(body: ir.Block, forward: Marks) -> tuple[list[tuple[ir.Operation, ir.Operation]], list[ir.Operation]]:
    """The marks that are computed again, each with the first one; and the barriers before them.

    A layer that is traced once and called several times leaves the same number on several stages: what it is made of
    tells whether this is another call, or the same one again.
    """
    same = _Same(body, {})
    numbers: dict[ir.Operation, int] = {}
    # Those that may be the same: of one number, and made of the same marks. So each has few to be compared with.
    firsts: dict[tuple[int, str, frozenset[int]], list[ir.Operation]] = {}
    found: list[tuple[ir.Operation, ir.Operation]] = []
    barriers: dict[ir.Operation, None] = {}
    for op, mark in forward:
        before, on_the_way = _before(op, body, same.first)
        made_of = frozenset(numbers[each] for each in before)
        candidates = firsts.setdefault((mark.stage, mark.name, made_of), [])
        first = next((first for first in candidates if same.operands(op, first)), None)
        if first is None:
            same.first[op] = op
            numbers[op] = len(numbers)
            candidates.append(op)
        else:
            same.first[op] = first
            found.append((op, first))
            barriers.update(dict.fromkeys(on_the_way))
    return found, list(barriers)


@dataclass(frozen=True)
class _Same:
    """Whether two values of a loop body are the same computation, barriers aside.

    `first` has for each mark seen so far the one that it computes again, or itself.
    """

    body: ir.Block
    first: dict[ir.Operation, ir.Operation]

    def operands(self, one: ir.Operation, other: ir.Operation) -> bool:
        """Whether two operations have the same operands."""
        return len(one.operands) == len(other.operands) and self._all(zip(one.operands, other.operands, strict=True))

    def _all(self, pairs: Iterable[tuple[ir.Value, ir.Value]]) -> bool:
        work, seen = list(pairs), set[tuple[ir.Value, ir.Value]]()
        while work:
            pair = work.pop()
            one, other = map(self._through_barriers, pair)
            if pair in seen or one == other:
                continue
            seen.add(pair)
            op, its_op = self._producer(one), self._producer(other)
            if op is None or its_op is None or op.name != its_op.name or one.type != other.type:
                return False
            if len(op.regions):
                if not self._alike(op, its_op):
                    return False
            elif op in self.first or its_op in self.first:
                if self._mark(op) != self._mark(its_op) or _number(one) != _number(other):
                    return False
            elif len(op.operands) == len(its_op.operands) and _attributes(op) == _attributes(its_op):
                work.extend(zip(op.operands, its_op.operands, strict=True))
            else:
                return False
        return True

    def _alike(self, op: ir.Operation, its_op: ir.Operation) -> bool:
        """Whether all that a loop or conditional gets, constants aside, the other gets too.

        The same scan has other operands and results where its gradient is wanted.
        """
        values, its_values = (
            [value for value in operands_with_captures(each) if not self._is_constant(value)] for each in (op, its_op)
        )
        return all(any(self._all([(value, its)]) for its in its_values) for value in values)

    def _is_constant(self, value: ir.Value) -> bool:
        op = defining_op(value)
        return op is not None and all(map(self._is_constant, op.operands)) and not len(op.regions)

    def _mark(self, op: ir.Operation) -> ir.Operation | None:
        return self.first.get(op)

    def _producer(self, value: ir.Value) -> ir.Operation | None:
        op = defining_op(value)
        return op if op is not None and op.block == self.body else None

    def _through_barriers(self, value: ir.Value) -> ir.Value:
        while (op := self._producer(value)) is not None and _is_barrier(op):
            value = op.operands[_number(value)]
        return value


def _before(
    mark: ir.Operation, body: ir.Block, first: Mapping[ir.Operation, ir.Operation]
) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """The marks that a mark is made of, each as the first of its kind; and the barriers of several values before it."""
    marks: list[ir.Operation] = []
    barriers: list[ir.Operation] = []
    work, seen = list(mark.operands), set[ir.Value]()
    while work:
        value = work.pop()
        op = defining_op(value)
        if value in seen or op is None or op.block != body:
            continue
        seen.add(value)
        if op in first:
            marks.append(first[op])
        elif _is_barrier(op):
            work.append(op.operands[_number(value)])
            if len(op.operands) > 1:
                barriers.append(op)
        else:
            work.extend(operands_with_captures(op))
    return marks, barriers


def _is_barrier(op: ir.Operation) -> bool:
    return op.name == "stablehlo.optimization_barrier" and not boundary.is_mark(op)


def _number(value: ir.Value) -> int:
    return ir.OpResult(value).result_number


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in op.attributes}
