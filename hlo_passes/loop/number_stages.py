"""`number-stages`: numbers the stage marks, and drops those between the layers of one stage."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from itertools import accumulate
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.canonicalize import drop_invariants, split_barriers, write_counts
from jaxpp.hlo_passes.loop.idle_stages import check_kept, check_used, check_work
from jaxpp.hlo_passes.loop.marks import (
    check_marks,
    check_one_pass,
    computed_again,
    marked_stages,
    marked_twice,
    number_marks,
    stages_of,
)
from jaxpp.hlo_passes.loop.wrong_marks import has_other_shards, set_by_jaxpp, wrong_number
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Marks
from jaxpp.ir.build import replace, split_barrier
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import loop_body, main_of, nested, operands_with_captures, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbering import Numbering
from jaxpp.ir.values import closure, defining_op


@dataclass(frozen=True)
class NumberStages(Pass):
    """Numbers the stage marks of the microbatch loop: each gets the number of the stage that it ends.

    The forward marks are numbered 0, 1, 2... in program order, and each backward mark has the number of its forward
    mark. If a model is applied to several inputs of a microbatch, all applications go through the stages together.
    Marks that end one stage then have one number.

    For a model that marks every layer, `cuts` gives the number of layers of each stage, in the order of the forward.
    The forward and backward marks after the last layer of each stage stay, and get the number of the stage. All other
    marks are dropped, so that the layers of a stage become one task. Layers of a scan, which `unroll-loops` unrolled,
    count like layers without a loop. The last layer needs no mark: n layers have n or n - 1 marks.

    Before that:

    - A barrier of several values, one of which is marked, is split into one barrier per value, as the values belong to
      different stages. `jax.checkpoint` makes such barriers.
    - A mark that `jax.checkpoint` recomputes is replaced by the first mark of the value, so that each stage recomputes
      from its own start.
    - The loop gets its canonical form again (`find-microbatch-loop`), which unrolling may have changed.

    The pass refuses a stage without work, and names the line of its mark. A stage has no work if:

    - no operation, or no later stage, uses the result of its mark;
    - the marked value is the same for all microbatches;
    - it is the last stage, and nothing is computed after the mark before it.

    The pass also refuses a second pass over a microbatch, whose forward reads gradients of the first pass.

    Options:
        cuts: the layers of each stage, from the first one on: `5,5,4,2`. Without it, each mark ends a stage.

    Preconditions: `find-microbatch-loop` and `unroll-loops` ran; there are n-1 or n marks for n stages.

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

    cuts: str = ""

    def __post_init__(self) -> None:
        words = self.cuts.split(",") if self.cuts else []
        if not all(word.isascii() and word.isdigit() and int(word) for word in words):
            raise ValueError(f"cuts: expected the layers of each stage, such as '5,5,4,2', found {self.cuts!r}")

    def run(self, module: ir.Module) -> None:
        """Numbers the marks of `module`. Raises PassError where the marks don't fit the schedule or the cuts."""
        loop, marks = _marked(module)
        check_one_pass(marks, loop.op)
        loop, plan = write_counts(loop), loop.plan
        sizes = [int(word) for word in self.cuts.split(",")] if self.cuts else []
        if sizes:
            check_used(loop.op, marks)
        if plan.slices == 1 or sizes:
            check_kept(module.operation, marks, sum(sizes) or plan.stages)
            marks = number_marks(marks, _numbers(module, marks, loop, sizes))
        if plan.slices > 1:
            _number_slices(marks, plan, loop.op)
        check_work(loop)
        if at.LOST_MARKS in module.operation.attributes:
            del module.operation.attributes[at.LOST_MARKS]


def _numbers(module: ir.Module, marks: Marks, loop: MicrobatchLoop, cuts: list[int]) -> list[int | None]:
    """Returns the stage that each of `marked_stages` ends; None for a mark between the layers of a stage.

    Raises:
        PassError: when the marks don't fit the stages of the schedule, or the layers of the cuts.
    """
    plan = loop.plan
    layers = stages_of(marks, loop.op, sum(cuts) or plan.stages)
    if cuts and layers is None:
        found, each = len(marked_stages(marks)) // plan.slices, " in each slice" * (plan.slices > 1)
        raise PassError(
            f"the cuts {', '.join(map(str, cuts))} are of {sum(cuts)} layers, found {found} stage marks{each}",
            location=loop.op.location,
            hint=f"mark the end of every layer (mark_stage_end), and give cuts that add up to {found}",
        )
    if cuts and len(cuts) != plan.stages:
        raise PassError(
            f"the cuts are of {len(cuts)} stage{'s' * (len(cuts) != 1)}, the schedule {plan.name} has {plan.stages}",
            location=loop.op.location,
            hint=f"give the layers of each of {plan.stages} stages, or a schedule of {len(cuts)}",
        )
    last = {layer - 1: stage for stage, layer in enumerate(accumulate(cuts or [1] * plan.stages))}
    numbers = [last.get(layer) for layer in layers or ()]
    ends = [number for number in numbers if number is not None]
    # In a graph of stages each mark ends a stage of its own: `after` refers to stages by number.
    is_twice = plan.placement.after and len({*ends}) < len(ends)
    kept = _kept(marks, numbers) if cuts else marks
    if layers is None or is_twice or has_other_shards(kept, plan):
        raise wrong_number(kept, loop, at.integer(module.operation, at.MESHES) or 0)
    return numbers


