"""`find-microbatch-loop`: finds the loop over microbatches, and writes its schedule, length and counts on it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.canonicalize import drop_invariants, drop_scalar_constraints, write_counts
from jaxpp.hlo_passes.loop.idle_stages import check_kept
from jaxpp.hlo_passes.loop.marks import count_marks
from jaxpp.hlo_passes.loop.runnable import check_runnable
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.counted import trip_count, trips
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, loop_body, main_of, nested, nested_by_name, operations
from jaxpp.ir.kinds import operations_of, parse_operations, write_operations
from jaxpp.ir.loop import MicrobatchLoop, entries
from jaxpp.ir.tensors import check_arrays
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.schedules.builders.steps import first_step, in_steps, steps_of
from jaxpp.schedules.given import as_text, check_words, library_name, of_text
from jaxpp.schedules.library import options_of

_LARGE = 1 << 20
"""The size above which a schedule takes long to make: meshes * (meshes + microbatches)."""


@dataclass(frozen=True)
class FindMicrobatchLoop(Pass):
    """Finds the one loop that the schedule unrolls, resolves its schedule, and brings it into a canonical form.

    The loop is the `stablehlo.while` that carries `jaxpp.microbatch_loop` (written by `treduce`), or the only one whose
    body holds stage marks (a user's `lax.scan` or `fori_loop`). All later passes read its schedule there. Afterwards:

    - No loop carries values that its body returns unchanged: the body uses the values from outside. XLA also drops
      such values, and then can't match the carried values with their shardings.
    - An integer that the body advances by constants (a counter of random numbers), in one stage or several, counts from
      a constant by one addition. If its start is no constant, the uses in the body and after the loop add the start.
    - `jaxpp.microbatch_loop = {length, schedule, stages, indices, starts, steps}`: `indices` are the carried positions
      that count microbatches (a `fori_loop` has two), with value `start + step * microbatch`.

    `number-stages` checks the marks once the loops over layers and slices are unrolled.

    Options:
        schedule: a schedule's name (`1f1b`, `gis{chunks=4}`), file or text form. It replaces the loop's schedule.
        meshes: the number of meshes for a schedule given by name. It replaces the number that the module carries.
        operations: the kinds of tasks that are bound to the user's functions, as `mpmd_jit_with_loop` writes them on
            the module: `tick,log:residuals`.

    Preconditions: `inline-calls` ran; the loop counts to a constant.

    ```mlir
    %r:3 = stablehlo.while(%w_ = %w, %i = %c0, %acc = %zero)   ==>   %r:2 = stablehlo.while(%i = %c0, %acc = %zero)
      attributes {jaxpp.microbatch_loop = {length = 8}}                 attributes {jaxpp.microbatch_loop = {length = 8,
                                                                        indices = array<i64: 0>, stages = 4, ...}}
    ```
    """

    schedule: str = ""
    meshes: int = 0
    operations: str = ""

    def __post_init__(self) -> None:
        if self.schedule:
            check_words(self.schedule)
        if not 0 <= self.meshes < 1 << 31:
            raise ValueError(f"meshes is {self.meshes}, expected a number of meshes, or 0 for that of the module")
        parse_operations(self.operations)

    def run(self, module: ir.Module) -> None:
        """Finds the loop of `module`, and writes its schedule, length and counts on it.

        Raises:
            PassError: when there is not exactly one such loop, or its schedule or length don't fit.
        """
        main, operations = main_of(module), self._operations(module)
        write_operations(module, operations)
        if self.meshes:
            module.operation.attributes[at.MESHES] = at.i64(self.meshes)
        by_name = nested_by_name(main)
        loops, constraints = by_name["stablehlo.while"], by_name["sdy.sharding_constraint"]
        loop = find_loop(main, loops)
        check_arrays(loop.operands, "is carried by the microbatch loop")
        is_inferred = at.LOOP not in loop.attributes
        loop = drop_invariants([*loops, *constraints], loop)
        length = _length(loop)
        schedule, text = self._schedule(module, loop, length, operations)
        stages = schedule.stages * schedule.slices
        write_counts(MicrobatchLoop(loop, length, stages, text, [], [], [], schedule.slices, is_inferred))

    def _operations(self, module: ir.Module) -> dict[str, bool]:
        return operations_of(module) | parse_operations(self.operations)

    def _schedule(
        self, module: ir.Module, loop: ir.Operation, length: int, operations: Collection[str]
    ) -> tuple[schedules.Schedule, str]:
        """Returns the schedule of the loop and its text; for a schedule of several steps, the first step's.

        Raises:
            PassError: when there is no schedule, it can't be made, read or run, or has not `length` microbatches.
        """
        text = self.schedule or loop_schedule(loop)
        try:
            if not text:
                raise PassError(
                    "the microbatch loop has no schedule",
                    location=loop.location,
                    hint='give one: schedule="1f1b" to treduce or mpmd_jit_with_loop, or a name to jaxpp-opt',
                )
            meshes = at.integer(module.operation, at.MESHES) or 0
            if not meshes and library_name(text):
                raise PassError(
                    f"a schedule by name ({text}) needs the number of meshes",
                    location=loop.location,
                    hint="give meshes=N to the pass, or --meshes N with --pipeline",
                )
            if library_name(text):
                _check_meshes(loop, meshes, length)
            if "\n" not in text:
                text = str(_resolved(module, loop, text, meshes, length))
            schedule = of_text(text)
            steps = 1
            if _takes_steps(module, schedule, loop):
                steps = steps_of(schedule)
                schedule = first_step(schedule)
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


def _resolved(module: ir.Module, loop: ir.Operation, given: str, meshes: int, microbatches: int) -> schedules.Schedule:
    """Returns the schedule for a name of the library or a file.

    In a `jaxpp.train_loop` of several steps with a delay, a schedule by name becomes one of all steps.

    Args:
        module: the module, which may be a `jaxpp.train_loop`.
        loop: the loop over microbatches.
        given: a name of the library, or a file.
        meshes: the number of meshes.
        microbatches: the number of microbatches of one step.

    Raises:
        PassError: when the schedule overlaps steps, but the train loop has no delay.
        ScheduleError: when no such schedule exists for these numbers, or its steps can't overlap.
    """
    found, name = TrainLoopAttr.of(module), library_name(given)
    if found is None or found.steps == 1 or name is None:
        return schedules.resolve(given, meshes=meshes, microbatches=microbatches)
    if "steps" in options_of(name):
        if not found.delay:
            raise PassError(
                f"the schedule {name} overlaps steps, whose gradients are not delayed",
                location=loop.location,
                hint="give the train_loop a delay, or a schedule of one step, such as 1f1b",
            )
        options = {"steps": found.steps, "delay": found.delay}
        return schedules.resolve(given, meshes=meshes, microbatches=microbatches, **options)
    if not found.delay:
        return schedules.resolve(given, meshes=meshes, microbatches=microbatches)
    every = schedules.resolve(given, meshes=meshes, microbatches=microbatches * found.steps)
    return in_steps(every, found.steps, found.delay)


def _takes_steps(module: ir.Module, schedule: schedules.Schedule, loop: ir.Operation) -> bool:
    """Whether `schedule` is of several steps. If so, writes its text on the `jaxpp.train_loop` of `module`.

    Raises:
        PassError: when the schedule has several steps, but not as many as the train loop. Also when the train loop has
            a delay, but the schedule has one step.
    """
    found, steps = TrainLoopAttr.of(module), steps_of(schedule)
    if steps != 1 and (found is None or found.steps != steps):
        expected, hint = "one training step", f"give it to mpmd_jit_with_loop(train_loop(step, {steps}, delay), ...)"
        if found is not None:
            expected = f"{found.steps}, as many as the train_loop has"
            hint = f"make the schedule with steps={found.steps}, or the loop with train_loop(step, {steps}, ...)"
        raise PassError(
            f"the schedule {schedule.name} is of {steps} steps, expected {expected}", location=loop.location, hint=hint
        )
    if found is not None and steps == 1 and found.delay and found.steps > 1:
        raise PassError(
            f"the gradients are delayed by {found.delay}, but the schedule {schedule.name} is of one step: nothing "
            "would overlap",
            location=loop.location,
            hint='give one by name, such as "1f1b", which is then of all steps, or one of several, such as '
            f"pipedream-2bw{{steps={found.steps} delay={found.delay}}}; or leave the delay out",
        )
    if steps > 1 and found is not None:
        replace(found, schedule=str(schedule)).write(module)
    return steps > 1


def _check_meshes(loop: ir.Operation, meshes: int, length: int) -> None:
    """Raises PassError for a large schedule by name with more stages than the loop has, before the schedule is made."""
    if meshes * (meshes + length) > _LARGE and meshes > (count := count_marks(loop_body(loop))) + 1:
        raise PassError(
            f"found {count} stage mark{'s' * (count != 1)}, a schedule for {meshes} meshes has at least as many stages",
            location=loop.location,
            hint="give fewer meshes",
        )


def loop_schedule(loop: ir.Operation) -> str:
    """Returns the text of the schedule that a loop carries; empty when it carries none."""
    return entries(loop).get("schedule", "")


def _length(loop: ir.Operation) -> int:
    """Returns how often `loop` runs. Raises PassError if `length` in its `jaxpp.microbatch_loop` differs."""
    length = trip_count(loop)
    if (said := entries(loop).get("length", length)) != length:
        raise PassError(f"{at.LOOP} says {said} microbatches, the loop runs {length}", location=loop.location)
    return length


def number_of_microbatches(loop: ir.Operation) -> int:
    """Returns how often a loop that `find_loop` found runs. Raises PassError like the pass."""
    if trips(loop) is None:
        drop_scalar_constraints(nested(loop))  # they may hide its counter
    return _length(loop)


def _is_backward(loop: ir.Operation) -> bool:
    """Whether a loop has marks, all of phase `backward`: it is the gradient of another loop."""
    phases = {boundary.read(op).phase for op in nested(loop) if boundary.is_mark(op)}
    return phases == {"backward"}


def _has_marks(op: ir.Operation) -> bool:
    return any(boundary.is_mark(inner) for inner in nested(op))


def _inside_another(loop: ir.Operation) -> PassError:
    return PassError(
        "the microbatch loop stands inside another loop or conditional",
        location=loop.location,
        hint="call treduce at the top level of the training step; a train_loop is given to mpmd_jit_with_loop itself",
    )


def find_loop(main: ir.Operation, loops: Sequence[ir.Operation] | None = None) -> ir.Operation:
    """Returns the loop over microbatches: it carries `jaxpp.microbatch_loop`, or its body holds stage marks.

    Args:
        main: `@main`.
        loops: all loops of `main`, if they are known.

    Raises:
        PassError: when no loop or several loops qualify; or when the loop is inside another loop or a conditional, or
            is differentiated as a whole.
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
    """Returns the error for a step in which no loop is marked as the loop over microbatches.

    Raises PassError instead, if JAX dropped an unused mark.
    """
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
            hint="mark the end of each stage (jaxpp.mark_stage_end) in what the loop over microbatches computes; "
            f"in a module: {boundary.BARRIER} {{{at.BOUNDARY} = {boundary.FORM}}}",
        )
    return PassError(
        "no microbatch loop, and no stage mark",
        location=main.location,
        hint=f"{treduce}, and mark the end of each stage in it (jaxpp.mark_stage_end)",
    )
