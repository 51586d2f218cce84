"""Faults in the sums of gradients, of twelve kinds that a broken pass may make."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from fuzz.planted import Site
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import ADD, SUBTRACT, UPDATES, carried_updates, updates
from jaxpp.ir.build import constant, replace
from jaxpp.ir.functions import body_of, callee, functions, kind_and_stage, main_of, nested, operations
from jaxpp.ir.linear_terms import is_sum
from jaxpp.ir.ops import float_width, shape_of
from jaxpp.ir.tasks import inherit_task
from jaxpp.ir.values import is_used, is_zero

_THROUGH = (*UPDATES, "sdy.sharding_constraint")
Sites = Iterator[tuple[ir.Operation, Site]]


def additions(module: ir.Module) -> Iterator[tuple[ir.Operation, int]]:
    """Yields each addition to the sum of a gradient in a task, or in the loop, and the number of its other operand.

    An addition of zeros is none: no fault in it changes a result.
    """
    by_name = functions(module)
    main = by_name.get("main")
    loops = [op for op in operations(body_of(main)) if at.LOOP in op.attributes] if main is not None else []
    found = [carried_updates(loop, n, _THROUGH) for loop in loops for n in range(len(loop.operands))]
    for function in by_name.values():
        if kind_and_stage(function)[1] >= 0:
            every = (updates(body_of(function), n, _THROUGH) for n in range(len(body_of(function).arguments)))
            found += [each.uses for each in every if each is not None]
    for use in (use for uses in found for use in uses):
        op = use.owner.operation
        if op.name == ADD and is_gradient(op.results[0]) and not is_zero(op.operands[1 - use.operand_number]):
            yield op, 1 - use.operand_number


def is_gradient(value: ir.Value) -> bool:
    """Whether a sum may be of gradients: it has fractions, and dimensions."""
    return float_width(value) > 0 and bool(shape_of(value))


def lost_term(module: ir.Module) -> Sites:
    """Adds nothing."""
    for op, term in additions(module):
        yield op, partial(replace, op, [op.operands[1 - term]])


def lost_sum(module: ir.Module) -> Sites:
    """Forgets what earlier microbatches added."""
    for op, term in additions(module):
        yield op, partial(replace, op, [op.operands[term]])


def doubled_term(module: ir.Module) -> Sites:
    """Adds each term twice."""
    for op, term in additions(module):
        yield op, partial(_apply, op, stablehlo.add, op.operands[term])


def mean_for_sum(module: ir.Module) -> Sites:
    """Divides each term by a number of microbatches."""

    def divide(op: ir.Operation, term: int) -> None:
        four = constant(op.operands[term].type, 4, ip=ir.InsertionPoint(op), loc=op.location)
        inherit_task(_maker(four), op)
        made = stablehlo.divide(op.operands[term], four, ip=ir.InsertionPoint(op), loc=op.location)
        inherit_task(_maker(made), op)
        op.operands[term] = made

    for op, term in additions(module):
        yield op, partial(divide, op, term)


def subtracted(module: ir.Module) -> Sites:
    """Subtracts each term."""

    def subtract(op: ir.Operation, term: int) -> None:
        operands = [op.operands[1 - term], op.operands[term]]
        made = stablehlo.subtract(*operands, ip=ir.InsertionPoint(op), loc=op.location)
        inherit_task(_maker(made), op)
        replace(op, [made])

    for op, term in additions(module):
        yield op, partial(subtract, op, term)


def early_clip(module: ir.Module) -> Sites:
    """Clips the sum of some microbatches."""
    for op, _ in additions(module):
        yield op, partial(_apply, op, stablehlo.minimum, 3)


def skipped_call(module: ir.Module) -> Sites:
    """Lets the next task go on from the sum before this microbatch."""
    known = functions(module)
    for op in nested(module.operation):
        if op.name != "func.call" or at.MICROBATCH not in op.attributes:
            continue
        body = body_of(known[callee(op)])
        for number, operand in enumerate(op.operands):
            found = updates(body, number, _THROUGH)
            is_sum_of = found is not None and any(use.owner.operation.name in (ADD, SUBTRACT) for use in found.uses)
            if found is not None and is_sum_of and is_gradient(operand) and is_used(op.results[found.result]):
                yield op, partial(op.results[found.result].replace_all_uses_with, operand)


def _parts(module: ir.Module) -> Iterator[ir.Operation]:
    """Yields the additions of the parts of a sum that several meshes or stages have."""
    known = functions(module)
    blocks = [body_of(each) for each in known.values() if kind_and_stage(each)[0] in ("after", "scatter")]
    if at.MESHES in module.operation.attributes and "main" in known and not _has_loop(module):
        blocks.append(body_of(known["main"]))
    for op in (op for block in blocks for op in operations(block)):
        if op.name == ADD and is_gradient(op.results[0]) and all(map(_is_given, op.operands)):
            yield op


def _is_given(value: ir.Value) -> bool:
    owner = value.owner
    return isinstance(owner, ir.Block) or owner.operation.name in ("func.call", ADD, "sdy.sharding_constraint")


def lost_part(module: ir.Module) -> Sites:
    """Drops the part of a stage or a mesh."""
    for op in _parts(module):
        yield op, partial(replace, op, [op.operands[0]])


def doubled_part(module: ir.Module) -> Sites:
    """Adds the part of a stage or a mesh twice."""
    for op in _parts(module):
        yield op, partial(_apply, op, stablehlo.add, op.operands[1])


def collectives(module: ir.Module) -> Iterator[ir.Operation]:
    """Yields the sums over devices of what leaves a `shard_map`."""
    for op in nested(module.operation):
        ends = [use.owner.operation.name == "sdy.return" for use in op.results[0].uses] if len(op.results) == 1 else []
        if op.name == "stablehlo.all_reduce" and all(ends) and ends and is_gradient(op.results[0]):
            yield op


def lost_collective(module: ir.Module) -> Sites:
    """Does not sum over the devices."""
    for op in collectives(module):
        yield op, partial(replace, op, [op.operands[0]])


def doubled_collective(module: ir.Module) -> Sites:
    """Sums over the devices twice."""

    def again(op: ir.Operation) -> None:
        made = op.clone(ir.InsertionPoint.after(op)).operation
        op.results[0].replace_all_uses_with(made.results[0])
        made.operands[0] = op.results[0]

    for op in collectives(module):
        yield op, partial(again, op)


def lost_rows(module: ir.Module) -> Sites:
    """Takes one device's row of a sum that is reduced after the loop."""

    def take(op: ir.Operation) -> None:
        shape = shape_of(op.operands[0])
        first, one = [0] * len(shape), [1] * len(shape)
        row = stablehlo.slice(op.operands[0], first, [1, *shape[1:]], one, ip=ir.InsertionPoint(op), loc=op.location)
        type_ = op.results[0].type
        replace(op, [stablehlo.reshape(type_, row, ip=ir.InsertionPoint(op), loc=op.location)])

    known, tasks = functions(module), {"forward", "backward", "weight_grad", "input_grad", "recompute"}
    around = [each for each in known.values() if not tasks & {*kind_and_stage(each)[0].split("+")}]
    for op in (op for function in around for op in operations(body_of(function))):
        is_delayed = op.name == "stablehlo.reduce" and is_sum(op) and at.integers(op, "dimensions") == [0]
        if is_delayed and is_gradient(op.results[0]):
            yield op, partial(take, op)


