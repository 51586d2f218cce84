"""The slices of a stage call one function (`add-tasks`)."""

from collections.abc import Iterable

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import bytecode_of, callee, functions, kind_and_stage, name_of, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.values import block_of, is_zero


def merge_slices(module: ir.Module, loop: MicrobatchLoop) -> None:
    """Lets the slices of a stage call one function, where theirs are equal, and numbers the calls by stage and slice.

    Before, stage s of slice j, of n stages, has the number j * n + s. First slices take zeros, each operand a separate
    value; one value stays for each type and sharding.
    """
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
                op.operands[number] = shared.setdefault((value.type, at.value_sharding(value)), value)
