"""The error for stage marks that don't fit the stages of a schedule, with what to do about it."""

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.loop.marks import computed_again, marked_stages, marked_twice
from jaxpp.hlo_passes.loop.own_marks import of_vocabulary, set_by_jaxpp
from jaxpp.ir import attributes as at
from jaxpp.ir.boundary import Marks
from jaxpp.ir.errors import PassError
from jaxpp.schedules.given import library_name


def wrong_number(marks: Marks, schedule: schedules.Schedule, loop: ir.Operation, meshes: int) -> PassError:
    """The error for marks that don't fit the stages of a schedule; `meshes`: how many there are, or 0."""
    stages, name = schedule.stages, schedule.name
    of = f"{stages} stage{'s' * (stages != 1)}"
    again = computed_again(marks)
    if again is not None:
        return marked_twice(again)
    count = len(marked_stages(marks))
    if any(at.LAYER in op.attributes for op, _ in marks):
        return PassError(
            f"found {count} stage marks, one for each layer of a scan; the schedule {name} has {of}",
            location=marks[0][0].location,
            hint=of_vocabulary(marks, schedule)
            or _fewer_stages(stages, count) + _another_schedule(schedule, count, meshes),
        )
    ends = f"{stages} mark{'s' * (stages != 1)}"
    fewer = f"mark the end of every stage (mark_stage_end): {ends}, or {stages - 1} without the last one"
    special = set_by_jaxpp(marks, schedule)
    if count > stages:
        hint = special or f"{fewer}; or {_another_schedule(schedule, count, meshes)}"
    else:
        hint = _another_loop(loop) + (special or fewer)
    return PassError(
        f"found {count} stage mark{'s' * (count != 1)}, the schedule {name} has {of}",
        location=loop.location,
        hint=hint,
    )


def _fewer_stages(stages: int, layers: int) -> str:
    """What makes so many stages of the layers of a scan; empty where there are fewer layers than that."""
    ways: list[str] = []
    if layers > stages > 1 and layers % stages == 0:
        ways.append(
            f"scan over the {stages} stages, and over the layers of each inside: "
            f"reshape the stacked parameters to ({stages}, layers per stage, ...); or "
        )
    if layers > stages:
        ways.append(f"say how many of the {layers} layers each stage has: cuts=[...]; or ")
    return "".join(ways)


def _another_schedule(schedule: schedules.Schedule, count: int, meshes: int) -> str:
    """The hint to take a schedule that has as many stages as there are marks, on the meshes that there are, if it can.

    The example is the schedule itself with other options, or else 1F1B.
    """
    hint = f"take a schedule of {count} stage{'s' * (count != 1)}"
    for number in filter(None, (meshes, schedule.meshes)):
        for name in (schedule.name, "1f1b"):
            for example in (name, f"{name}{{chunks={count // number}}}"):
                if library_name(name) and _stages(example, number, schedule.microbatches) == count:
                    return f"{hint}, such as {example} on {number} mesh{'es' * (number != 1)}"
    return hint


def _stages(name: str, meshes: int, microbatches: int) -> int | None:
    """The stages of a schedule of the library; None where it does not exist for these numbers."""
    try:
        return schedules.resolve(name, meshes=meshes, microbatches=microbatches).stages
    except schedules.ScheduleError:
        return None


def _another_loop(loop: ir.Operation) -> str:
    """The hint for a loop with too few marks that the user wrote: it may not be the one over microbatches."""
    if at.LOOP in loop.attributes:
        return ""
    return (
        "if this loop is not over microbatches: wrap the gradient of one microbatch in jaxpp.treduce, or compile a "
        "function without microbatches by jaxpp.mpmd_jit_by_yield; if it is, "
    )
