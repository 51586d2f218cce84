"""`deduplicate-functions`: merges equal task functions, so that each is compiled once."""

from collections import Counter
from collections.abc import Iterable

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import bytecode_of, calls_in, functions
from jaxpp.ir.mesh_functions import task_functions
from jaxpp.ir.steps import MeshLines, Step, handed, leave


class DeduplicateFunctions(Pass):
    """Keeps one of each set of task functions that differ only in their name, stage and source locations.

    Twelve equal layers in six equal stages have one forward and one backward. The function that stays loses its
    `jaxpp.stage`; the calls keep theirs.

    Preconditions: none. After `plan-buffers`, functions with different donated arguments are different.

    ```mlir
    %a = call @forward_1(%w1, %x)   ==>   %a = call @forward_1(%w1, %x)
    %b = call @forward_2(%w2, %a)         %b = call @forward_1(%w2, %a)
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Merges equal task functions of `module`."""
        first: dict[bytes, tuple[str, ir.Operation]] = {}
        renamed: dict[str, str] = {}
        tasks = task_functions(module)
        alike = Counter(map(_size, tasks.values()))
        for name, function in tasks.items():
            if alike[_size(function)] == 1:
                continue  # skips writing it as bytecode, which takes long
            bytecode = bytecode_of(function)
            if bytecode in first:
                same, other = first[bytecode]
                renamed[name] = same
                for one in (function, other):
                    if at.STAGE in one.attributes:
                        del one.attributes[at.STAGE]
            else:
                first[bytecode] = (name, function)
        by_name = functions(module)
        for name in renamed:
            by_name.pop(name).erase()
        symbols = {same: ir.FlatSymbolRefAttr.get(same) for same in renamed.values()}
        lines = handed(module, MeshLines)
        for call in _calls(by_name.values()) if lines is None else lines.calls:
            if call.callee in renamed:
                call.callee = renamed[call.callee]
                call.op.attributes["callee"] = symbols[call.callee]
        if lines is not None:
            leave(module, lines)


def _size(function: ir.Operation) -> tuple[ir.Attribute | int, ...]:
    """Returns the type of a function, and the number of operations in each block: equal for equal functions."""
    return function.attributes["function_type"], *(len(block.operations) for block in function.regions[0].blocks)


def _calls(found: Iterable[ir.Operation]) -> list[Step]:
    """Returns the calls in these functions."""
    return [Step.of(op) for function in found for op in calls_in(function)]
