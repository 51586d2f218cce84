"""The error for stage marks that don't fit the stages of a schedule, and hints for marks that jaxpp sets."""

from collections.abc import Sequence

from jaxpp import schedules
from jaxpp.hlo_passes.loop.marks import computed_again, marked_stages, marked_twice
from jaxpp.ir.boundary import Marks
from jaxpp.ir.errors import PassError
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.schedules.given import library_name

_ANOTHER_LOOP = (
    "if this loop is not over microbatches: wrap the gradient of one microbatch in jaxpp.treduce, or compile a "
    "function without microbatches by jaxpp.mpmd_jit_by_yield; if it is, "
)


def wrong_number(marks: Marks, loop: MicrobatchLoop, meshes: int) -> PassError:
    """Returns the error for marks that don't fit the stages of a schedule.

    Args:
        marks: the stage marks of the loop.
        loop: the microbatch loop.
        meshes: the number of meshes, or 0 if it is unknown.
    """
    schedule = loop.plan
    stages, name = schedule.stages, schedule.name
    of = f"{stages} stage{'s' * (stages != 1)}"
    again = computed_again(marks)
    if again is not None:
        return marked_twice(again)
    count = len(marked_stages(marks))
    if any(mark.layer is not None for _, mark in marks):
        return PassError(
            f"found {count} stage marks, one for each layer of a scan; the schedule {name} has {of}",
            location=marks[0][0].location,
            hint=_of_vocabulary(marks, schedule)
            or _or_another_schedule(_fewer_stages(stages, count), schedule, count, meshes),
        )
    ends = f"{stages} mark{'s' * (stages != 1)}"
    hint = f"mark the end of every stage (mark_stage_end): {ends}, or {stages - 1} without the last one"
    if count > stages or count >= meshes > 0:  # with fewer marks than meshes some are missing
        layers = [f"if each mark ends a layer: {_cuts(stages, count)}"] if count > stages else []
        hint = _or_another_schedule([*layers, hint], schedule, count, meshes)
    hint = set_by_jaxpp(marks, schedule) or hint
    return PassError(
        f"found {count} stage mark{'s' * (count != 1)}, the schedule {name} has {of}",
        location=loop.op.location,
        hint=hint if count > stages else (_ANOTHER_LOOP if loop.is_inferred else "") + hint,
    )


def _fewer_stages(stages: int, layers: int) -> list[str]:
    """Returns hints to group the layers of a scan into fewer stages; none unless there are more layers than stages."""
    ways: list[str] = []
    if layers > stages > 1 and layers % stages == 0:
        ways.append(
            f"scan over the {stages} stages, and over the layers of each inside: "
            f"reshape the stacked parameters to ({stages}, layers per stage, ...)"
        )
    if layers > stages:
        ways.append(f"say how many of the {layers} layers each stage has: {_cuts(stages, layers)}")
    return ways


def _cuts(stages: int, layers: int) -> str:
    """Returns the option that groups marked layers into stages of equal size; the first may have one layer more."""
    each, more = divmod(layers, stages)
    cuts = [each + (stage < more) for stage in range(stages)]
    return f"cuts={cuts} (jaxpp-opt: --cuts {','.join(map(str, cuts))})"


def _or_another_schedule(ways: Sequence[str], schedule: schedules.Schedule, count: int, meshes: int) -> str:
    """Returns the hint to reach the stages of `schedule` in one of these ways, or to take a schedule of `count` stages.

    The other schedule comes first if it fits the available meshes, and `schedule` is for another number of meshes.
    """
    other = _another_schedule(schedule, count, meshes)
    is_first = meshes not in (0, schedule.meshes) and count % meshes == 0
    return "; or ".join([other, *ways] if is_first else [*ways, other])


