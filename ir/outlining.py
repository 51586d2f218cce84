"""Making a function of some operations of a block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from jaxpp.ir.attributes import set_tables
from jaxpp.ir.build import clone
from jaxpp.ir.functions import body_of, create, operands_with_captures
from jaxpp.ir.shardings import Shardings, boundary_attributes


@dataclass(frozen=True)
class Outlined:
    """A new function, the values to call it with, and the values that its results stand for."""

    function: ir.Operation
    inputs: list[ir.Value]
    outputs: list[ir.Value]


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
    made = {result for op in ops for result in op.results}
    used = dict.fromkeys(value for op in ops for value in operands_with_captures(op))
    arguments = [value for value in (used | dict.fromkeys(outputs)) if value not in made]
    function = create(module, name, [v.type for v in arguments], [v.type for v in outputs], attributes)
    set_tables(function, boundary_attributes(shardings, arguments), boundary_attributes(shardings, list(outputs)))
    block = body_of(function)
    values: dict[ir.Value, ir.Value] = dict(zip(arguments, block.arguments, strict=True))
    clone_into(block, ops, values, {})
    func.return_([values[value] for value in outputs], ip=ir.InsertionPoint(block), loc=ir.Location.unknown())
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