def _kept(marks: Marks, numbers: list[int | None]) -> Marks:
    """Returns the forward marks that end a stage."""
    forward = [(op, mark) for op, mark in marks if mark.phase == "forward"]
    return [each for each, number in zip(forward, numbers, strict=False) if number is not None]


def _number_slices(marks: Marks, schedule: schedules.Schedule, loop: ir.Operation) -> None:
    """Numbers the marks of each slice: with n stages, stage s of slice j ends at the mark of number j * n + s.

    Raises PassError unless each slice has a forward mark after every stage. The last stage needs a mark too: its
    forward is a task of its own, as the next slice takes its results.
    """
    for number in range(schedule.slices):
        own = [(op, mark) for op, mark in marks if at.integer(op, at.SLICE) == number]
        ended = sum(mark.phase == "forward" for _, mark in own)
        if ended != schedule.stages:
            again = computed_again(marks) or _computed_in_advance(own, loop)
            if again is not None:
                raise marked_twice(again)
            raise PassError(
                f"slice {number} has {ended} stage mark{'s' * (ended != 1)} in its forward, the schedule "
                f"{schedule.name} has {schedule.stages} stages",
                location=own[0][0].location if own else loop.location,
                hint=set_by_jaxpp(own, schedule)
                or "mark the end of every stage in each slice, the last one too, with the loss of the slice, "
                "and use that loss: jax.value_and_grad",
            )
        number_marks(own, range(number * schedule.stages, (number + 1) * schedule.stages))


def _computed_in_advance(marks: Marks, loop: ir.Operation) -> ir.Operation | None:
    """Returns a slice's forward mark that is repeated after a barrier: `jax.checkpoint` is around all slices."""
    barrier = next((op for op in operations(loop_body(loop)) if boundary.is_barrier(op)), None)
    if barrier is None:
        return None
    before = {mark.stage for op, mark in marks if op.is_before_in_block(barrier)}
    behind = ((op, mark) for op, mark in marks if barrier.is_before_in_block(op))
    return next((op for op, mark in behind if mark.phase == "forward" and mark.stage in before), None)


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

    `module` must meet the preconditions of `number-stages`, and is changed. Raises PassError like `number-stages`.
    """
    loop, marks = _marked(module)
    check_used(loop.op, marks)
    check_kept(module.operation)
    has_backward = any(mark.phase == "backward" for _, mark in marks)
    return LoopOfLayers(len(marked_stages(marks)), loop.length, has_backward)


def _marked(module: ir.Module) -> tuple[MicrobatchLoop, Marks]:
    """Returns the loop over microbatches and its marks. Splits barriers, and drops recomputed marks."""
    main, loop = main_of(module), MicrobatchLoop.of(module)
    ops = list(nested(main))
    marks = check_marks(main, ops, loop.op)
    op = drop_invariants(ops, loop.op)
    split_barriers(marks)
    return replace_fields(loop, op=op), _reuse_recomputed(op, marks)


def _reuse_recomputed(loop: ir.Operation, marks: Marks) -> Marks:
    """Replaces each mark that `jax.checkpoint` rematerialises by the first mark of the same value.

    Each stage then rematerialises from its own boundary on, whatever the checkpoint encloses: a block with a mark, or
    the whole model. A barrier of `jax.checkpoint` would then hold values of several stages. The function therefore
    gives each value a barrier of its own. Returns the marks that stay.
    """
    forward = [mark.stage for _, mark in marks if mark.phase == "forward"]
    if len(set(forward)) == len(forward):
        return marks
    # A layer that is traced once and called several times has marks of one number in several stages. Their values
    # tell a rematerialised mark from the mark of another call.
    numbering = Numbering(_through_barrier, without={at.SLICE})  # JAX moves some operations of a slice before the loop
    firsts: dict[Hashable, ir.Operation] = {}
    barriers: dict[ir.Value, None] = {}
    again: set[int] = set()
    for number, (op, mark) in enumerate(marks):
        if mark.phase == "backward":
            continue
        marked = tuple([numbering.of(value) for value in op.operands])
        first = firsts.setdefault((mark.stage, mark.name, at.integer(op, at.SLICE), marked), op)
        if first is not op:
            again.add(number)
            barriers.update(dict.fromkeys(_barriers_before(op, loop_body(loop))))
            replace(op, first.results)
    for value in barriers:
        split_barrier(ir.OpResult(value).owner.operation)
    return [each for number, each in enumerate(marks) if number not in again]


def _through_barrier(op: ir.Operation, result: int) -> ir.Value | None:
    """Returns the operand that a barrier of `jax.checkpoint` hands on."""
    return op.operands[result] if boundary.is_barrier(op) else None


def _barriers_before(mark: ir.Operation, body: ir.Block) -> list[ir.Value]:
    """Returns one result of each barrier with several values between a mark and the marks before it."""
    barriers: list[ir.Value] = []

    def operands(value: ir.Value) -> Sequence[ir.Value]:
        op = defining_op(value)
        if op is None or op.block != body or boundary.is_mark(op):
            return ()
        if not boundary.is_barrier(op):
            return operands_with_captures(op)
        barriers.extend(op.results[:1] if len(op.operands) > 1 else ())
        return [op.operands[ir.OpResult(value).result_number]]

    closure(mark.operands, operands)
    return barriers
