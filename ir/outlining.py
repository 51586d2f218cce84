"""Makes functions of operations of a block."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.attributes import set_tables
from jaxpp.ir.build import NONE, clone, rewire
from jaxpp.ir.functions import body_of, call, create, operations, set_results
from jaxpp.ir.numbered import Member
from jaxpp.ir.shardings import Shardings, boundary_attributes
from jaxpp.ir.tensors import check_arrays


@dataclass(frozen=True)
class Outlined:
    """A new function, the values to call it with, and the values that its results stand for."""

    function: ir.Operation
    inputs: list[ir.Value]
    outputs: list[ir.Value]

    def call(
        self, values: Mapping[ir.Value, ir.Value], attributes: Mapping[str, ir.Attribute], before: ir.Operation
    ) -> ir.Operation:
        """Calls the function in front of `before`. `values` replaces its inputs; an input without an entry stays."""
        operands = [values.get(value, value) for value in self.inputs]
        return call(self.function, operands, attributes, ir.InsertionPoint(before), before.location)


def outline(
    module: ir.Module,
    name: str,
    members: Iterable[Member],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, ir.Attribute],
    shardings: Shardings,
) -> Outlined:
    """Outlines operations (in program order, of one block) as a new private function that returns `outputs`.

    Its arguments are the values that the operations use and don't make, in the order of their first use. An operation
    that is cloned stays in place, so that a cheap one can be in several functions. Raises PassError for a value that no
    array holds.
    """
    members = list(members)
    made = {result for member in members for result in member.results}
    used = dict.fromkeys([value for member in members for value in member.uses])
    arguments = [value for value in (used | dict.fromkeys(outputs)) if value not in made]
    check_arrays(arguments, f"enters @{name}")
    check_arrays(outputs, f"leaves @{name}")
    function = create(module, name, [v.type for v in arguments], [v.type for v in outputs], attributes)
    set_tables(function, boundary_attributes(shardings, arguments), boundary_attributes(shardings, outputs))
    block = body_of(function)
    ip = ir.InsertionPoint(block)
    values: dict[ir.Value, ir.Value] = dict(zip(arguments, block.arguments, strict=True))
    for member in members:
        op = member.op
        if member.moves:
            block.append(op)
        else:
            op = op.clone(ip).operation
            values.update(zip(member.results, op.results, strict=True))
        rewire(op, values, uses=member.uses)
    set_results(function, [values.get(value, value) for value in outputs])
    return Outlined(function, arguments, list(outputs))


def outline_task(
    module: ir.Module,
    kind: str,
    name: str,
    members: Sequence[Member],
    outputs: Sequence[ir.Value],
    old: ir.Operation,
    values: Mapping[ir.Value, ir.Value],
) -> dict[ir.Value, ir.Value]:
    """Outlines a part of the task that `old` calls, and calls this part in front of `old`, as a task of this kind.

    `values` maps values of the old function to values around `old`. Returns such a mapping for `outputs`; it is empty
    if nothing is left to do.
    """
    if not members and not outputs:
        return {}
    stage = {at.STAGE: old.attributes[at.STAGE]}
    attributes = {at.KIND: ir.StringAttr.get(kind), **stage}
    part = outline(module, name, members, outputs, attributes, Shardings(module))
    return dict(zip(outputs, part.call(values, stage, old).results, strict=True))


def copy_function(
    module: ir.Module,
    name: str,
    types: Sequence[ir.Type],
    attributes: Mapping[str, ir.Attribute],
    source: list[dict[str, ir.Attribute]],
    target: list[dict[str, ir.Attribute]],
) -> ir.Operation:
    """Makes a private function that returns its arguments. These have the attributes `source`, the results `target`.

    Where the two differ in memory or mesh, the runtime copies the values. It compiles nothing.
    """
    function = create(module, name, types, types, attributes)
    set_tables(function, source, target)
    set_results(function, list(body_of(function).arguments))
    return function


def clone_into(
    block: ir.Block,
    ops: Sequence[ir.Operation],
    values: dict[ir.Value, ir.Value],
    same: Mapping[ir.Value, ir.Value] = NONE,
) -> None:
    """Clones `ops` to the end of `block`; `values` and `same` are as in `clone`."""
    ip = ir.InsertionPoint(block)
    for op in ops:
        clone(op, values, ip, same)


def clone_body(block: ir.Block, function: ir.Operation, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    """Clones the body of a function, called with `arguments`, to the end of `block`; returns the function's results."""
    *ops, end = operations(body_of(function))
    values: dict[ir.Value, ir.Value] = dict(zip(body_of(function).arguments, arguments, strict=True))
    clone_into(block, ops, values)
    return [values[value] for value in end.operands]
