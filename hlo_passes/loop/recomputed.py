"""Stage marks inside of `jax.checkpoint`: the backward rematerialises the marked values, which are there already."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Marks
from jaxpp.ir.build import replace, split_barrier
from jaxpp.ir.functions import loop_body, operands_with_captures
from jaxpp.ir.values import closure, defining_op


def reuse_recomputed_marks(loop: ir.Operation, marks: Marks) -> Marks:
    """Replace each mark that `jax.checkpoint` rematerialises by the first mark of the same value.

    Each stage then rematerialises from its own boundary on, whatever the checkpoint encloses: a block with a mark,
    or the whole model. A barrier of `jax.checkpoint` would then hold values of several stages, so that each value gets
    a barrier of its own. Returns the marks that stay.
    """
    forward = [mark.stage for _, mark in marks if mark.phase == "forward"]
    if len(set(forward)) == len(forward):
        return marks
    body = loop_body(loop)
    same = _Same(body, {})
    # Marks that may be equal have one number and depend on the same marks, so that each is compared with few others.
    firsts: dict[tuple[int, str, int | None, frozenset[int]], list[ir.Operation]] = {}
    barriers: dict[ir.Value, None] = {}
    again: set[int] = set()
    for number, (op, mark) in enumerate(marks):
        if mark.phase == "backward":
            continue
        # A layer that is traced once and called several times has marks of one number in several stages. The marks on
        # which a mark depends tell whether it is another call's, or the same one's again.
        made_of, on_the_way = _before(op, body, same.marks)
        candidates = firsts.setdefault((mark.stage, mark.name, at.integer(op, at.SLICE), made_of), [])
        first = next((first for first in candidates if same.operands(op, first)), None)
        if first is None:
            candidates.append(op)
            same.marks.update(dict.fromkeys(op.results, len(same.marks)))
        else:
            replace(op, first.results)
            again.add(number)
            barriers.update(dict.fromkeys(on_the_way))
    for value in barriers:
        split_barrier(ir.OpResult(value).owner.operation)
    return [each for number, each in enumerate(marks) if number not in again]


@dataclass(frozen=True)
class _Same:
    """Tells whether two values of a loop body are the same computation, barriers aside.

    `marks` numbers the results of the marks seen so far; of equal marks it has the first one's.
    """

    body: ir.Block
    marks: dict[ir.Value, int]

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
            elif one in self.marks or other in self.marks:
                return False
            elif len(op.operands) == len(its_op.operands) and _attributes(op) == _attributes(its_op):
                work.extend(zip(op.operands, its_op.operands, strict=True))
            else:
                return False
        return True

    def _alike(self, op: ir.Operation, its_op: ir.Operation) -> bool:
        """Return whether one loop or conditional gets all values that the other gets, constants aside.

        A scan has more operands and results if its gradient is wanted, so that the two need not be equal.
        """
        values, its_values = (
            [value for value in operands_with_captures(each) if not self._is_constant(value)] for each in (op, its_op)
        )
        return all(any(self._all([(value, its)]) for its in its_values) for value in values)

    def _is_constant(self, value: ir.Value) -> bool:
        op = defining_op(value)
        return op is not None and all(map(self._is_constant, op.operands)) and not len(op.regions)

    def _producer(self, value: ir.Value) -> ir.Operation | None:
        op = defining_op(value)
        return op if op is not None and op.block == self.body else None

    def _through_barriers(self, value: ir.Value) -> ir.Value:
        while (op := self._producer(value)) is not None and boundary.is_barrier(op):
            value = op.operands[_number(value)]
        return value


def _before(mark: ir.Operation, body: ir.Block, marks: Mapping[ir.Value, int]) -> tuple[frozenset[int], list[ir.Value]]:
    """Return the numbers of the marks on which a mark depends, and one result of each larger barrier before it."""
    barriers: list[ir.Value] = []

    def operands(value: ir.Value) -> Sequence[ir.Value]:
        op = defining_op(value)
        if op is None or op.block != body or value in marks:
            return ()
        if not boundary.is_barrier(op):
            return operands_with_captures(op)
        barriers.extend(op.results[:1] if len(op.operands) > 1 else ())
        return [op.operands[_number(value)]]

    found = closure(mark.operands, operands)
    return frozenset(marks[value] for value in found if value in marks), barriers


def _number(value: ir.Value) -> int:
    return ir.OpResult(value).result_number


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    """What tells an operation from another of its name; JAX moves some of a slice in front of the loop."""
    return {name: op.attributes[name] for name in op.attributes if name != at.SLICE}
