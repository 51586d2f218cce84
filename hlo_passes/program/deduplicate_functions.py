"""`deduplicate-functions`: equal task functions are one function, so one compile."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import functions, nested
from jaxpp.ir.mesh_functions import task_functions


@dataclass(frozen=True)
class DeduplicateFunctions(Pass):
    """Keeps one of each set of task functions that differ only in their name, stage and source locations.

    Twelve equal layers in six equal stages have one forward and one backward. The function that stays loses its
    `jaxpp.stage`; the calls keep theirs.

    Preconditions: none. After `plan-buffers`, functions with other donated arguments are other functions.

    ```mlir
    %a = call @forward_1(%w1, %x)   ==>   %a = call @forward_1(%w1, %x)
    %b = call @forward_2(%w2, %a)         %b = call @forward_1(%w2, %a)
    ```
    """

    name: ClassVar[str] = "deduplicate-functions"

    def run(self, module: ir.Module) -> None:
        """Merge equal task functions of `module`."""
        first: dict[str, tuple[str, ir.Operation]] = {}
        renamed: dict[str, str] = {}
        for name, function in task_functions(module).items():
            text = _text(function, name)
            if text in first:
                kept, other = first[text]
                renamed[name] = kept
                for one in (function, other):
                    if at.STAGE in one.attributes:
                        del one.attributes[at.STAGE]
            else:
                first[text] = (name, function)
        if not renamed:
            return
        by_name = functions(module)
        symbols: dict[ir.Attribute, ir.Attribute] = {
            ir.FlatSymbolRefAttr.get(name): ir.FlatSymbolRefAttr.get(kept) for name, kept in renamed.items()
        }
        for name, function in by_name.items():
            if name not in renamed:
                for op in nested(function):
                    if op.name == "func.call" and (new := symbols.get(op.attributes["callee"])) is not None:
                        op.attributes["callee"] = new
        for name in renamed:
            by_name[name].erase()


def _text(function: ir.Operation, name: str) -> str:
    stage = function.attributes.get(at.STAGE)
    if stage is not None:
        del function.attributes[at.STAGE]
    text = str(function.get_asm(assume_verified=True, use_local_scope=True)).replace(f"@{name}(", "@(", 1)
    if stage is not None:
        function.attributes[at.STAGE] = stage
    return text
