"""`merge-constants`: merges equal constants of a block, and equal broadcasts of them."""

from collections.abc import Hashable

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.functions import body_of, main_of, operations
from jaxpp.ir.numbering import kind_of


class MergeConstants(Pass):
    """Merges equal constants in `@main` and in the bodies of its loops, and equal broadcasts of these constants.

    JAX lowers each helper and each layer with constants of its own. In the step of a GPT with an optimizer, constants
    are two fifths of all operations, and every later pass would read them. The merge makes no live range longer:
    every task makes its own constants (`assign-stages`, `infer-placement`).

    Other equal operations stay. The user may want to compute a value twice (`jax.checkpoint`), and a scalar is cheaper
    to send to another stage than its broadcast.

    Preconditions: there is a `@main`.

    ```mlir
    %0 = stablehlo.constant dense<1.0>       ==>   %0 = stablehlo.constant dense<1.0>
    %1 = stablehlo.add %x, %0                      %1 = stablehlo.add %x, %0
    %2 = stablehlo.constant dense<1.0>             %2 = stablehlo.add %1, %0
    %3 = stablehlo.add %1, %2
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Merges the constants of `module`. Raises PassError when there is no `@main`."""
        _merge(body_of(main_of(module)))


def _merge(block: ir.Block) -> None:
    first: dict[Hashable, ir.Value] = {}
    constants: set[ir.Value] = set()
    for op in operations(block):
        name = op.name
        if name == "stablehlo.while":
            for region in op.regions:
                _merge(region.blocks[0])
        elif name == "stablehlo.constant" or (name == "stablehlo.broadcast_in_dim" and op.operands[0] in constants):
            kind, uses = kind_of(op)
            result = op.results[0]
            found = first.setdefault((kind, *uses), result)
            if found is not result:
                result.replace_all_uses_with(found)
                op.erase()
            elif not uses:
                constants.add(result)
