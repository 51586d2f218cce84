"""`verify-unrolled`: checks the promises of docs/ir.md for a module without its loop (section 4)."""

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, callee, functions, kind_and_stage, main_of, operations
from jaxpp.ir.kinds import AROUND
from jaxpp.ir.phases import broken, read_main


class VerifyUnrolled(Pass):
    """Checks that a module keeps the promises of phase 4 (docs/ir.md), and changes nothing.

    - No loop over microbatches is left; the module has the number of meshes.
    - Each call has a mesh. A call of one task has a stage and a microbatch, and a fused call has equally long lists of
      them.
    - Each task of a microbatch is called once, and no call still waits to be fused.

    Preconditions: `unroll-microbatches` ran, and `fuse-tasks`.

    ```mlir
    %a = call @forward_0(%x) {jaxpp.microbatch = 0, ...}   ==>   error: phase 4: a second call of @forward_0
    %b = call @forward_0(%y) {jaxpp.microbatch = 0, ...}         for microbatch 0
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Checks `module`. Raises PassError for a promise that it breaks."""
        read_main(module, placed=False)
        seen: set[tuple[str, tuple[int, ...]]] = set()
        kinds = {name: kind_and_stage(function)[0] for name, function in functions(module).items()}
        for op in operations(body_of(main_of(module))):
            if op.name == "func.call" and kinds[callee(op)] not in AROUND:
                called = callee(op), _microbatches(op)
                if called in seen:
                    raise broken(4, f"a second call of @{called[0]} for microbatch {_text(called[1])}", op)
                seen.add(called)
            elif at.LOOP in op.attributes:
                raise broken(4, "a loop over microbatches", op)


def _microbatches(op: ir.Operation) -> tuple[int, ...]:
    if at.FUSED in op.attributes:
        raise broken(4, f"@{callee(op)} should be one call with another: {at.found(op.attributes, at.FUSED)}", op)
    stage, microbatch, part = (at.integer(op, name) for name in (at.STAGE, at.MICROBATCH, at.SLICE))
    if stage is not None and microbatch is not None:
        return (microbatch,) if part is None else (microbatch, part)
    return (*at.integers(op, at.MICROBATCHES), *at.integers(op, at.SLICES))


def _text(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
