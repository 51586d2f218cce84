"""`find-microbatch-loop`: names the loop over microbatches, its trip count, its indices and its state."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass, PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir import boundary
from jaxpp.hlo_passes.ir.functions import body_of, main_of, nested, operations, terminator
from jaxpp.hlo_passes.loop.counted import counters, trip_count


@dataclass(frozen=True)
class FindMicrobatchLoop(Pass):
    """Finds the one loop that the schedule unrolls and leaves it in a canonical form.

    The loop is the `stablehlo.while` that carries `jaxpp.microbatch_loop` (written by `treduce`), or the only one whose
    body holds stage marks (a user's `lax.scan` or `fori_loop`). Afterwards:

    - values that the body hands on unchanged are no longer carried: the body uses the value from outside (so in every
      loop: XLA drops them too, and then can't match them with their shardings);
    - a barrier of several values that is no mark (`jax.checkpoint` makes them) is one barrier for each: they may belong
      to different stages;
    - `jaxpp.microbatch_loop = {length, schedule, stages, indices, starts, steps}`: `indices` are the carried positions
      that count microbatches (a `fori_loop` has two), with value `start + step * microbatch`;
    - the forward marks are numbered 0, 1, 2... in program order, each backward mark like its forward mark.

    Options:
        schedule: a schedule's name (`1f1b`) or text form, instead of the loop's own.
        meshes: the number of meshes for a schedule given by name.

    Preconditions: `inline-calls` ran; the loop counts to a constant; there are n-1 or n marks for n stages.

    ```mlir
    %r:3 = stablehlo.while(%w_ = %w, %i = %c0, %acc = %zero)   ==>   %r:2 = stablehlo.while(%i = %c0, %acc = %zero)
      attributes {jaxpp.microbatch_loop = {length = 8}}                 attributes {jaxpp.microbatch_loop = {length = 8,
                                                                        indices = array<i64: 0>, stages = 4, ...}}
    ```
    """

    name: ClassVar[str] = "find-microbatch-loop"
    schedule: str = ""
    meshes: int = 0

    def run(self, module: ir.Module) -> None:
        """Canonicalize the loop of `module`. Raises PassError for each way in which there is no such loop."""
        main = main_of(module)
        loop = _find(main)
        _check_marks(main, loop)
        _drop_scalar_constraints(main)
        for inner in reversed([op for op in nested(main) if op.name == "stablehlo.while" and op != loop]):
            drop_invariants(inner)
        loop = drop_invariants(loop)
        _split_barriers(loop)
        length = _length(loop)
        schedule, text = self._schedule(loop, length)
        repeated = _recomputed_mark(loop, schedule.stages)
        marks = number_marks(loop)
        if marks not in (schedule.stages - 1, schedule.stages):
            if repeated is not None:
                raise PassError(
                    "a stage mark inside jax.checkpoint: the backward computes it again",
                    location=repeated.location,
                    hint="put jax.checkpoint around what stands between two marks",
                )
            found = f"found {marks} stage mark{'s' * (marks != 1)}"
            raise PassError(
                f"{found}, the schedule {schedule.name} has {schedule.stages} stages",
                location=loop.location,
                hint=f"mark the end of every stage (mark_stage_end): {schedule.stages} marks, or "
                f"{schedule.stages - 1} without the last one",
            )
        indices = counters(loop)
        loop.attributes[at.LOOP] = ir.DictAttr.get(
            {
                "length": at.i64(length),
                "schedule": ir.StringAttr.get(text),
                "stages": at.i64(schedule.stages),
                "indices": at.i64s(position for position, _, _ in indices),
                "starts": at.i64s(start for _, start, _ in indices),
                "steps": at.i64s(step for _, _, step in indices),
            }
        )

    def _schedule(self, loop: ir.Operation, length: int) -> tuple[schedules.Schedule, str]:
        """The schedule of the loop and its text form."""
        text = self.schedule or loop_schedule(loop)
        try:
            if not text:
                raise PassError(
                    "the microbatch loop has no schedule",
                    location=loop.location,
                    hint="give one: schedule=jaxpp.Std1F1B(4) to treduce or mpmd_jit_with_loop, or a name to jaxpp-opt",
                )
            if "\n" in text:
                schedule = schedules.parse(text)
            elif not self.meshes and text in schedules.names():
                raise PassError(
                    f"a schedule by name ({text}) needs the number of meshes",
                    location=loop.location,
                    hint="give meshes=N to the pass, or --meshes N with --pipeline",
                )
            else:
                schedule = schedules.make(text, meshes=self.meshes, microbatches=length)
                text = str(schedule)
        except schedules.ScheduleError as error:
            raise PassError(str(error), location=loop.location) from error
        if schedule.microbatches != length:
            raise PassError(
                f"the loop runs {length} microbatches, its schedule has {schedule.microbatches}", location=loop.location
            )
        return schedule, text


def _entries(loop: ir.Operation) -> dict[str, ir.Attribute]:
    """What `jaxpp.microbatch_loop` says; empty for a loop without it."""
    attribute = loop.attributes.get(at.LOOP)
    if attribute is None:
        return {}
    if not isinstance(attribute, ir.DictAttr):
        raise PassError(
            f"unknown form of {at.LOOP}: {attribute}",
            location=loop.location,
            hint='it is a dictionary: {length = 8 : i64, schedule = "..."}',
        )
    return at.dictionary(attribute)


def loop_schedule(loop: ir.Operation) -> str:
    """The text of the schedule that a loop carries; empty when it carries none."""
    schedule = _entries(loop).get("schedule")
    return schedule.value if isinstance(schedule, ir.StringAttr) else ""


def _length(loop: ir.Operation) -> int:
    """How often `loop` runs, which is what it says of itself."""
    length, said = trip_count(loop), _entries(loop).get("length")
    if isinstance(said, ir.IntegerAttr) and said.value != length:
        raise PassError(f"{at.LOOP} says {said.value} microbatches, the loop runs {length}", location=loop.location)
    return length


def microbatches_without_schedule(module: ir.Module) -> int | None:
    """How many microbatches the loop of `module` runs, when it carries no schedule; None when it has one.

    Raises PassError as the pass does. `inline-calls` must have run.
    """
    loop = _find(main_of(module))
    return None if loop_schedule(loop) else _length(loop)


def _find(main: ir.Operation) -> ir.Operation:
    named: list[ir.Operation] = []
    marked: list[ir.Operation] = []
    for op in operations(body_of(main)):
        if op.name == "stablehlo.while":
            if at.LOOP in op.attributes:
                named.append(op)
            elif any(boundary.is_mark(inner) for inner in nested(op)):
                marked.append(op)
    found = named + marked
    if len(found) == 1:
        return found[0]
    if found:
        raise PassError(
            f"found {len(found)} microbatch loops, expected one",
            location=found[1].location,
            hint="one treduce (or one loop with stage marks) per step; put both losses into one",
        )
    inner = next((op for op in nested(main) if at.LOOP in op.attributes), None)
    if inner is not None:
        raise PassError(
            "the microbatch loop stands inside another loop or conditional",
            location=inner.location,
            hint="call treduce at the top level of the training step",
        )
    mark = next((op for op in nested(main) if boundary.is_mark(op)), None)
    raise PassError(
        "no microbatch loop" + (": the stage marks stand outside of any loop" if mark is not None else ""),
        location=(mark or main).location,
        hint="wrap the gradient of one microbatch in jaxpp.treduce, or write the loop with lax.scan",
    )


def _drop_scalar_constraints(main: ir.Operation) -> None:
    """Explicit mesh axes put a constraint on every value, the counter too; a scalar has nothing to constrain."""
    for op in list(nested(main)):
        if op.name == "sdy.sharding_constraint" and ir.RankedTensorType(op.operands[0].type).rank == 0:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def _check_marks(main: ir.Operation, loop: ir.Operation) -> None:
    body = loop.regions[1].blocks[0]
    for op in nested(main):
        if boundary.ATTRIBUTE not in op.attributes:
            continue
        if not boundary.is_mark(op):
            raise PassError(
                f"{boundary.ATTRIBUTE} on a {op.name}",
                location=op.location,
                hint="a stage mark is a stablehlo.optimization_barrier",
            )
        if op.block != body:
            parent = op.parent.operation if op.parent is not None else main
            where = "outside of the microbatch loop" if parent == main else f"inside a {_construct(parent)}"
            raise PassError(
                f"a stage mark {where}",
                location=op.location,
                hint="marks must stand directly in the function that treduce maps over the microbatches",
            )


def _construct(op: ir.Operation) -> str:
    names = {"stablehlo.while": "scan or while loop", "stablehlo.case": "conditional", "stablehlo.if": "conditional"}
    names["sdy.manual_computation"] = "shard_map"
    return names.get(op.name, op.name)


def drop_invariants(loop: ir.Operation) -> ir.Operation:
    """Rebuild `loop` without the carried values that its body returns unchanged; returns the new loop."""
    body = loop.regions[1].blocks[0]
    yielded = list(terminator(body).operands)
    invariant = [yielded[i] == argument for i, argument in enumerate(body.arguments)]
    kept = [i for i, same in enumerate(invariant) if not same]
    if len(kept) == len(invariant):
        return loop
    operands = list(loop.operands)
    attributes = {name: loop.attributes[name] for name in (at.LOOP,) if name in loop.attributes}
    new = ir.Operation.create(
        "stablehlo.while",
        results=[operands[i].type for i in kept],
        operands=[operands[i] for i in kept],
        attributes=attributes,
        regions=2,
        ip=ir.InsertionPoint(loop),
        loc=loop.location,
    )
    _return_only(body, kept)
    for i, result in enumerate(loop.results):
        result.replace_all_uses_with(new.results[kept.index(i)] if not invariant[i] else operands[i])
    for old, region in zip(list(loop.regions), list(new.regions), strict=True):
        block = old.blocks[0]
        block.append_to(region)
        for i in reversed(range(len(invariant))):
            if invariant[i]:
                block.arguments[i].replace_all_uses_with(operands[i])
                block.erase_argument(i)
    loop.erase()
    return new


def _split_barriers(loop: ir.Operation) -> None:
    for op in operations(loop.regions[1].blocks[0]):
        if op.name == "stablehlo.optimization_barrier" and not boundary.is_mark(op) and len(op.operands) > 1:
            for result, operand in zip(list(op.results), list(op.operands), strict=True):
                alone = ir.Operation.create(
                    op.name, results=[operand.type], operands=[operand], ip=ir.InsertionPoint(op), loc=op.location
                )
                result.replace_all_uses_with(alone.results[0])
            op.erase()


def _return_only(body: ir.Block, kept: list[int]) -> None:
    end = terminator(body)
    values = list(end.operands)
    ir.Operation.create(
        "stablehlo.return", operands=[values[i] for i in kept], ip=ir.InsertionPoint(end), loc=end.location
    )
    end.erase()


def _recomputed_mark(loop: ir.Operation, stages: int) -> ir.Operation | None:
    """A forward mark that the backward computes again, if any; None when the marks fit `stages` as they are."""
    marks = [(op, boundary.read(op)) for op in operations(loop.regions[1].blocks[0]) if boundary.is_mark(op)]
    forward = [(op, mark.stage) for op, mark in marks if mark.phase == "forward"]
    if len(forward) <= stages:
        return None
    phases = [mark.phase for _, mark in marks]
    first_backward = phases.index("backward") if "backward" in phases else len(phases)
    late = [op for op, mark in marks[first_backward:] if mark.phase == "forward"]
    numbers = [stage for _, stage in forward]
    again = [op for i, (op, stage) in enumerate(forward) if stage in numbers[:i]]
    return next(iter(late or (again if len(set(numbers)) in (stages - 1, stages) else [])), None)


def number_marks(loop: ir.Operation) -> int:
    """Number the forward marks of `loop` 0, 1, 2... in program order, each backward mark like its forward mark.

    A layer that is traced once and called several times leaves the same number on different stages. Those are told
    apart by their order: the backward meets the stages in the reverse of the forward's order. Where only the gradient
    is used, JAX drops the forward mark of the last stage and keeps its backward mark. Returns the number of stages
    that end in a mark.
    """
    marks = [(op, boundary.read(op)) for op in operations(loop.regions[1].blocks[0]) if boundary.is_mark(op)]
    forward = [mark.stage for _, mark in marks if mark.phase == "forward"]
    backward = [mark.stage for _, mark in marks if mark.phase == "backward"]
    if backward and backward[0] not in forward:
        forward.append(backward[0])
    above, number = len(forward), 0
    for op, mark in marks:
        if mark.phase == "forward":
            stage, number = number, number + 1
        else:
            stage = next((i for i in reversed(range(above)) if forward[i] == mark.stage), None)
            if stage is None:
                raise PassError(
                    f"the backward mark of stage {mark.stage} has no forward mark before it", location=op.location
                )
            above = stage
        boundary.write(op, boundary.Boundary(stage, mark.phase, mark.name))
    return len(forward)
