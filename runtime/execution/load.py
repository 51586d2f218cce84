"""`load`: reads a program module, and makes a separate module for each function that is to be compiled."""

import dataclasses

from jaxlib.mlir import ir

from jaxpp._system import collector_paused
from jaxpp.ir.mesh_lines import MeshLines
from jaxpp.ir.program import Program
from jaxpp.ir.read_program import ProgramReader, ProvenLines
from jaxpp.runtime.execution.stage_function import compile_unit, reshard_unit


def load(module: ir.Module, lines: MeshLines | None = None) -> Program:
    """Reads a program module. The result refers to no MLIR object.

    Args:
        module: the module; with `lines` it may lack the mesh functions.
        lines: the lines of the meshes, if somebody has them already.

    Where meshes differ in size (`jaxpp.mesh_sizes`), a mesh splits a dimension less if its sizes don't divide it.

    Raises ProgramError, with the op's location, if the module is no program, or can't run on meshes of these sizes.
    """
    with module.context, ir.Location.unknown(), collector_paused():
        reader = lines.reader if isinstance(lines, ProvenLines) else ProgramReader(module, lines)
        functions = dict(reader.program.functions)
        for name, (op, axes) in reader.sources.items():
            function = functions[name]
            if not function.is_compiled:
                continue
            unit = reshard_unit(function, axes) if op is None else compile_unit(module, op, function, axes)
            functions[name] = dataclasses.replace(function, bytecode=unit)
        return dataclasses.replace(reader.program, functions=functions)
