"""`split-accumulators`: what several stages add to one accumulator, each adds by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.ir.functions import terminator
from jaxpp.hlo_passes.ir.loop import MicrobatchLoop
from jaxpp.hlo_passes.ir.values import defining_op
from jaxpp.hlo_passes.stages.assign import Assignment


@dataclass(frozen=True)
class SplitAccumulators(Pass):
    """Adds to an accumulator what each task makes in that task: no summand waits for those of other stages.

    The gradient of a weight that several stages use (tied embeddings) is a sum over these stages. As JAX writes it, the
    stages' summands are added first, so that they cross from mesh to mesh for every microbatch. Reordered, each task
    adds its own, and `unroll-microbatches` gives every mesh an accumulator of its own: they are summed once, after the
    loop. Likewise for maxima. Any number of weights and stages.

    A factor that the loop doesn't change (the mean over the microbatches), a transposition, a reshape, and a
    conversion to a wider type are moved from a sum to its summands. A sum that something else uses too (the norm of
    one microbatch's gradient) stays as it is. Sums of floating point numbers are taken in another order afterwards.

    Preconditions: `find-microbatch-loop` ran.

    ```mlir
    %g = stablehlo.add %g1, %g0     // of stages 1 and 0   ==>   %s = stablehlo.add %sum, %g1
    %r = stablehlo.add %sum, %g                                  %r = stablehlo.add %s, %g0
    stablehlo.return %r                                          stablehlo.return %r
    ```
    """

    name: ClassVar[str] = "split-accumulators"

    def run(self, module: ir.Module) -> None:
        """Reorder the sums that the loop of `module` carries. Raises PassError as `outline-stages` does."""
        loop = MicrobatchLoop.of(module)
        positions = (position for position in range(len(loop.body.arguments)) if position not in loop.indices)
        found = [total for total in (_total(loop, position) for position in positions) if total is not None]
        if not found:
            return
        assignment = Assignment(loop.body, loop.stages, loop.indices)
        # All of it before the first edit: the hash of an operation is made of its operands, and would change.
        for total, groups in [(total, _by_stage(assignment, total.terms)) for total in found]:
            if groups:
                total.rewrite(loop.body, groups)


# Operations that a value is sent through, innermost first, each with the number of the operand that it is.
Through = tuple[tuple[ir.Operation, int], ...]


@dataclass(frozen=True, eq=False)
class _Term:
    """One summand of an accumulator: `value`, sent through some operations."""

    value: ir.Value
    through: Through

    def copied(self, ip: ir.InsertionPoint) -> ir.Value:
        """What it is, made at `ip`."""
        value = self.value
        for op, number in self.through:
            copy = op.clone(ip).operation
            copy.operands[number] = value
            value = copy.results[0]
        return value


@dataclass(frozen=True, eq=False)
class _Total:
    """A carried value whose next iteration is it and several terms, by one operation (`operator`).

    `ops` are the operations that combine them now, each before those that it uses.
    """

    position: int
    operator: str
    terms: list[_Term]
    ops: list[ir.Operation]

    def rewrite(self, body: ir.Block, groups: Sequence[Sequence[_Term]]) -> None:
        """Combine the accumulator with one group of terms after the other, in this order."""
        end = terminator(body)
        ip = ir.InsertionPoint(end)
        value: ir.Value = body.arguments[self.position]
        for group in groups:
            value = self._combine([value, self._combine([term.copied(ip) for term in group], ip)], ip)
        end.operands[self.position] = value
        for op in self.ops:
            op.erase()

    def _combine(self, values: Sequence[ir.Value], ip: ir.InsertionPoint) -> ir.Value:
        value, *others = values
        for other in others:
            made = ir.Operation.create(
                self.operator, results=[value.type], operands=[value, other], ip=ip, loc=self.ops[0].location
            )
            value = made.results[0]
        return value


def _by_stage(assignment: Assignment, terms: Sequence[_Term]) -> list[list[_Term]]:
    """The terms of each stage, in the order in which stages have all of theirs; none when they are of a single task.

    A stage adds what its forward makes together with what its backward makes: the accumulator is in one task of a stage
    at most. What every task can have is added last.
    """
    latest: dict[int, int] = {}
    groups: dict[int, list[_Term]] = {}
    tasks = [assignment.task_of(term.value) for term in terms]
    for term, task in zip(terms, tasks, strict=True):
        if task is not None:
            _, stage = assignment.tasks.kind_and_stage(task)
            latest[stage] = max(task, latest.get(stage, 0))
            groups.setdefault(stage, []).append(term)
    ordered = [groups[stage] for stage in sorted(groups, key=latest.__getitem__)]
    if len({task for task in tasks if task is not None}) < 2:
        return []
    ordered[-1].extend(term for term, task in zip(terms, tasks, strict=True) if task is None)
    return ordered


def _total(loop: MicrobatchLoop, position: int) -> _Total | None:
    """The sum or maximum that the loop carries at `position`, if it has two terms or more besides the accumulator."""
    value = terminator(loop.body).operands[position]
    op = defining_op(value)
    if op is None or op.name not in ("stablehlo.add", "stablehlo.maximum"):
        return None
    total = _Total(position, op.name, [], [])
    _collect(value, loop.body, total)
    accumulator = loop.body.arguments[position]
    own = [term for term in total.terms if term.value == accumulator]
    # An accumulator that something else reads too would have to come from the task that adds to it last.
    if len(total.terms) < 3 or len(own) != 1 or own[0].through or len(list(accumulator.uses)) != 1:
        return None
    total.terms.remove(own[0])
    return total


def _collect(value: ir.Value, body: ir.Block, total: _Total) -> None:
    """Add to `total` the terms of `value`, and the operations that combine them."""
    work: list[_Term] = [_Term(value, ())]
    while work:
        term = work.pop()
        ops, through = _next_sum(term, body, total.operator)
        if ops:
            total.ops.extend(ops)
            work.extend(_Term(operand, through) for operand in reversed(list(ops[-1].operands)))
        else:
            total.terms.append(term)


def _next_sum(term: _Term, body: ir.Block, operator: str) -> tuple[list[ir.Operation], Through]:
    """The operations from `term` down to a sum that nothing else uses, and what its terms are sent through; or none."""
    value, through, ops = term.value, term.through, list[ir.Operation]()
    while (op := defining_op(value)) is not None and op.block == body and len(list(value.uses)) == 1:
        ops.append(op)
        if op.name == operator:
            return ops, through
        number = _distributes(op, operator, body)
        if number is None:
            break
        value, through = op.operands[number], ((op, number), *through)
    return [], ()


def _distributes(op: ir.Operation, operator: str, body: ir.Block) -> int | None:
    """The operand of `op` for which `op` of a sum is the sum of `op` of its terms, if there is one."""
    if op.name in ("stablehlo.reshape", "stablehlo.transpose", "sdy.sharding_constraint"):
        return 0
    if op.name == "stablehlo.convert":
        widths = [_float_width(value) for value in (op.operands[0], op.results[0])]
        return 0 if 0 < widths[0] <= widths[1] else None
    if op.name not in ("stablehlo.multiply", "stablehlo.divide") or operator != "stablehlo.add":
        return None
    if not _float_width(op.results[0]):
        return None
    factors = {"stablehlo.multiply": (1, 0), "stablehlo.divide": (1,)}[op.name]
    factor = next((number for number in factors if _is_invariant(op.operands[number], body)), None)
    return None if factor is None else 1 - factor


def _float_width(value: ir.Value) -> int:
    """Bits of a floating point number; 0 for other types."""
    element = ir.RankedTensorType(value.type).element_type
    return element.width if isinstance(element, ir.FloatType) else 0


def _is_invariant(value: ir.Value, body: ir.Block) -> bool:
    """Whether a factor is a constant, or comes from outside of the loop."""
    op = defining_op(value)
    while op is not None and op.block == body and op.name in ("stablehlo.broadcast_in_dim", "stablehlo.convert"):
        value = op.operands[0]
        op = defining_op(value)
    if op is None:
        return value.owner != body
    return op.block != body or op.name == "stablehlo.constant"
