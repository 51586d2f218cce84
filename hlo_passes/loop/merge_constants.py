"""`merge-constants`: equal constants, and what is made of them alone by broadcasting, are there once."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from jaxpp.hlo_passes.base import Pass


@dataclass(frozen=True)
class MergeConstants(Pass):
    """Merges equal constants of a block, and equal broadcasts of scalar constants: each is there once.

    JAX lowers each helper and each layer with constants of its own. In the step of a GPT with an optimizer they are two
    fifths of all operations, which every pass behind this one would read. Nothing else is merged: an operation that is
    computed twice may be meant so (`jax.checkpoint`). No value gets longer to live by it, since each task makes its
    constants for itself (`assign-stages`, `infer-placement`).

    It runs Shardy's own `sdy-constant-or-scalar-merger`, on what is in no loop and on the bodies of loops alike.

    ```mlir
    %0 = stablehlo.constant dense<1.0>       ==>   %0 = stablehlo.constant dense<1.0>
    %1 = stablehlo.add %x, %0                      %1 = stablehlo.add %x, %0
    %2 = stablehlo.constant dense<1.0>             %2 = stablehlo.add %1, %0
    %3 = stablehlo.add %1, %2
    ```
    """

    name: ClassVar[str] = "merge-constants"

    def run(self, module: ir.Module) -> None:
        """Merge the constants of each function of `module`."""
        merger = PassManager.parse("builtin.module(func.func(sdy-constant-or-scalar-merger))")
        merger.enable_verifier(False)  # of the whole module: three times as long as the pass
        merger.run(module.operation)
