"""`merge-slices`: lets the slices of a stage call one function."""

from collections.abc import Iterable

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import bytecode_of, callee, functions, kind_and_stage, name_of, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.values import block_of, is_zero, viewed


class MergeSlices(Pass):
    """Lets the slices of a stage call one function, where theirs are equal, and numbers the calls by stage and slice.

    Before the pass, stage s of slice j, of n stages, has the number j * n + s. After it, the calls have stage s and
    `jaxpp.slice = j`. The operations after the loss of the last slice, such as the mean over the slices, have their own
    function. Its call has the slice number after the last one. So the last slice does the same work as the others.

    A slice that does more or less than the others keeps a function of its own. First slices take zeros, each operand a
    separate value; the pass leaves one value for each type and sharding.

    Preconditions: `outline-stages` ran, and what splits its functions. A schedule without slices stays as it is.

    ```mlir
    %a:2 = call @forward_0(%x, %zeros, %slice0) {jaxpp.stage = 0}   ==>   %a:2 = call @forward_0(%x, %zeros, %slice0)
                                                                            {jaxpp.stage = 0, jaxpp.slice = 0}
    %b:2 = call @forward_4(%x, %a#1, %slice1) {jaxpp.stage = 4}           %b:2 = call @forward_0(%x, %a#1, %slice1)
                                                                            {jaxpp.stage = 0, jaxpp.slice = 1}
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Merges the functions of `module`. Raises PassError when it has no canonical loop."""
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
    """Lets `calls` take one value for all equal zeros that are made outside of the loop's body."""
    shared: dict[object, ir.Value] = {}
    for op in calls:
        for number, value in enumerate(op.operands):
            if block_of(value) != body and is_zero(value):
                zero = ir.OpResult(viewed(value)).owner.attributes["value"]
                op.operands[number] = shared.setdefault((zero, value.type, at.value_sharding(value)), value)
