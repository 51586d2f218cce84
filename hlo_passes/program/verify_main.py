"""`verify-main`: checks the promises of docs/ir.md for a module without its loop (sections 4 and 5)."""

from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import main_of
from jaxpp.ir.kinds import AROUND
from jaxpp.ir.mesh_functions import tasks_of_call
from jaxpp.ir.phases import broken, read_main
from jaxpp.ir.values import defining_op


@dataclass(frozen=True)
class VerifyMain(Pass):
    """Checks that a module keeps the promises of phase 4, or of phase 5 (docs/ir.md), and changes nothing.

    - No loop over microbatches is left; the module has the number of meshes.
    - Each call has a mesh. A call of one task has a stage and a microbatch, and a fused call has equally long lists of
      them. Each task of a microbatch is called once. A call of another function has neither a stage nor a
      microbatch.
    - In phase 5 all arguments and results have meshes, and a call may have several. Every operation of `@main` is a
      constant or a call. Slices of arguments cut stacked layers into their blocks, and concatenations put the blocks
      together.

    Options:
        placed: whether it has to be phase 5. It is phase 5 anyway if an argument or a result of `@main` has meshes.

    Preconditions: `unroll-microbatches` ran.

    ```mlir
    %a = call @forward_0(%x) {jaxpp.microbatch = 0, ...}   ==>   error: phase 4: a second call of @forward_0
    %b = call @forward_0(%y) {jaxpp.microbatch = 0, ...}         for microbatch 0
    ```
    """

    placed: bool = False

    def run(self, module: ir.Module) -> None:
        """Checks `module`. Raises PassError for a promise that it breaks."""
        main = main_of(module)
        borders = (*at.argument_attributes(main), *at.result_attributes(main))
        placed = self.placed or any(at.MESHES in entry for entry in borders)
        phase = 5 if placed else 4
        seen: set[tuple[object, ...]] = set()
        for step in read_main(module, placed=placed).steps:
            op = step.op
            if step.kind in AROUND:
                if at.STAGE in op.attributes or at.MICROBATCH in op.attributes:
                    what = f"the call of @{step.callee}, which is no task, has a stage or a microbatch"
                    raise broken(phase, what, op)
            elif step.function is not None:
                tasks = tasks_of_call(op, step.kind)
                # Each function is of one stage; in phase 5 stages may share one already.
                key = (step.callee, *(task[1:] if placed else task[2:] for task in tasks))
                if key in seen:
                    microbatches = ", ".join(str(task.microbatch) for task in tasks)
                    raise broken(phase, f"a second call of @{step.callee} for microbatch {microbatches}", op)
                seen.add(key)
            elif at.LOOP in op.attributes:
                raise broken(phase, "a loop over microbatches", op)
            elif placed and step.name != "stablehlo.constant" and not _is_of_blocks(op):
                raise broken(phase, f"a {step.name} in @main, expected constants and calls", op)


def _is_of_blocks(op: ir.Operation) -> bool:
    """Returns whether `op` slices a block of an argument, or concatenates the blocks of a result."""
    if op.name == "stablehlo.slice":
        return defining_op(op.operands[0]) is None
    return op.name == "stablehlo.concatenate" and all(
        use.owner.operation.name == "func.return" for use in op.results[0].uses
    )