def _apply(op: ir.Operation, function: Callable[..., ir.Value], other: ir.Value | int) -> None:
    """Replaces the result of `op` by the result of a function of it, and of another value or a number."""
    ip, result = ir.InsertionPoint.after(op), op.results[0]
    makers = list[ir.Operation]()
    with ip, op.location:
        if isinstance(other, int):
            other = constant(result.type, other, ip=ip, loc=op.location)
            makers.append(_maker(other))
        made = function(result, other)
    makers.append(_maker(made))
    for maker in makers:
        inherit_task(maker, op)
    result.replace_all_uses_except(made, makers[-1])


def _maker(value: ir.Value) -> ir.Operation:
    return ir.OpResult(value).owner.operation


def _has_loop(module: ir.Module) -> bool:
    return any(at.LOOP in op.operation.attributes for op in body_of(main_of(module)).operations)


SUMS: dict[str, Callable[[ir.Module], Sites]] = {
    "a term that is lost": lost_term,
    "a sum that is lost": lost_sum,
    "a term that is added twice": doubled_term,
    "a mean for a sum": mean_for_sum,
    "a term that is subtracted": subtracted,
    "a clip before the sum": early_clip,
    "a microbatch that is left out": skipped_call,
    "a part that is lost": lost_part,
    "a part that is added twice": doubled_part,
    "a collective that is lost": lost_collective,
    "a collective that is doubled": doubled_collective,
    "rows that are not added": lost_rows,
}


@dataclass(frozen=True)
class SumFault(Pass):
    """A broken pass, which makes the fault of a kind at the site of this index."""

    kind: str
    site: int

    def run(self, module: ir.Module) -> None:
        """Makes the fault."""
        list(SUMS[self.kind](module))[self.site][1]()
