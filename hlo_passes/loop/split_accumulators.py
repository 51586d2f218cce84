"""`split-accumulators`: each stage adds its own summands to an accumulator that several stages share."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.accumulators import ADD, MAXIMUM, carried_updates
from jaxpp.ir.build import combine
from jaxpp.ir.functions import terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import linear_in, traits
from jaxpp.ir.tasks import StageTask, set_task, task_of_value
from jaxpp.ir.values import defining_op, only_use, origin


class SplitAccumulators(Pass):
    """Lets each task add its own summands to an accumulator: no task waits for a summand of another stage.

    The gradient of a weight that several stages use (tied embeddings) is a sum over these stages. JAX adds the stages'
    summands first, so that they cross from mesh to mesh for every microbatch. After this pass each task adds its own
    summand, and `unroll-microbatches` gives every mesh its own accumulator. The accumulators are summed once, after the
    loop. The same holds for maxima, and for any number of weights and stages.

    The pass moves some operations from a sum to its summands: a factor that the loop doesn't change (the mean over the
    microbatches), a transposition, a reshape, and a conversion to a wider type. A sum with another use (the norm of one
    microbatch's gradient) stays as it is. The pass changes the order in which floating-point numbers are added.

    Preconditions: `assign-stages` ran.

    ```mlir
    %g = stablehlo.add %g1, %g0     // of stages 1 and 0   ==>   %s = stablehlo.add %sum, %g1
    %r = stablehlo.add %sum, %g                                  %r = stablehlo.add %s, %g0
    stablehlo.return %r                                          stablehlo.return %r
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Reorders the sums that the loop of `module` carries. Raises PassError when there is no canonical loop."""
        loop = MicrobatchLoop.of(module)
        positions = (position for position in range(len(loop.body.arguments)) if position not in loop.indices)
        found = [total for total in (_total(loop, position) for position in positions) if total is not None]
        for total in found:
            groups = _by_stage(total.terms)
            if groups:
                total.rewrite(loop.body, groups)


# Operations that are applied to a value one after the other, each with the index of the operand that the value is.
Through = tuple[tuple[ir.Operation, int], ...]


@dataclass(frozen=True, eq=False)
class _Term:
    """One summand of an accumulator: `value`, to which the operations `through` are applied in order."""

    value: ir.Value
    through: Through

    def copied(self, ip: ir.InsertionPoint) -> ir.Value:
        """Applies copies of the operations to `value`, at `ip`, in the task that makes it; returns their result."""
        value, task = self.value, task_of_value(self.value)
        for op, number in self.through:
            copy = op.clone(ip).operation
            copy.operands[number] = value
            set_task(copy, task)
            value = copy.results[0]
        return value


@dataclass(frozen=True, eq=False)
class _Total:
    """A carried value to which the body adds several terms by one operation, `operator`: an addition or a maximum.

    `ops` are the operations that combine the terms now, users before producers.
    """

    position: int
    operator: str
    terms: list[_Term]
    ops: list[ir.Operation]

    def rewrite(self, body: ir.Block, groups: Sequence[Sequence[_Term]]) -> None:
        """Combines the accumulator with one group of terms after the other, in this order."""
        end = terminator(body)
        ip, location = ir.InsertionPoint(end), self.ops[0].location
        value: ir.Value = body.arguments[self.position]
        for group in groups:
            summand = combine(self.operator, [term.copied(ip) for term in group], ip, location)
            value = combine(self.operator, [value, summand], ip, location)
        end.operands[self.position] = value
        for op in self.ops:
            op.erase()


def _by_stage(terms: Sequence[_Term]) -> list[list[_Term]]:
    """Groups the terms by stage, in the order in which stages have their last term; empty if one task makes all terms.

    A stage adds the terms of its forward and its backward together: one task of a stage updates the accumulator. Terms
    without a task are added last.
    """
    latest: dict[int, StageTask] = {}
    groups: dict[int, list[_Term]] = {}
    free: list[_Term] = []
    tasks = [task_of_value(term.value) for term in terms]
    for term, task in zip(terms, tasks, strict=True):
        if task is None:
            free.append(term)
        else:
            latest[task.stage] = max(task, latest.get(task.stage, task))
            groups.setdefault(task.stage, []).append(term)
    if len(set(tasks) - {None}) < 2:
        return []
    ordered = [groups[stage] for stage in sorted(groups, key=latest.__getitem__)]
    ordered[-1].extend(free)
    return ordered


def _total(loop: MicrobatchLoop, position: int) -> _Total | None:
    """Returns the sum or maximum that the loop carries at `position`, if it has two terms besides the accumulator."""
    value = terminator(loop.body).operands[position]
    op = defining_op(value)
    # If another operation read the accumulator, that would have to be the value that the last task makes.
    if op is None or op.name not in (ADD, MAXIMUM) or not carried_updates(loop.op, position, (op.name,)):
        return None
    total = _Total(position, op.name, [], [])
    _collect(value, loop.body, total)
    total.terms.remove(next(term for term in total.terms if term.value == loop.body.arguments[position]))
    return total if len(total.terms) > 1 else None


def _collect(value: ir.Value, body: ir.Block, total: _Total) -> None:
    """Adds to `total` the terms of `value`, and the operations that combine them."""
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
    """Returns the operations from `term` to a sum without other uses, and those to apply to its terms; or nothing."""
    value, through, ops = term.value, term.through, list[ir.Operation]()
    while (op := defining_op(value)) is not None and op.block == body and only_use(value) is not None:
        ops.append(op)
        if op.name == operator:
            return ops, through
        number = _distributes(op, operator, body)
        if number is None:
            break
        value, through = op.operands[number], ((op, number), *through)
    return [], ()


def _distributes(op: ir.Operation, operator: str, body: ir.Block) -> int | None:
    """Returns the index of the operand in which `op` distributes over `operator`, or None."""
    if operator != ADD and not traits(op).view:
        return None
    for group in linear_in(op):
        others = (value for number, value in enumerate(op.operands) if number not in group)
        if len(group) == 1 and all(_is_invariant(value, body) for value in others):
            return group[0]
    return None


def _is_invariant(value: ir.Value, body: ir.Block) -> bool:
    """Returns whether a factor is a constant, or comes from outside of the loop."""
    value = origin(value, lambda op: op.block == body and traits(op).view)
    op = defining_op(value)
    if op is None:
        return value.owner != body
    return op.block != body or op.name == "stablehlo.constant"
