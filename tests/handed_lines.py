"""Compares what a pass is handed of a straight line (`jaxpp.ir.steps`) with what stands in the module."""

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.mesh_functions import read_meshes
from jaxpp.ir.phases import read_main
from jaxpp.ir.read_line import Tables
from jaxpp.ir.steps import MainLine, MeshLines, Step


def check(module: ir.Module, line: MainLine | MeshLines) -> None:
    """Raise AssertionError where `line` is not what a pass that runs alone reads."""
    if isinstance(line, MainLine):
        _compare(line.steps, read_main(module, placed=line.placed).steps)
        return
    tables = Tables(module, {})
    for found, expected in zip(line.lines, read_meshes(module).lines, strict=True):
        assert found.values == expected.values
        _compare(found.steps, expected.steps)
        for one, other in zip(found.steps, expected.steps, strict=True):
            assert one.channel is None or one.channel == tables.channel(other)
            assert one.last_use is None or list(one.last_use) == at.integers(other.op, at.LAST_USE)


_TASK = (at.STAGE, at.MICROBATCH, at.SLICE, at.MESH)


def _compare(found: Sequence[Step[Any]], expected: Sequence[Step[Any]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.op, one.name, one.operands) == (other.op, other.name, other.operands)
        assert list(one.results) == list(other.results)
        assert one.callee == other.callee
        assert one.task is None or one.task == tuple(at.integer(other.op, name) or 0 for name in _TASK)
        if other.function is not None:
            assert (one.function, one.kind, list(one.meshes)) == (other.function, other.kind, list(other.meshes))
