"""`merge-slices`: the slices of a stage call one function."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import bytecode_of, callee, functions, kind_and_stage, name_of, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.values import block_of, is_zero, viewed


@dataclass(frozen=True)
class MergeSlices(Pass):
    """Lets the slices of a stage call one function, where theirs are equal, and numbers the calls by stage and slice.

    Until then stage s of slice j, of n stages, is number j * n + s; now it is stage s, with `jaxpp.slice = j` on its
    calls. What follows the loss of the last slice (the mean over the slices) has a function of its own, so that the
    last slice does what the others do; its call has the number behind that of the last slice.

    A slice that does more than others, or less, keeps a function of its own. The zeros that first slices take, until
    now a value for each operand, become one for each type and sharding.

    Preconditions: `outline-stages` ran, and what splits its functions. A schedule without slices stays as it is.

    ```mlir
    %a:2 = call @forward_0(%x, %zeros, %slice0) {jaxpp.stage = 0}   ==>   %a:2 = call @forward_0(%x, %zeros, %slice0)
                                                                            {jaxpp.stage = 0, jaxpp.slice = 0}
    %b:2 = call @forward_4(%x, %a#1, %slice1) {jaxpp.stage = 4}           %b:2 = call @forward_0(%x, %a#1, %slice1)
                                                                            {jaxpp.stage = 0, jaxpp.slice = 1}
    ```
    """

    name: ClassVar[str] = "merge-slices"

    def run(self, module: ir.Module) -> None:
        """Merge the functions of `module`. Raises PassError when there is no canonical loop."""
        loop = MicrobatchLoop.of(module)
        if loop.slices == 1:
            return
        by_name = functions(module)
        first: dict[tuple[str, int, bytes], ir.Operation] = {}
        calls = [op for op in operations(loop.body) if op.name == "func.call"]
        for op in sorted(calls, key=lambda op: kind_and_stage(by_name[callee(op)])[1]):
            function = by_name[callee(op)]
            kind, number = kind_and_stage(function)
            part, stage = divmod(number, loop.stages_per_slice)
            if number == loop.stages:
                stage = loop.stages_per_slice - 1
            merged = first.setdefault((kind, stage, bytecode_of(function)), function)
            if merged == function:
                ending = f"slice_{part}" if part < loop.slices else "end"
                name = f"{kind}_{stage}_{ending}" if part else f"{kind}_{stage}"
                function.attributes[at.STAGE] = at.i64(stage)
                function.attributes["sym_name"] = ir.StringAttr.get(name)
            else:
                function.erase()
            op.attributes[at.STAGE] = at.i64(stage)
            op.attributes[at.SLICE] = at.i64(part)
            op.attributes["callee"] = ir.FlatSymbolRefAttr.get(name_of(merged))
        _share_zeros(calls, loop.body)


def _share_zeros(calls: Iterable[ir.Operation], body: ir.Block) -> None:
    """Let `calls` take one value for all equal zeros that are made outside of the loop's body."""
    shared: dict[object, ir.Value] = {}
    for op in calls:
        for number, value in enumerate(op.operands):
            if block_of(value) != body and is_zero(value):
                zero = ir.OpResult(viewed(value)).owner.attributes["value"]  # also minus zero
                op.operands[number] = shared.setdefault((zero, value.type, at.value_sharding(value)), value)
