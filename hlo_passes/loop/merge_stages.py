"""`merge-stages`: drops marks of layers, so that each stage has several layers."""

from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, NamedTuple

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.canonicalize import drop_scalar_constraints, split_barriers
from jaxpp.hlo_passes.loop.find_microbatch_loop import find_loop
from jaxpp.hlo_passes.loop.idle_stages import check_kept, check_used
from jaxpp.hlo_passes.loop.marks import check_marks, marked_stages, number_marks, stages_of
from jaxpp.hlo_passes.loop.recomputed import reuse_recomputed_marks
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Boundary, Marks
from jaxpp.ir.build import replace
from jaxpp.ir.counted import trip_count
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import main_of, nested
from jaxpp.ir.loop import entries


@dataclass(frozen=True)
class MergeStages(Pass):
    """Drops the marks between the layers of a stage, for a model that marks every layer.

    `cuts` gives the number of layers of each stage, in the order of the forward. The forward and backward marks after
    the last layer of each stage stay, and get the number of the stage. All other marks are dropped, so that the layers
    of a stage become one task. Layers of a scan, which `unroll-layers` unrolled, count like layers without a loop. The
    last layer needs no mark: n layers have n or n - 1 marks.

    Without `cuts` each mark ends a stage, and the pass does nothing. With `cuts`, the pass writes the number of
    `stages` into `jaxpp.microbatch_loop`, and `find-microbatch-loop` refuses a schedule of more or fewer stages.

    Options:
        cuts: the layers of each stage, from the first one on: `5,5,4,2`.

    Preconditions: `unroll-layers` ran.

    ```mlir
    // cuts = "2,1"
    %m0 = stablehlo.optimization_barrier %x0       ==>   %y1 = stablehlo.multiply %x0, %w1
      {jaxpp.boundary = {stage = 0, ...}}                %m1 = stablehlo.optimization_barrier %y1
    %y1 = stablehlo.multiply %m0, %w1                      {jaxpp.boundary = {stage = 0, ...}}
    %m1 = stablehlo.optimization_barrier %y1             %y2 = stablehlo.multiply %m1, %w2
      {jaxpp.boundary = {stage = 1, ...}}
    %y2 = stablehlo.multiply %m1, %w2
    ```
    """

    name: ClassVar[str] = "merge-stages"
    cuts: str = ""

    def __post_init__(self) -> None:
        if not all(word.isascii() and word.isdigit() and int(word) for word in self._words):
            raise ValueError(f"cuts: expected the layers of each stage, such as '5,5,4,2', found {self.cuts!r}")

    @property
    def _words(self) -> list[str]:
        return self.cuts.split(",") if self.cuts else []

    def run(self, module: ir.Module) -> None:
        """Merges the stages of `module`. Raises PassError where the cuts don't add up to the marked layers."""
        sizes = [int(word) for word in self._words]
        if not sizes:
            return
        layers = sum(sizes)
        loop, marks = _layers(module)
        check_kept(module.operation, marks, layers)
        numbers = stages_of(marks, loop, layers)
        if numbers is None:
            found = len(marked_stages(marks))
            raise PassError(
                f"the cuts {', '.join(map(str, sizes))} are of {layers} layers, found {found} stage marks",
                location=loop.location,
                hint=f"mark the end of every layer (mark_stage_end), and give cuts that add up to {found}",
            )
        number_marks(marks, numbers)
        last = {layer - 1: stage for stage, layer in enumerate(accumulate(sizes))}
        for op, _ in marks:
            mark = boundary.read(op)
            if mark.stage in last:
                boundary.write(op, Boundary(last[mark.stage], mark.phase, mark.name))
            else:
                replace(op, op.operands)
        loop.attributes[at.LOOP] = ir.DictAttr.get({**entries(loop), "stages": at.i64(len(sizes))})


class LoopOfLayers(NamedTuple):
    """A loop over microbatches whose layers are marked.

    Attributes:
        layers: the number of marked layers.
        microbatches: the number of iterations.
        has_backward: whether one of its marks is a backward mark.
    """

    layers: int
    microbatches: int
    has_backward: bool


def find_layers(module: ir.Module) -> LoopOfLayers:
    """Returns the numbers of layers and microbatches of the loop over microbatches.

    `module` must meet the preconditions of `merge-stages`, and is changed. Raises PassError like `merge-stages`, and
    for a loop without a constant trip count.
    """
    drop_scalar_constraints(nested(main_of(module)))
    loop, marks = _layers(module)
    check_kept(module.operation)
    has_backward = any(mark.phase == "backward" for _, mark in marks)
    return LoopOfLayers(len(marked_stages(marks)), trip_count(loop), has_backward)


def _layers(module: ir.Module) -> tuple[ir.Operation, Marks]:
    """Returns the loop over microbatches and its marks. Splits barriers, and drops recomputed marks."""
    main = main_of(module)
    loop = find_loop(main)
    marks = check_marks(main, nested(main), loop)
    split_barriers(marks)
    marks = reuse_recomputed_marks(loop, marks)
    check_used(loop, marks)
    return loop, marks
