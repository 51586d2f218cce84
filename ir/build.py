"""Builders of operations. A new operation inherits sharding, task and location of the operation that it replaces."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.counted import wrapped
from jaxpp.ir.functions import body_of, has_side_effect, loop_body, nested, operations, terminator
from jaxpp.ir.tasks import inherit_task, latest_task, set_task
from jaxpp.ir.values import defining_op, is_used

NONE: Mapping[ir.Value, ir.Value] = {}
"""The empty mapping: no value stands for another one."""


def remake(
    op: ir.Operation,
    operands: Sequence[ir.Value] | None = None,
    types: Sequence[ir.Type] | None = None,
    changed: Mapping[str, ir.Attribute] | None = None,
    *,
    name: str = "",
    ip: ir.InsertionPoint | None = None,
    empty: bool = False,
) -> ir.Operation:
    """Copies `op`, in front of it or at `ip`, with other operands, result types, attributes or another name.

    The copy keeps all other attributes (the sharding and the task among them) and the location. The regions move into
    the copy, and the caller erases `op`. With `empty` the regions stay, and the caller fills the regions of the copy.
    With `types` the copy has no sharding unless `changed` gives one.
    """
    made = ir.Operation.create(
        name or op.name,
        results=[result.type for result in op.results] if types is None else list(types),
        operands=list(op.operands if operands is None else operands),
        attributes={name: value for name, value in op.attributes.items() if types is None or name != at.SHARDING}
        | dict(changed or {}),
        regions=len(op.regions),
        ip=ip or ir.InsertionPoint(op),
        loc=op.location,
    )
    for old, new in zip(op.regions, made.regions, strict=True):
        for block in [] if empty else list(old.blocks):
            block.append_to(new)
    return made


def replace(op: ir.Operation, values: Iterable[ir.Value]) -> None:
    """Replaces the results of `op` by `values`, and erases `op`."""
    for result, value in zip(list(op.results), list(values), strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def set_returned(function: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Makes a function return other values. Its type follows, and the types of its arguments; no attribute does."""
    block = body_of(function)
    end = terminator(block)
    remake(end, values)
    end.erase()
    types = ([value.type for value in each] for each in (block.arguments, values))
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def recarried(
    loop: ir.Operation,
    initial: Sequence[ir.Value] = (),
    *,
    without: Collection[int] = (),
    changed: Mapping[str, ir.Attribute] | None = None,
) -> ir.Operation:
    """Rebuilds a loop so that it also carries the values `initial`, which its body hands on unchanged for now.

    It no longer carries the values at the positions `without`: their initial values replace them, in the loop and after
    it. `changed` is as in `remake`. Returns the new loop.
    """
    operands, end = list(loop.operands), terminator(loop_body(loop))
    kept = [number for number in range(len(operands)) if number not in without]
    added = [[region.blocks[0].add_argument(v.type, loop.location) for v in initial] for region in loop.regions]
    replace(end, remake(end, [*(end.operands[number] for number in kept), *added[-1]]).results)
    carried = [*(operands[number] for number in kept), *initial]
    new = remake(loop, carried, [value.type for value in carried], changed)
    for block in (region.blocks[0] for region in new.regions):
        for number in sorted(without, reverse=True):
            block.arguments[number].replace_all_uses_with(operands[number])
            block.erase_argument(number)
    results = iter(new.results)
    replace(loop, [value if number in without else next(results) for number, value in enumerate(operands)])
    return new


def combine(operator: str, values: Sequence[ir.Value], ip: ir.InsertionPoint, location: ir.Location) -> ir.Value:
    """Folds `values` by a binary operation such as `stablehlo.add`, first to last; returns a single value as it is.

    Each new operation belongs to the latest of the tasks that make its operands.
    """
    total, *others = values
    for other in others:
        op = ir.Operation.create(operator, [total.type], [total, other], ip=ip, loc=location)
        set_task(op, latest_task([total, other]))
        total = op.results[0]
    return total


def sharded(value: ir.Value, sharding: ir.Attribute | None, source: ir.Value | None = None) -> ir.Value:
    """Gives a new operation's result a sharding (None: no mesh), and the task that makes `source`; returns `value`."""
    op = ir.OpResult(value).owner.operation
    if source is not None:
        inherit_task(op, defining_op(source))
    if op.name == "sdy.sharding_constraint" and sharding is not None:
        op.attributes["sharding"] = sharding
    elif sharding is not None:
        op.attributes[at.SHARDING] = sdy.TensorShardingPerValueAttr.get([sharding])
    return value


