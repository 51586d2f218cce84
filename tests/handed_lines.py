"""Compares what a pass is handed of a straight line (`jaxpp.ir.steps`) with what stands in the module."""

from jaxlib.mlir import ir

from jaxpp.ir.functions import body_of, operations
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.phases import read_main
from jaxpp.ir.steps import MainLine, MeshLines, Step


def check(module: ir.Module, line: MainLine | MeshLines) -> None:
    """Raise AssertionError where `line` is not what a pass that runs alone reads."""
    if isinstance(line, MeshLines):
        expected = [[Step.of(op) for op in operations(body_of(mesh))] for mesh in mesh_functions(module)]
        found = line.lines
    else:
        expected, found = [read_main(module, placed=line.placed).steps], [line.steps]
    assert list(map(len, found)) == list(map(len, expected))
    for one, other in ((a, b) for pair in zip(found, expected, strict=True) for a, b in zip(*pair, strict=True)):
        assert (one.op, one.name, one.operands, one.results) == (other.op, other.name, other.operands, other.results)
        if isinstance(one.attributes, dict):  # else it is the operation's own map
            assert one.attributes == dict(other.attributes.items())
        if other.function is not None:
            assert (one.function, list(one.meshes)) == (other.function, list(other.meshes))
