"""The microbatch loop in its canonical form (docs/ir.md, section 2)."""

from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, main_of, operations


@dataclass(frozen=True)
class MicrobatchLoop:
    """A `stablehlo.while` that `find-microbatch-loop` canonicalized."""

    op: ir.Operation
    length: int
    stages: int
    schedule: str
    indices: list[int]
    starts: list[int]
    steps: list[int]

    @property
    def body(self) -> ir.Block:
        """The block that runs once per microbatch."""
        return self.op.regions[1].blocks[0]

    @staticmethod
    def of(module: ir.Module) -> "MicrobatchLoop":
        """The loop of `module`. Raises PassError when `find-microbatch-loop` has not run."""
        main = main_of(module)
        for op in operations(body_of(main)):
            if at.LOOP in op.attributes:
                fields = at.dictionary(op.attributes[at.LOOP])
                if {"length", "stages", "schedule", "indices", "starts", "steps"} <= set(fields):
                    return MicrobatchLoop(
                        op,
                        ir.IntegerAttr(fields["length"]).value,
                        ir.IntegerAttr(fields["stages"]).value,
                        ir.StringAttr(fields["schedule"]).value,
                        list(ir.DenseI64ArrayAttr(fields["indices"])),
                        list(ir.DenseI64ArrayAttr(fields["starts"])),
                        list(ir.DenseI64ArrayAttr(fields["steps"])),
                    )
        raise PassError(
            "no microbatch loop in its canonical form", location=main.location, hint="run find-microbatch-loop first"
        )
