"""`unroll-loops`: replaces a scan with a mark in its body by its layers or slices, and a `shard_map` by its parts."""

import dataclasses
from collections.abc import Iterable

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.slices import unroll_slices
from jaxpp.hlo_passes.loop.split_shard_maps import split_shard_maps
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import clone, replace
from jaxpp.ir.counted import trips
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import loop_body, main_of, nested, nested_by_name, operations, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.tasks import op_of


class UnrollLoops(Pass):
    """Unrolls each loop with marks inside the microbatch loop: over layers or over slices, and its gradient.

    Large models often stack the parameters of all layers and scan over them. After this pass each layer has its own
    mark, between the marks of its neighbours. `forward-rows` then finds which rows each layer reads.

    Loops with marks of units (`mark_unit_end`) are unrolled too. Before that, the pass removes marks of units that no
    schedule weaves, so that they cost nothing. These are all of them if the schedule fuses no tasks of different
    microbatches, and those outside of the microbatch loop.

    A loop that runs once, such as that of a stage with one layer, is replaced by its body. Other loops without marks
    stay.

    A decoder attends to earlier positions only, so its sequence can be cut into slices. Each slice takes the keys and
    values of the slices before it. A `lax.scan` with stage marks in its body carries them (Seq1F1B, arXiv 2406.03488).
    The gradient is a loop from the last slice to the first, which carries the gradients of keys and values. If the
    schedule has slices, each slice has its own marks after this pass, and all its operations have `jaxpp.slice`, the
    index of the slice. Values that differ from slice to slice become operands: the index of a slice is a count of the
    microbatch loop that never advances, and the first keys and values come from outside of this loop. For a schedule
    without slices each task does all slices.

    Slices of several lengths (`scan_slices(cuts=...)`) are in no loop. Their marks carry the index of their slice, and
    the pass writes it on all operations before these marks.

    At last the pass splits each `shard_map` with marks into one per product and collective, and others for the light
    operations. Experts are often written as an all-to-all inside of a `shard_map`, followed by the mark of a unit. The
    later passes see only operations of the loop's body. After the split, a collective is an operation that
    `weave-units` may move, and a product one that `split-backward` may put into either half. A stage may also end
    between two of them. If the schedule splits backwards, the pass splits every `shard_map` of the microbatch loop.

    Preconditions: `find-microbatch-loop` ran. Loops with marks count to constants.

    ```mlir
    %0:2 = stablehlo.while(%i = %c0, %x = %a) {      ==>   %w0 = stablehlo.dynamic_slice %w, %c0, ...
      %w_i = stablehlo.dynamic_slice %w, %i, ...           %y0 = stablehlo.dot_general %a, %w0
      %y = stablehlo.dot_general %x, %w_i                  %m0 = stablehlo.optimization_barrier %y0
      %m = stablehlo.optimization_barrier %y                 {jaxpp.boundary = {layer = 0, ...}}
        {jaxpp.boundary = {stage = 0, ...}}                %i1 = stablehlo.add %c0, %c1
      %i1 = stablehlo.add %i, %c1 ... }                    %w1 = stablehlo.dynamic_slice %w, %i1, ...

    %0:2 = stablehlo.while(%i = %c0, %kv = %zeros) {   ==>   %m0 = stablehlo.optimization_barrier %y0
      %x = stablehlo.dynamic_slice %xs, %i, ...                {jaxpp.boundary = {...}, jaxpp.slice = 0}
      %m = stablehlo.optimization_barrier %y                 %x1 = stablehlo.dynamic_slice %xs, %slice1, ...
        {jaxpp.boundary = {stage = 0, ...}} ... }            %m1 = stablehlo.optimization_barrier %y1
                                                               {jaxpp.boundary = {...}, jaxpp.slice = 1}
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Unrolls the loops of `module` that have marks or run once, and splits each `shard_map` with marks.

        Raises:
            PassError: a loop with marks runs an unknown number of times, would become too many operations, or does not
                fit the slices of the schedule.
        """
        loop, by_name = MicrobatchLoop.of(module), nested_by_name(main_of(module))
        _drop_units(by_name[boundary.BARRIER], loop)
        unroll_slices(loop)
        if len(by_name["stablehlo.while"]) > 1:
            inside = [op for op in nested(MicrobatchLoop.of(module).op) if op.name == "stablehlo.while"]
            for inner in reversed([op for op in inside if trips(op) == 1 or _has_marks(op)]):
                _unroll(inner)
        if by_name[at.SHARD_MAP]:
            split_shard_maps(MicrobatchLoop.of(module), MeshAxes.written_for(module))


def _drop_units(barriers: Iterable[ir.Operation], loop: MicrobatchLoop) -> None:
    """Erases the marks of units that no schedule weaves."""
    marks = list(filter(boundary.is_unit_mark, barriers))
    weaves = bool(marks) and any(len({task.microbatch for task in cell}) > 1 for cell in loop.plan.fused)
    for mark in marks:
        if not weaves or op_of(loop.op.block, mark) != loop.op:
            replace(mark, mark.operands)


_MOST = 1 << 19
"""The largest number of operations of an unrolled loop: more are a mistake, and would take minutes."""


def _has_marks(loop: ir.Operation) -> bool:
    return any(map(boundary.is_any_mark, nested(loop)))


def _unroll(loop: ir.Operation) -> None:
    """Replaces `loop` by its iterations."""
    body = loop_body(loop)
    ops, yielded = operations(body)[:-1], list(terminator(body).operands)
    carried = list(loop.operands)
    for layer in range(_trips(loop)):
        values: dict[ir.Value, ir.Value] = dict(zip(body.arguments, carried, strict=True))
        for op in ops:
            copy = clone(op, values, ir.InsertionPoint(loop))
            if boundary.is_mark(copy):
                boundary.write(copy, dataclasses.replace(boundary.read(copy), layer=layer))
        carried = [values.get(value, value) for value in yielded]
    replace(loop, carried)


def _trips(loop: ir.Operation) -> int:
    found = trips(loop)
    if found is None:
        kind = "stage" if any(map(boundary.is_mark, nested(loop))) else "unit"
        between = "put unit marks between two of these, or " if kind == "unit" else ""
        raise PassError(
            f"a {kind} mark inside a loop that runs an unknown number of times",
            location=loop.location,
            hint=f"{between}loop over the layers with lax.scan, or fori_loop with constant bounds: their marks are the "
            f"{kind}s",
        )
    if found * len(operations(loop_body(loop))) > _MOST:
        raise PassError(
            f"a mark inside a loop that runs {found:,} times: it is not unrolled into more than {_MOST:,} operations",
            location=loop.location,
            hint="put marks into a shorter loop",
        )
    return found
