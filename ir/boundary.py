"""Marks in the IR: stage marks (`jaxpp.boundary`), and the marks of units in a stage, whose attribute has no value."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir.attributes import BOUNDARY, attribute_of, plain
from jaxpp.ir.errors import PassError

BARRIER = "stablehlo.optimization_barrier"
COMPOSITE = "jaxpp.stage_boundary"
"""The name of a `stablehlo.composite` that is a stage mark; its attributes are those of the mark."""
FORM = '{stage = 0 : i64, phase = "forward" | "backward", name = "..."}'


@dataclass(frozen=True)
class Boundary:
    """A stage mark: stage `stage` ends here (`forward`), or its gradient enters here (`backward`).

    layer: the iteration that the mark comes from, where it stood in a loop over layers.
    """

    stage: int
    phase: str
    name: str = ""
    layer: int | None = None


Marks = Sequence[tuple[ir.Operation, Boundary]]
"""The operations that are stage marks, in program order, each with its `Boundary`."""


def is_mark(op: ir.Operation) -> bool:
    """Whether `op` is a stage mark."""
    return is_any_mark(op) and not is_unit_mark(op)


def is_unit_mark(op: ir.Operation) -> bool:
    """Whether `op` marks the end of a unit of a stage; its one operand is the unit's result."""
    return op.name == BARRIER and isinstance(op.attributes.get(BOUNDARY), ir.UnitAttr)


def is_any_mark(op: ir.Operation) -> bool:
    """Whether `op` marks the end of a stage or of a unit."""
    return op.name == BARRIER and BOUNDARY in op.attributes


def unit_mark(value: ir.Value, ip: ir.InsertionPoint | None = None) -> ir.Value:
    """Makes the mark of a unit that ends with `value`; returns the mark's result."""
    barrier = stablehlo.OptimizationBarrierOp([value], ip=ip)
    barrier.operation.attributes[BOUNDARY] = ir.UnitAttr.get()
    return barrier.results[0]


def is_composite_mark(op: ir.Operation) -> bool:
    """Whether `op` is a stage mark in the form for producers that can't put attributes on a barrier."""
    return op.name == "stablehlo.composite" and plain(op.attributes.get("name")) == COMPOSITE


def mark_of_composite(op: ir.Operation) -> list[ir.Value]:
    """Makes the mark that a composite stands for, before it; returns the mark's results.

    Raises PassError if the composite's attributes are not those of a mark.
    """
    if [each.type for each in op.operands] != [each.type for each in op.results]:
        raise PassError(f'a composite "{COMPOSITE}" must return what it takes', location=op.location)
    barrier = stablehlo.OptimizationBarrierOp(list(op.operands), loc=op.location, ip=ir.InsertionPoint(op))
    try:
        given: dict[str, Any] = plain(op.attributes.get("composite_attributes")) or {}
        barrier.operation.attributes[BOUNDARY] = attribute_of({"name": "", **given})
    except RuntimeError:  # a text that is not UTF-8
        hint = f"a stage mark has the form {FORM}"
        raise PassError(f"unknown form of {BOUNDARY}", location=op.location, hint=hint) from None
    read(barrier.operation)
    return list(barrier.results)


def is_barrier(op: ir.Operation) -> bool:
    """Whether `op` is a barrier and no mark, as `jax.checkpoint` makes them."""
    return op.name == BARRIER and BOUNDARY not in op.attributes


def read(op: ir.Operation) -> Boundary:
    """Returns the mark that `op` carries. Raises PassError when its form is unknown."""
    fields = plain(op.attributes[BOUNDARY])
    kinds = {"stage": int, "phase": str, "name": str, "layer": int}
    is_known = isinstance(fields, dict) and all(type(fields[name]) is kinds.get(name) for name in fields)
    if not is_known or fields.get("stage", -1) < 0 or fields.get("phase") not in ("forward", "backward"):
        found, hint = op.attributes[BOUNDARY], f"a stage mark has the form {FORM}"
        raise PassError(f"unknown form of {BOUNDARY}: {found}", location=op.location, hint=hint)
    return Boundary(**fields)


def write(op: ir.Operation, mark: Boundary) -> None:
    """Replaces the mark that `op` carries."""
    fields = asdict(mark).items()
    op.attributes[BOUNDARY] = attribute_of({name: value for name, value in fields if value is not None})
