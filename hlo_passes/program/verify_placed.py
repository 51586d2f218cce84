"""`verify-placed`: checks the promises of docs/ir.md for a module that is placed on meshes (section 5)."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, callee, functions, kind_and_stage, main_of, operations
from jaxpp.ir.kinds import AROUND
from jaxpp.ir.phases import broken, read_placed
from jaxpp.ir.values import defining_op


class VerifyPlaced(Pass):
    """Checks that a module keeps the promises of phase 5 (docs/ir.md), and changes nothing.

    - Every operation of `@main` is a constant, or a call on one or several meshes; arguments and results have meshes.
      Slices of arguments cut stacked layers into their blocks, and concatenations put the blocks together.
    - Operations from outside of the loop are in functions of kind `before` and `after`, whose calls have neither a
      stage nor a microbatch.

    Preconditions: `infer-placement` ran.

    ```mlir
    %a = call @forward_0(%x) {jaxpp.mesh = 0, ...}   ==>   error: phase 5: a stablehlo.negate in @main, expected
    %b = stablehlo.negate %a                               constants and calls
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Checks `module`. Raises PassError for a promise that it breaks."""
        read_placed(module)
        kinds = {name: kind_and_stage(function)[0] for name, function in functions(module).items()}
        for op in operations(body_of(main_of(module)))[:-1]:
            if op.name == "func.call":
                if kinds[callee(op)] in AROUND and (at.STAGE in op.attributes or at.MICROBATCH in op.attributes):
                    raise broken(5, f"the call of @{callee(op)}, which is no task, has a stage or a microbatch", op)
            elif op.name != "stablehlo.constant" and not _is_of_blocks(op):
                raise broken(5, f"a {op.name} in @main, expected constants and calls", op)


def _is_of_blocks(op: ir.Operation) -> bool:
    """Returns whether `op` slices a block of an argument, or concatenates the blocks of a result."""
    if op.name == "stablehlo.slice":
        return defining_op(op.operands[0]) is None
    return op.name == "stablehlo.concatenate" and all(
        use.owner.operation.name == "func.return" for use in op.results[0].uses
    )