def _another_schedule(schedule: schedules.Schedule, count: int, meshes: int) -> str:
    """Returns the hint to take a schedule with as many stages as marks.

    The example in it fits the available meshes. It is the schedule itself with other options, or otherwise 1F1B.
    """
    hint = f"take a schedule of {count} stage{'s' * (count != 1)}"
    for number in filter(None, (meshes, schedule.meshes)):
        for options in ("", f"{{chunks={count // number}}}"):
            for example in (schedule.name + options, f"1f1b{options}"):
                if library_name(example) and _stages(example, number, schedule.microbatches) == count:
                    return f"{hint}, such as {example} on {number} mesh{'es' * (number != 1)}"
    return hint


def _stages(name: str, meshes: int, microbatches: int) -> int | None:
    """Returns the number of stages of a schedule of the library; None if it does not exist for these numbers."""
    try:
        return schedules.resolve(name, meshes=meshes, microbatches=microbatches).stages
    except schedules.ScheduleError:
        return None


def set_by_jaxpp(marks: Marks, schedule: schedules.Schedule) -> str | None:
    """Returns a hint if functions of jaxpp set marks, or the schedule needs such a function; None otherwise."""
    return _of_lent_slices("slices read elsewhere" in _names(marks), schedule) or _of_vocabulary(marks, schedule)


def has_other_shards(marks: Marks, schedule: schedules.Schedule) -> bool:
    """Whether schedule and model both spread a vocabulary, over different numbers of meshes."""
    return schedule.name.startswith("vocab-") and _shards(marks, "vocabulary") not in (0, schedule.meshes)


def _shards(marks: Marks, word: str) -> int:
    """Returns the number of stages that are shards of `word`: they end at marks like "vocabulary 0", "vocabulary 1"."""
    return sum(name.startswith(f"{word} ") for name in _names(marks))


def _names(marks: Marks) -> set[str]:
    return {mark.name or "" for _, mark in marks if mark.phase == "forward"}


def _of_lent_slices(lends: bool, schedule: schedules.Schedule) -> str | None:
    """Returns the hint for a model or a schedule whose slices exchange attention; None if neither does."""
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
    """Returns the hint for a model or a schedule that spreads a vocabulary over meshes; None if neither does."""
    shards, embedded = (_shards(marks, word) for word in ("vocabulary", "embedding"))
    trips = {mark.layer for _, mark in marks} - {None}
    if shards and trips:
        return (
            "vocabulary_cross_entropy spreads a vocabulary over stages, which a scan over layers can't hold: "
            "call it behind the scan; or, if that is over slices of the sequence, "
            f"take a schedule of as many, such as vocab-1f1b{{slices={len(trips)}}}"
        )
    name, meshes = schedule.name, schedule.meshes
    is_for_it = name.startswith("vocab-")
    if not shards:
        own = f"jaxpp.models.vocabulary_cross_entropy(..., shards={meshes}), which ends {meshes + 1} stages by itself"
        return f"{name} is for losses of {own}: call it, or take another schedule" if is_for_it else None
    if not is_for_it:
        return f"vocabulary_cross_entropy ends {shards + 1} stages: take vocab-1f1b or vocab-v-half, on {shards} meshes"
    if shards != meshes:
        return (
            f"vocabulary_cross_entropy has {shards} shards, {name} one on each of its {meshes} meshes: "
            f"shards={meshes}, or a schedule of {shards} meshes"
        )
    looks_up = schedule.stages == schedule.meshes * (4 if name == "vocab-v-half" else 3) + 1
    spread = f"; vocabulary_embedding ends {embedded}, for {name}{{embedding=true}}" if embedded else ""
    if looks_up and not embedded:
        lookup = "jaxpp.models.vocabulary_embedding: call it, or leave embedding out"
        spread = f"; {name}{{embedding=true}} has {meshes} for {lookup}"
    own = f"the last stage of layers and its {shards} shard{'s' * (shards != 1)}"
    return (
        f"vocabulary_cross_entropy ends {own} by itself: "
        f"mark the end of the other stages of layers, and the loss{spread}"
    )
