"""Marks in the IR: stage marks (`jaxpp.boundary`), and the marks of units inside a stage."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir.attributes import BOUNDARY, UNIT, attribute_of, plain
from jaxpp.ir.errors import PassError

BARRIER = "stablehlo.optimization_barrier"
FORM = '{stage = 0 : i64, phase = "forward" | "backward", name = "..."}'


@dataclass(frozen=True)
class Boundary:
    """A stage mark: stage `stage` ends here (`forward`), or its gradient enters here (`backward`)."""

    stage: int
    phase: str
    name: str = ""


Marks = Sequence[tuple[ir.Operation, Boundary]]
"""The operations that are stage marks, in program order, each with its `Boundary`."""


def is_mark(op: ir.Operation) -> bool:
    """Whether `op` is a stage mark."""
    return op.name == BARRIER and BOUNDARY in op.attributes


def is_unit_mark(op: ir.Operation) -> bool:
    """Whether `op` marks the end of a unit of a stage; its one operand is the unit's result."""
    return op.name == BARRIER and UNIT in op.attributes


def unit_mark(value: ir.Value, ip: ir.InsertionPoint | None = None) -> ir.Value:
    """Makes the mark of a unit that ends with `value`; returns the mark's result."""
    barrier = stablehlo.OptimizationBarrierOp([value], ip=ip)
    barrier.operation.attributes[UNIT] = ir.UnitAttr.get()
    return barrier.results[0]


def is_barrier(op: ir.Operation) -> bool:
    """Whether `op` is a barrier and no mark, as `jax.checkpoint` makes them."""
    return op.name == BARRIER and BOUNDARY not in op.attributes and UNIT not in op.attributes


def read(op: ir.Operation) -> Boundary:
    """Returns the mark that `op` carries. Raises PassError when its form is unknown."""
    match plain(op.attributes[BOUNDARY]):
        case {"stage": int(stage), "phase": "forward" | "backward" as phase, **others} if (
            stage >= 0 and others.keys() <= {"name"} and isinstance(name := others.get("name", ""), str)
        ):
            return Boundary(stage, phase, name)
        case _:
            found, hint = op.attributes[BOUNDARY], f"a stage mark has the form {FORM}"
            raise PassError(f"unknown form of {BOUNDARY}: {found}", location=op.location, hint=hint)


def write(op: ir.Operation, mark: Boundary) -> None:
    """Replaces the mark that `op` carries."""
    op.attributes[BOUNDARY] = attribute_of(asdict(mark))