def shardings(found: Sequence[ir.Attribute | None]) -> dict[str, ir.Attribute]:
    """Returns the sharding attribute for results with these shardings; empty if one is None, as without a mesh."""
    known = [each for each in found if each is not None]
    return {at.SHARDING: sdy.TensorShardingPerValueAttr.get(known)} if len(known) == len(found) else {}


def constant(
    type_: ir.Type, number: int, *, ip: ir.InsertionPoint | None = None, loc: ir.Location | None = None
) -> ir.Value:
    """Returns a constant whose elements are all `number`; an integer wraps around, as in a computation."""
    element = ir.RankedTensorType(type_).element_type
    if isinstance(element, ir.ComplexType):  # jaxlib can't read its attribute
        op = ir.Operation.parse(f"%0 = stablehlo.constant dense<({number}.0, 0.0)> : {type_}").operation
        (ip or cast(ir.InsertionPoint, ir.InsertionPoint.current)).insert(op)
        return op.results[0]
    is_integer = isinstance(element, ir.IntegerType)
    each = ir.IntegerAttr.get(element, wrapped(number)) if is_integer else ir.Attribute.parse(f"{number}.0 : {element}")
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(type_, each), ip=ip, loc=loc)


def clone(
    op: ir.Operation, values: dict[ir.Value, ir.Value], ip: ir.InsertionPoint, same: Mapping[ir.Value, ir.Value] = NONE
) -> ir.Operation:
    """Copies `op` and its regions to `ip`; in the copy, `values` replaces the operands.

    `values` gains the results of `op`. `same` maps values to equal ones; these are then looked up in `values`.
    """
    copy = op.clone(ip).operation
    rewire(copy, values, same)
    values.update(zip(op.results, copy.results, strict=True))
    return copy


def rewire(
    op: ir.Operation,
    values: Mapping[ir.Value, ir.Value],
    same: Mapping[ir.Value, ir.Value] = NONE,
    uses: Sequence[ir.Value] | None = None,
) -> None:
    """Replaces what `op` and its regions use by the entries of `values`; `same` is as in `clone`.

    uses: the `operands_with_captures` of `op` where they are known, as reading them again takes as long as the rest.
    """
    if uses is not None and values.keys().isdisjoint(uses):
        return
    for part in (op, *nested(op)):  # a region may also capture an operand of `op`
        operands = part.operands
        for number, operand in enumerate(operands):
            source = same.get(operand, operand) if same else operand
            new = values.get(source, source)
            if new is not operand:
                operands[number] = new


def erase_dead(block: ir.Block, *, marks: bool = False) -> None:
    """Erases the operations of a block whose results nobody uses, except stage marks and those with side effects.

    With `marks` it erases unused stage marks too. A barrier of several values, as `jax.checkpoint` makes it, keeps
    the values that are used.
    """
    for op in reversed(operations(block)[:-1]):
        results = op.results
        if len(results) == 1 and is_used(results[0]):
            continue
        used = [is_used(result) for result in results]
        if any(used):
            if not all(used) and boundary.is_barrier(op):
                split_barrier(op, [[number for number, each in enumerate(used) if each]])
        elif used and (marks or not boundary.is_mark(op)) and not has_side_effect(op):
            op.erase()


def split_barrier(op: ir.Operation, groups: Iterable[Sequence[int]] = ()) -> dict[int, ir.Value]:
    """Replaces a barrier by one barrier for each group of its values, or for each value if no groups are given.

    Returns the new results, by the positions of the values.
    """
    results: dict[int, ir.Value] = {}
    for group in filter(None, groups or ([number] for number in range(len(op.operands)))):
        old = [op.results[number] for number in group]
        known = shardings([at.value_sharding(result) for result in old])
        made = remake(op, [op.operands[number] for number in group], [result.type for result in old], known)
        for number, result, new in zip(group, old, made.results, strict=True):
            result.replace_all_uses_with(new)
            results[number] = new
    op.erase()
    return results
