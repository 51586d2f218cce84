"""Compares what passes hand on (`jaxpp.ir.steps`, `jaxpp.ir.mesh_lines`) with what stands in the module."""

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.mesh_lines import Literal, MeshLine, MeshLines
from jaxpp.ir.phases import read_main
from jaxpp.ir.read_lines import read_lines
from jaxpp.ir.steps import MainLine, Step
from jaxpp.ir.tensors import constant_text
from jaxpp.ir.write_lines import write_lines


def check(module: ir.Module, line: MainLine) -> None:
    """Raise AssertionError where `line` is not what a pass that runs alone reads."""
    _compare(line.steps, read_main(module, placed=line.placed).steps)


def write_and_check(module: ir.Module, program: MeshLines) -> None:
    """Write `program` into the module. Raise AssertionError where the text says something else."""
    with module.context:
        before = [_as_data(line) for line in program.lines]
        write_lines(module, program)
        for expected, line in zip(before, read_lines(module).lines, strict=True):
            assert _as_data(line) == expected


def _as_data(line: MeshLine) -> list[Any]:
    sequence = [
        (each.result, constant_text(each.op)) if isinstance(each, Literal) else str(each) + repr(each)
        for each in line.sequence
    ]
    ends = line.mesh, line.peak, line.host_peak, line.arguments, line.results, line.returned
    return [*ends, sequence, line.received, list(map(str, line.locations))]


_TASK = (at.STAGE, at.MICROBATCH, at.SLICE, at.MESH)


def _compare(found: Sequence[Step], expected: Sequence[Step]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.op, one.name, one.operands) == (other.op, other.name, other.operands)
        assert list(one.results) == list(other.results)
        assert one.callee == other.callee
        assert one.task is None or one.task == tuple(at.integer(other.op, name) or 0 for name in _TASK)
        if other.function is not None:
            assert (one.function, one.kind, list(one.meshes)) == (other.function, other.kind, list(other.meshes))
