"""Small rewrites that give loops one form, whoever wrote them."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir import boundary
from jaxpp.hlo_passes.ir.functions import nested, operations, terminator
from jaxpp.hlo_passes.ir.values import is_used
from jaxpp.hlo_passes.loop.counted import advance, constant_integer, counters


def drop_scalar_constraints(main: ir.Operation) -> None:
    """Explicit mesh axes put a constraint on every value, the counter too; a scalar has nothing to constrain."""
    for op in list(nested(main)):
        if op.name == "sdy.sharding_constraint" and ir.RankedTensorType(op.operands[0].type).rank == 0:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def drop_invariants(loop: ir.Operation) -> ir.Operation:
    """Rebuild `loop` without the carried values that its body returns unchanged; returns the new loop."""
    body = loop.regions[1].blocks[0]
    yielded = list(terminator(body).operands)
    invariant = [yielded[i] == argument for i, argument in enumerate(body.arguments)]
    kept = [i for i, same in enumerate(invariant) if not same]
    if len(kept) == len(invariant):
        return loop
    position = {i: number for number, i in enumerate(kept)}
    operands = list(loop.operands)
    attributes = {name: loop.attributes[name] for name in (at.LOOP,) if name in loop.attributes}
    new = ir.Operation.create(
        "stablehlo.while",
        results=[operands[i].type for i in kept],
        operands=[operands[i] for i in kept],
        attributes=attributes,
        regions=2,
        ip=ir.InsertionPoint(loop),
        loc=loop.location,
    )
    _return_only(body, kept)
    for i, result in enumerate(loop.results):
        result.replace_all_uses_with(operands[i] if invariant[i] else new.results[position[i]])
    for old, region in zip(list(loop.regions), list(new.regions), strict=True):
        block = old.blocks[0]
        block.append_to(region)
        for i in reversed(range(len(invariant))):
            if invariant[i]:
                block.arguments[i].replace_all_uses_with(operands[i])
                block.erase_argument(i)
    loop.erase()
    return new


def count_from_zero(loop: ir.Operation) -> None:
    """Let each integer that the body advances by a constant count from a constant, by one addition.

    The start, where it is no constant, is added where the body and what follows the loop use the number: each stage
    can do so by itself, whatever microbatch ran before, though several stages advance the number.
    """
    body, end = loop.regions[1].blocks[0], terminator(loop.regions[1].blocks[0])
    tested = loop.regions[0].blocks[0].arguments
    counting = {position for position, *_ in counters(loop)}
    for position, argument in enumerate(body.arguments):
        step = advance(argument, end.operands[position])
        if step is None or position in counting or is_used(tested[position]):
            continue
        start, ip = loop.operands[position], ir.InsertionPoint(loop)
        if constant_integer(start) is None:
            loop.operands[position] = _constant(start.type, 0, ip, loop.location)
            _add_to(argument, start, ir.InsertionPoint.at_block_begin(body), loop.location)
            _add_to(loop.results[position], start, ir.InsertionPoint.after(loop), loop.location)
        ip = ir.InsertionPoint(end)
        constant = _constant(start.type, step, ip, loop.location)
        end.operands[position] = _add(argument, constant, ip, loop.location).results[0]


def _add_to(value: ir.Value, start: ir.Value, ip: ir.InsertionPoint, location: ir.Location) -> None:
    """Let the users of `value` use it plus `start`."""
    if is_used(value):
        total = _add(start, start, ip, location)
        value.replace_all_uses_with(total.results[0])
        total.operands[1] = value


def _add(left: ir.Value, right: ir.Value, ip: ir.InsertionPoint, location: ir.Location) -> ir.Operation:
    return ir.Operation.create("stablehlo.add", results=[left.type], operands=[left, right], ip=ip, loc=location)


def _constant(type_: ir.Type, number: int, ip: ir.InsertionPoint, location: ir.Location) -> ir.Value:
    element = ir.IntegerAttr.get(ir.RankedTensorType(type_).element_type, number)
    attributes: dict[str, ir.Attribute] = {"value": ir.DenseElementsAttr.get_splat(type_, element)}
    made = ir.Operation.create("stablehlo.constant", results=[type_], attributes=attributes, ip=ip, loc=location)
    return made.results[0]


def split_barriers(loop: ir.Operation) -> None:
    """Make a barrier of several values, one of which is marked, one barrier per value: they belong to several stages.

    `jax.checkpoint` makes such barriers, of what it keeps and of the gradient that the recomputation waits for. When
    its function ends in a mark, that gradient is the next stage's.
    """
    for op in operations(loop.regions[1].blocks[0]):
        if op.name != "stablehlo.optimization_barrier" or boundary.is_mark(op) or len(op.operands) == 1:
            continue
        if not any(boundary.is_mark(use.owner.operation) for result in op.results for use in result.uses):
            continue
        split_barrier(op)


def split_barrier(op: ir.Operation) -> None:
    """Make a barrier of several values one barrier for each."""
    for result, operand in zip(list(op.results), list(op.operands), strict=True):
        alone = ir.Operation.create(
            op.name, results=[operand.type], operands=[operand], ip=ir.InsertionPoint(op), loc=op.location
        )
        result.replace_all_uses_with(alone.results[0])
    op.erase()


def _return_only(body: ir.Block, kept: list[int]) -> None:
    end = terminator(body)
    values = list(end.operands)
    ir.Operation.create(
        "stablehlo.return", operands=[values[i] for i in kept], ip=ir.InsertionPoint(end), loc=end.location
    )
    end.erase()
