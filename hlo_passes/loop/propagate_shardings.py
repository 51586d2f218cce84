"""`propagate-shardings`: Shardy's propagation over the whole module, before anything is cut."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import main_of, nested


@dataclass(frozen=True)
class PropagateShardings(Pass):
    """Gives every value of the module its `sdy.sharding`, so that whatever is cut later knows its own.

    It runs Shardy's own `sdy-propagation-pipeline`, then turns `sdy.constant` and `sdy.reshard` back into
    `stablehlo.constant` and `sdy.sharding_constraint`, so that the module is again one that Shardy takes as input;
    constraints that their operand already meets go. A module for submeshes of one device
    (`mhlo.num_partitions = 1`) has nothing to propagate and stays as it is.

    Preconditions: there is a `@main` (Shardy ends the process without one).

    ```mlir
    %0 = stablehlo.tanh %x   ==>   %0 = stablehlo.tanh %x
                                     {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
    ```
    """

    name: ClassVar[str] = "propagate-shardings"

    def run(self, module: ir.Module) -> None:
        """Annotate `module`. Raises PassError when there is no `@main`."""
        main_of(module)
        partitions = at.integer(module.operation, "mhlo.num_partitions") or 1
        if partitions == 1:
            return
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
        for op in list(nested(main_of(module))):
            if op.name == "sdy.constant":
                _replace(op, "stablehlo.constant", {"value": op.attributes["value"]})
            elif op.name in ("sdy.reshard", "sdy.sharding_constraint"):
                if at.same(at.value_sharding(op.operands[0]), op.attributes["sharding"]):
                    op.results[0].replace_all_uses_with(op.operands[0])
                    op.erase()
                elif op.name == "sdy.reshard":
                    _replace(op, "sdy.sharding_constraint", {"sharding": op.attributes["sharding"]})


def _replace(op: ir.Operation, name: str, attributes: dict[str, ir.Attribute]) -> None:
    if at.SHARDING in op.attributes:
        attributes[at.SHARDING] = op.attributes[at.SHARDING]
    new = ir.Operation.create(
        name,
        results=[op.results[0].type],
        operands=list(op.operands),
        attributes=attributes,
        ip=ir.InsertionPoint(op),
        loc=op.location,
    )
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
