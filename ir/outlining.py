"""Making a function of some operations of a block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from jaxpp.ir.attributes import set_tables
from jaxpp.ir.build import clone, rewire
from jaxpp.ir.functions import body_of, create, operands_with_captures
from jaxpp.ir.shardings import Shardings, boundary_attributes


@dataclass(frozen=True)
class Outlined:
    """A new function, the values to call it with, and the values that its results stand for."""

    function: ir.Operation
    inputs: list[ir.Value]
    outputs: list[ir.Value]


class Member(NamedTuple):
    """An operation for a new function.

    Attributes:
        op: the operation.
        uses: what it uses, its regions included (`operands_with_captures`).
        results: what it makes.
        moves: whether it moves there, much faster than a clone: for one that no other function needs. What uses its
            results elsewhere is for the caller to change.
    """

    op: ir.Operation
    uses: Sequence[ir.Value]
    results: Sequence[ir.Value]
    moves: bool = False


def outline(
    module: ir.Module,
    name: str,
    ops: Sequence[ir.Operation],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, ir.Attribute],
    shardings: Shardings,
) -> Outlined:
    """Clone `ops` (in program order, one block) into a new private function that returns `outputs`.

    Its arguments are the values that `ops` use and don't define, in the order of their first use. The originals stay
    where they are, untouched: cheap ones may be cloned into several functions.
    """
    members = [Member(op, operands_with_captures(op), list(op.results)) for op in ops]
    return outline_members(module, name, members, outputs, attributes, shardings)


def outline_members(
    module: ir.Module,
    name: str,
    members: Sequence[Member],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, ir.Attribute],
    shardings: Shardings,
) -> Outlined:
    """As `outline`, of operations that were read before, and may move."""
    made = {result for member in members for result in member.results}
    used = dict.fromkeys([value for member in members for value in member.uses])
    arguments = [value for value in (used | dict.fromkeys(outputs)) if value not in made]
    function = create(module, name, [v.type for v in arguments], [v.type for v in outputs], attributes)
    set_tables(function, boundary_attributes(shardings, arguments), boundary_attributes(shardings, list(outputs)))
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
    func.return_([values.get(value, value) for value in outputs], ip=ip, loc=ir.Location.unknown())
    return Outlined(function, arguments, list(outputs))


def copy_function(
    module: ir.Module,
    name: str,
    types: Sequence[ir.Type],
    attributes: Mapping[str, ir.Attribute],
    source: list[dict[str, ir.Attribute]],
    target: list[dict[str, ir.Attribute]],
) -> ir.Operation:
    """Make a private function that returns its arguments, which have the attributes `source`, as its results: `target`.

    The runtime copies where they differ in memory or mesh, and compiles nothing.
    """
    function = create(module, name, types, types, attributes)
    set_tables(function, source, target)
    block = body_of(function)
    func.return_(list(block.arguments), ip=ir.InsertionPoint(block), loc=ir.Location.unknown())
    return function


def clone_into(
    block: ir.Block,
    ops: Sequence[ir.Operation],
    values: dict[ir.Value, ir.Value],
    same: Mapping[ir.Value, ir.Value],
) -> None:
    """Clone `ops` to the end of `block`, rewiring what they use through `values`, which gains their results."""
    ip = ir.InsertionPoint(block)
    for op in ops:
        clone(op, values, ip, same)
