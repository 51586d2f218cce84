"""`merge-stages`: of the marks of all layers those are kept that end a stage, so that each stage has several layers."""

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
    """Drops the marks between the layers of a stage: where a model marks every layer, `cuts` says how many a stage has.

    The layers are counted in the order of the forward. The mark behind the last layer of each stage stays, with its
    mark in the backward; both get the number of the stage. The others go, forward and backward alike: what stood
    between two of them is one task then. Layers that are written one after the other and those of a scan, which
    `unroll-layers` unrolled, are counted alike. As ever, the last one needs no mark: n layers have n or n - 1.

    Without `cuts` each mark ends a stage, and nothing is done. With them `jaxpp.microbatch_loop` says how many `stages`
    there are, and `find-microbatch-loop` refuses a schedule of more or fewer.

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
        """Merge the stages of `module`. Raises PassError where it has another number of marked layers."""
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
    """Says of a loop over microbatches how many layers are marked, how often it runs, and if it has a backward."""

    layers: int
    microbatches: int
    has_backward: bool


def find_layers(module: ir.Module) -> LoopOfLayers:
    """What the loop over microbatches says of its layers.

    The preconditions and errors are those of `merge-stages`.
    """
    drop_scalar_constraints(nested(main_of(module)))
    loop, marks = _layers(module)
    check_kept(module.operation)
    has_backward = any(mark.phase == "backward" for _, mark in marks)
    return LoopOfLayers(len(marked_stages(marks)), trip_count(loop), has_backward)


def _layers(module: ir.Module) -> tuple[ir.Operation, Marks]:
    """The loop over microbatches, and its marks, each once."""
    main = main_of(module)
    loop = find_loop(main)
    marks = check_marks(main, nested(main), loop)
    split_barriers(marks)
    marks = reuse_recomputed_marks(loop, marks)
    check_used(loop, marks)
    return loop, marks
