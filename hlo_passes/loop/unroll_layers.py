"""`unroll-layers`: a scan over layers with a stage mark in its body becomes its layers, one after the other."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.canonicalize import drop_scalar_constraints
from jaxpp.hlo_passes.loop.forward_rows import forward_rows
from jaxpp.hlo_passes.loop.row_accumulators import split_row_accumulators
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import clone, erase_dead
from jaxpp.ir.counted import trips
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, main_of, nested, operations, terminator


@dataclass(frozen=True)
class UnrollLayers(Pass):
    """Unrolls each loop with stage marks inside the microbatch loop: a `lax.scan` over all layers, and its gradient.

    Large models are written so: the parameters of all layers are stacked, and scanned over. What such a loop stacks for
    its gradient, and takes from a stack, is then known in pieces (`pieces.py`), so that each stage has the rows that it
    needs and no more:

    - integers that count are constants; so are the bounds of slices taken at them;
    - a slice of a value that is known in pieces is made of these: a row that was written to a stack is the value that
      was written, a row that a gather with constant indices takes (`w[[0, 2, 1, 3]]`, layers that are stored in the
      order of the meshes) is a slice of `w` itself. Operations in between are applied to the rows, if they treat all
      rows alike: a cast, a reshape, arithmetic, a barrier of `jax.checkpoint` around parameters;
    - a stack of which every row was written is a concatenation, if anything still uses it; so is one whose pieces are
      gathered in another order;
    - a sum over the microbatches of values in pieces (the gradient of stacked parameters) is one sum for each piece,
      which are put together after the loop.

    That holds for layers that are written one after the other too: the gradient of rows `w[0]`, `w[1]`... is padded
    with zeros, or written over zeros (in a loop that reads `w[i]`), that of `w[rows]` is added to zeros at these.

    A loop that runs once, such as that of a stage with one layer, becomes its body. Other loops without marks stay.

    Preconditions: `inline-calls` ran. Loops with marks count to constants.

    ```mlir
    %0:2 = stablehlo.while(%i = %c0, %x = %a) {      ==>   %w0 = stablehlo.slice %w [0:1, 0:8, 0:8]
      %w_i = stablehlo.dynamic_slice %w, %i, ...           %y0 = stablehlo.dot_general %a, %w0
      %y = stablehlo.dot_general %x, %w_i                  %m0 = stablehlo.optimization_barrier %y0 {jaxpp.boundary...}
      %m = stablehlo.optimization_barrier %y               %w1 = stablehlo.slice %w [1:2, 0:8, 0:8]
        {jaxpp.boundary = {stage = 0, ...}} ... }          %y1 = stablehlo.dot_general %m0, %w1 ...
    ```
    """

    name: ClassVar[str] = "unroll-layers"

    def run(self, module: ir.Module) -> None:
        """Unroll these loops of `module`. Raises PassError for a marked one that runs an unknown number of times."""
        main = main_of(module)
        loops = [op for op in operations(body_of(main)) if op.name == "stablehlo.while"]
        named = [op for op in loops if at.LOOP in op.attributes]
        for loop in named or loops:
            drop_scalar_constraints(loop)
            unrolled = _loops_to_unroll(loop)
            for inner in reversed(unrolled):
                _unroll(inner)
            body = loop.regions[1].blocks[0]
            has_marks = any(boundary.is_mark(op) for op in operations(body))
            if unrolled or has_marks:
                forward_rows(body)
                loop = split_row_accumulators(loop) if has_marks else loop
                erase_dead(loop.regions[1].blocks[0])
        forward_rows(body_of(main))
        erase_dead(body_of(main))


def _loops_to_unroll(loop: ir.Operation) -> list[ir.Operation]:
    """The loops inside `loop` that have marks or run once, outermost first."""
    inner = [op for op in nested(loop) if op.name == "stablehlo.while" and at.LOOP not in op.attributes]
    return [op for op in inner if trips(op) == 1 or any(boundary.is_mark(each) for each in nested(op))]


def _unroll(loop: ir.Operation) -> None:
    """Replace `loop` by its iterations."""
    body = loop.regions[1].blocks[0]
    ops, yielded = operations(body)[:-1], list(terminator(body).operands)
    carried = list(loop.operands)
    for layer in range(_trips(loop)):
        values: dict[ir.Value, ir.Value] = dict(zip(body.arguments, carried, strict=True))
        for op in ops:
            copy = clone(op, values, ir.InsertionPoint(loop), {})
            if boundary.is_mark(copy):
                copy.attributes[at.LAYER] = at.i64(layer)
        carried = [values.get(value, value) for value in yielded]
    for result, value in zip(list(loop.results), carried, strict=True):
        result.replace_all_uses_with(value)
    loop.erase()


def _trips(loop: ir.Operation) -> int:
    found = trips(loop)
    if found is None:
        raise PassError(
            "a stage mark inside a loop that runs an unknown number of times",
            location=loop.location,
            hint="loop over the layers with lax.scan, or fori_loop with constant bounds: their marks are the stages",
        )
    return found
