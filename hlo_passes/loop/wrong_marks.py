"""The error for stage marks that don't fit the stages of a schedule, with what to do about it."""

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.loop.marks import Marks, computed_again, marked_stages, marked_twice
from jaxpp.ir import attributes as at
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
            hint=_of_vocabulary(marks, schedule)
            or _fewer_stages(stages, count) + _another_schedule(schedule, count, meshes),
        )
    ends = f"{stages} mark{'s' * (stages != 1)}"
    fewer = f"mark the end of every stage (mark_stage_end): {ends}, or {stages - 1} without the last one"
    special = _set_by_jaxpp(marks, schedule)
    if count > stages:
        hint = special or f"{fewer}; or {_another_schedule(schedule, count, meshes)}"
    else:
        hint = _another_loop(loop) + (special or fewer)
    return PassError(
        f"found {count} stage mark{'s' * (count != 1)}, the schedule {name} has {of}",
        location=loop.location,
        hint=hint,
    )


def _set_by_jaxpp(marks: Marks, schedule: schedules.Schedule) -> str | None:
    """The hint where functions of jaxpp have set marks, or the schedule is for such a function; None elsewhere."""
    return _of_lent_slices("slices read elsewhere" in _names(marks), schedule) or _of_vocabulary(marks, schedule)


def has_other_shards(marks: Marks, schedule: schedules.Schedule) -> bool:
    """Whether the schedule spreads a vocabulary over its meshes, and the model over another number of them."""
    return schedule.name.startswith("vocab-") and _shards(marks, "vocabulary") not in (0, schedule.meshes)


def _shards(marks: Marks, word: str) -> int:
    """How many stages are shards of this name, which end at the marks "vocabulary 0", "vocabulary 1" and so on."""
    return sum(name.startswith(f"{word} ") for name in _names(marks))


def _names(marks: Marks) -> set[str]:
    return {mark.name or "" for _, mark in marks if mark.phase == "forward"}


def _of_lent_slices(lends: bool, schedule: schedules.Schedule) -> str | None:
    """The hint for a model or a schedule whose slices lend a part of their attention."""
    if not lends and schedule.name != "slimpipe":
        return None
    if not lends:
        return (
            "slimpipe is for layers with slice_attention(..., exchange=True), which ends 3 stages of each: "
            "call that in every layer, or take seq1f1b"
        )
    if schedule.name != "slimpipe":
        return (
            "slice_attention(..., exchange=True) ends 3 stages of each layer, which is for slimpipe: "
            f"take that schedule, or leave out exchange for {schedule.name}"
        )
    return (
        "slice_attention(..., exchange=True) ends 3 stages of each layer: mark the end of the last layer of each mesh, "
        "and say to slimpipe how many layers a mesh has: layers=..."
    )


def _of_vocabulary(marks: Marks, schedule: schedules.Schedule) -> str | None:
    """The hint for a model or a schedule whose meshes share a vocabulary."""
    shards, embedded = (_shards(marks, word) for word in ("vocabulary", "embedding"))
    if shards and any(at.LAYER in op.attributes or at.SLICE in op.attributes for op, _ in marks):
        return (
            "vocabulary_cross_entropy spreads a vocabulary over stages, which a scan over slices or layers can't hold: "
            "no schedule has both; take the whole cross-entropy in the last stage, or scan over nothing with marks"
        )
    name, meshes = schedule.name, schedule.meshes
    is_for_it = name.startswith("vocab-")
    if not shards:
        own = f"jaxpp.vocabulary_cross_entropy(..., shards={meshes}), which ends {meshes + 1} stages by itself"
        return f"{name} is for losses of {own}: call it, or take another schedule" if is_for_it else None
    if not is_for_it:
        return f"vocabulary_cross_entropy ends {shards + 1} stages: take vocab-1f1b or vocab-v-half, on {shards} meshes"
    if shards != meshes:
        return (
            f"vocabulary_cross_entropy has {shards} shards, {name} one on each of its {meshes} meshes: "
            f"shards={meshes}, or a schedule of {shards} meshes"
        )
    spread = f"; vocabulary_embedding ends {embedded}, for {name}{{embedding=true}}" if embedded else ""
    own = f"the last stage of layers and its {shards} shard{'s' * (shards != 1)}"
    return (
        f"vocabulary_cross_entropy ends {own} by itself: "
        f"mark the end of the other stages of layers, and the loss{spread}"
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
