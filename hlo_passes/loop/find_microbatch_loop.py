"""`find-microbatch-loop`: names the loop over microbatches, its trip count, its indices and its state."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.canonicalize import count_from_zero, drop_invariants, drop_scalar_constraints, split_barriers
from jaxpp.hlo_passes.loop.idle_stages import check_kept, check_work
from jaxpp.hlo_passes.loop.marks import (
    check_marks,
    check_one_pass,
    find_marks,
    marked_stages,
    number_marks,
    number_slices,
    stages_of,
)
from jaxpp.hlo_passes.loop.of_steps import resolved, takes_steps
from jaxpp.hlo_passes.loop.own_marks import has_other_shards
from jaxpp.hlo_passes.loop.recomputed import reuse_recomputed_marks
from jaxpp.hlo_passes.loop.runnable import check_runnable
from jaxpp.hlo_passes.loop.wrong_marks import wrong_number
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.counted import counters, trip_count, trips, wrapped
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, main_of, nested, nested_by_name, operations
from jaxpp.ir.kinds import operations_of, parse_operations, write_operations
from jaxpp.ir.loop import MicrobatchLoop, entries
from jaxpp.ir.tensors import check_arrays
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.schedules.given import as_text, check_words, library_name, of_text

_LARGE = 1 << 20
"""A schedule of more cells takes long to make."""


def check_schedule_options(schedule: str, meshes: int) -> None:
    """Raises ValueError for the name of a schedule that there is not, or a number of meshes that is none."""
    if schedule:
        check_words(schedule)
    if meshes < 0:
        raise ValueError(f"meshes is {meshes}, expected a number of meshes, or 0 for that of the module")


@dataclass(frozen=True)
class FindMicrobatchLoop(Pass):
    """Finds the one loop that the schedule unrolls and leaves it in a canonical form.

    The loop is the `stablehlo.while` that carries `jaxpp.microbatch_loop` (written by `treduce`), or the only one whose
    body holds stage marks (a user's `lax.scan` or `fori_loop`). Afterwards:

    - values that the body hands on unchanged are no longer carried: the body uses the value from outside (so in every
      loop: XLA drops them too, and then can't match them with their shardings);
    - a barrier of several values, one of which is marked (`jax.checkpoint` makes them), is one barrier for each: they
      belong to different stages;
    - a mark that `jax.checkpoint` computes again is the first one: each stage computes again from its own boundary on;
    - an integer that the body advances by constants (a counter of random numbers), in one stage or several, counts from
      a constant by one addition; the body, and what follows the loop, add a start that is no constant;
    - `jaxpp.microbatch_loop = {length, schedule, stages, indices, starts, steps}`: `indices` are the carried positions
      that count microbatches (a `fori_loop` has two), with value `start + step * microbatch`;
    - the forward marks are numbered 0, 1, 2... in program order, each backward mark like its forward mark. Those of a
      model that is applied to several inputs of a microbatch have one number where they end one stage: all applications
      go through the stages together.

    A stage without work is refused, at the line of its mark: nobody uses the mark's result, or no later stage does; it
    marks what is the same for all microbatches; nothing is computed behind the last but one. So is a second pass over a
    microbatch, whose forward reads gradients of the first one.

    Options:
        schedule: a schedule's name (`1f1b`, `gis{chunks=4}`), file or text form, instead of the loop's own.
        meshes: the number of meshes for a schedule given by name, instead of what the module says.
        operations: kinds of the schedule that are bound to functions of the user's, as `mpmd_jit_with_loop` writes them
            on the module: `tick,log:residuals`.

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
    operations: str = ""

    def __post_init__(self) -> None:
        check_schedule_options(self.schedule, self.meshes)
        parse_operations(self.operations)

    def run(self, module: ir.Module) -> None:
        """Canonicalize the loop of `module`. Raises PassError for each way in which there is no such loop."""
        main, operations = main_of(module), self._operations(module)
        write_operations(module, operations)
        ops = list(nested(main))
        names = [op.name for op in ops]
        whiles, constraints = (
            [op for op, each in zip(ops, names, strict=True) if each == name]
            for name in ("stablehlo.while", "sdy.sharding_constraint")
        )
        loop = find_loop(main, whiles)
        check_arrays(loop.operands, "is carried by the microbatch loop")
        marks = check_marks(main, ops, loop)
        loops = [op for op in whiles if op != loop]
        drop_scalar_constraints(constraints)
        for inner in reversed(loops):
            drop_invariants(inner)
        loop = drop_invariants(loop)
        split_barriers(marks)
        marks = reuse_recomputed_marks(loop, marks)
        check_one_pass(marks, loop)
        count_from_zero(loop)
        length = _length(loop)
        schedule, text = self._schedule(module, loop, length, operations)
        _check_cuts(loop, schedule)
        if schedule.slices > 1:
            number_slices(marks, schedule, loop)
        else:
            numbers = stages_of(marks, loop, schedule.stages)
            # Of a graph each mark ends a stage of its own: `after` names them by their numbers.
            is_twice = numbers is not None and schedule.placement.after and len({*numbers}) < len(numbers)
            check_kept(module.operation, marks, schedule.stages)
            if numbers is None or is_twice or has_other_shards(marks, schedule):
                raise wrong_number(marks, schedule, loop, self._meshes(module))
            number_marks(marks, numbers)
        indices = counters(loop)
        positions, starts, steps = ([wrapped(each[i]) for each in indices] for i in range(3))
        stages = schedule.stages * schedule.slices
        found = MicrobatchLoop(loop, length, stages, text, positions, starts, steps, schedule.slices)
        check_work(found)
        found.write()
        if at.LOST_MARKS in module.operation.attributes:
            del module.operation.attributes[at.LOST_MARKS]

    def schedule_of(self, module: ir.Module) -> str:
        """The text of the schedule that `run` takes, for observers: `run` may refuse the marks. Raises as it does."""
        loop = _named_loop(main_of(module)) or find_loop(main_of(module))
        _, text = self._schedule(module, loop, _microbatches(loop), self._operations(module))
        steps = TrainLoopAttr.of(module)
        return (steps and steps.schedule) or text

    def known_schedule(self, module: ir.Module) -> schedules.Schedule | None:
        """What `schedule_of` says, for passes that run before; None where it raises: the errors are those of `run`."""
        try:
            return of_text(self.schedule_of(module))
        except (PassError, schedules.ScheduleError):
            return None

    def _meshes(self, module: ir.Module) -> int:
        """How many meshes there are; 0 where nobody says it."""
        return self.meshes or at.integer(module.operation, at.MESHES) or 0

    def _operations(self, module: ir.Module) -> dict[str, bool]:
        return operations_of(module) | parse_operations(self.operations)

    def _schedule(
        self, module: ir.Module, loop: ir.Operation, length: int, operations: Collection[str]
    ) -> tuple[schedules.Schedule, str]:
        """The schedule of the loop and its text form; of one for all steps of a `jaxpp.train_loop` that of a step."""
        text = self.schedule or loop_schedule(loop)
        try:
            if not text:
                raise PassError(
                    "the microbatch loop has no schedule",
                    location=loop.location,
                    hint="give one: schedule=jaxpp.Std1F1B(4) to treduce or mpmd_jit_with_loop, or a name to jaxpp-opt",
                )
            meshes = self._meshes(module)
            if not meshes and library_name(text):
                raise PassError(
                    f"a schedule by name ({text}) needs the number of meshes",
                    location=loop.location,
                    hint="give meshes=N to the pass, or --meshes N with --pipeline",
                )
            if library_name(text):
                _check_meshes(loop, meshes, length)
            if "\n" not in text:
                text = str(resolved(module, loop, text, meshes, length))
            schedule = of_text(text)
            steps = 1
            if takes_steps(module, schedule, loop):
                steps = schedules.steps_of(schedule)
                schedule = schedules.first_step(schedule)
                text = as_text(schedule, microbatches=length)
        except schedules.ScheduleError as error:
            raise PassError(str(error), location=loop.location) from error
        check_runnable(schedule, loop, operations)
        if schedule.microbatches != length:
            each = f" in each of {steps} steps" if steps > 1 else ""
            raise PassError(
                f"the loop runs {length} microbatches, its schedule has {schedule.microbatches}{each}",
                location=loop.location,
            )
        return schedule, text


def _check_meshes(loop: ir.Operation, meshes: int, length: int) -> None:
    """Raise PassError for a large schedule by name that has more stages than the loop, before it is made."""
    count = len(marked_stages(find_marks(loop)))
    if meshes > count + 1 and meshes * (meshes + length) > _LARGE:
        raise PassError(
            f"found {count} stage mark{'s' * (count != 1)}, a schedule for {meshes} meshes has at least as many stages",
            location=loop.location,
            hint="give fewer meshes",
        )


def loop_schedule(loop: ir.Operation) -> str:
    """The text of the schedule that a loop carries; empty when it carries none."""
    schedule = entries(loop).get("schedule")
    return schedule.value if isinstance(schedule, ir.StringAttr) else ""


def _check_cuts(loop: ir.Operation, schedule: schedules.Schedule) -> None:
    """Raise PassError where `merge-stages` left another number of stages than the schedule has."""
    said = entries(loop).get("stages")
    if isinstance(said, ir.IntegerAttr) and said.value != schedule.stages:
        count = f"{said.value} stage{'s' * (said.value != 1)}"
        raise PassError(
            f"the cuts are of {count}, the schedule {schedule.name} has {schedule.stages}",
            location=loop.location,
            hint=f"give the layers of each of {schedule.stages} stages, or a schedule of {said.value}",
        )


def _length(loop: ir.Operation) -> int:
    """How often `loop` runs, which is what it says of itself."""
    length, said = trip_count(loop), entries(loop).get("length")
    if isinstance(said, ir.IntegerAttr) and said.value != length:
        raise PassError(f"{at.LOOP} says {said.value} microbatches, the loop runs {length}", location=loop.location)
    return length


def microbatches_without_schedule(module: ir.Module) -> int | None:
    """How many microbatches the loop of `module` runs, when it carries no schedule; None when it has one.

    Raises PassError as the pass does. `inline-calls` must have run.
    """
    loop = find_loop(main_of(module))
    return None if loop_schedule(loop) else _microbatches(loop)


def number_of_microbatches(module: ir.Module) -> int:
    """How many microbatches the loop of `module` runs. Raises PassError as the pass does.

    `inline-calls` must have run.
    """
    return _microbatches(find_loop(main_of(module)))


def _microbatches(loop: ir.Operation) -> int:
    """`_length` of a loop as the user's module has it."""
    if trips(loop) is None:
        drop_scalar_constraints(nested(loop))
    return _length(loop)


def _is_backward(loop: ir.Operation) -> bool:
    """Whether all marks of a loop are those of a backward: it is the gradient of another loop."""
    phases = {boundary.read(op).phase for op in nested(loop) if boundary.is_mark(op)}
    return phases == {"backward"}


def location_of_the_loop(module: ir.Module) -> ir.Location:
    """Where the user wrote the loop; for errors. Raises PassError when there is none."""
    return find_loop(main_of(module)).location


def _has_marks(op: ir.Operation) -> bool:
    return any(boundary.is_mark(inner) for inner in nested(op))


def _inside_another(loop: ir.Operation) -> PassError:
    return PassError(
        "the microbatch loop stands inside another loop or conditional",
        location=loop.location,
        hint="call treduce at the top level of the training step; a train_loop is given to mpmd_jit_with_loop itself",
    )


def _named_loop(main: ir.Operation) -> ir.Operation | None:
    """The one loop of `main` that says it is over microbatches, found at a glance: `find_loop` refuses others too."""
    loops = [op for op in operations(body_of(main)) if op.name == "stablehlo.while" and at.LOOP in op.attributes]
    return loops[0] if len(loops) == 1 else None


def find_loop(main: ir.Operation, loops: Sequence[ir.Operation] | None = None) -> ir.Operation:
    """The loop over microbatches, named or marked. Raises PassError for each way in which there is no such loop.

    loops: all loops of `main`, where they are known.
    """
    loops = nested_by_name(main)["stablehlo.while"] if loops is None else loops
    outer = [op for op in loops if op.block == body_of(main)]
    named = [op for op in outer if at.LOOP in op.attributes]
    marked = [op for op in outer if op not in named and _has_marks(op)]
    found = named + marked
    others = [op for op in loops if op not in outer and at.LOOP in op.attributes]
    inside = (inner for loop in (found if others else ()) for inner in nested(loop) if inner in others)
    if (inner := next(filter(_has_marks, inside), None)) is not None:
        raise _inside_another(inner)
    if len(found) == 1:
        return found[0]
    if any(_is_backward(loop) for loop in found):
        raise PassError(
            "the loop over microbatches is differentiated as a whole: its backward would be a loop of its own",
            location=found[0].location,
            hint="differentiate each microbatch: treduce(partial(jax.value_and_grad(loss), params), batch)",
        )
    if found:
        raise PassError(
            f"found {len(found)} microbatch loops, expected one",
            location=found[1].location,
            hint="one treduce (or one loop with stage marks) per step: put both losses into one, or make a step of "
            "each, and call one after the other (docs/recipes.md, 'Two passes')",
        )
    inner = next((op for op in nested(main) if at.LOOP in op.attributes), None)
    if inner is not None:
        raise _inside_another(inner)
    raise _no_loop(main)


def _no_loop(main: ir.Operation) -> PassError:
    """The error for a step without a loop over microbatches, or with one that nothing tells from other loops."""
    if main.parent is not None:
        check_kept(main.parent.operation)
    mark = next((op for op in nested(main) if boundary.is_mark(op)), None)
    loop = next((op for op in operations(body_of(main)) if op.name == "stablehlo.while"), None)
    treduce = "wrap the gradient of one microbatch in jaxpp.treduce, or write the loop with lax.scan"
    if mark is not None:
        return PassError(
            "no microbatch loop: the stage marks stand outside of any loop",
            location=mark.location,
            hint=f"{treduce}; jaxpp.mpmd_jit_by_yield compiles a function without microbatches",
        )
    if loop is not None:
        return PassError(
            "no microbatch loop: there is no stage mark in any loop",
            location=loop.location,
            hint="mark the end of each stage (jaxpp.mark_stage_end) in what the loop over microbatches computes",
        )
    return PassError(
        "no microbatch loop, and no stage mark",
        location=main.location,
        hint=f"{treduce}, and mark the end of each stage in it (jaxpp.mark_stage_end)",
    )
