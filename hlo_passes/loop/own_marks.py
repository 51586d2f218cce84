"""Hints about wrong stage marks that functions of jaxpp set: for a spread vocabulary, or slices that exchange."""

from jaxpp import schedules
from jaxpp.ir import attributes as at
from jaxpp.ir.boundary import Marks


def set_by_jaxpp(marks: Marks, schedule: schedules.Schedule) -> str | None:
    """Returns a hint if functions of jaxpp set marks, or the schedule needs such a function; None otherwise."""
    return _of_lent_slices("slices read elsewhere" in _names(marks), schedule) or of_vocabulary(marks, schedule)


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


def of_vocabulary(marks: Marks, schedule: schedules.Schedule) -> str | None:
    """Returns the hint for a model or a schedule that spreads a vocabulary over meshes; None if neither does."""
    shards, embedded = (_shards(marks, word) for word in ("vocabulary", "embedding"))
    trips = {at.integer(op, at.LAYER) for op, _ in marks} - {None}
    if shards and trips:
        return (
            "vocabulary_cross_entropy spreads a vocabulary over stages, which a scan over layers can't hold: "
            "call it behind the scan; or, if that is over slices of the sequence, "
            f"take a schedule of as many, such as vocab-1f1b{{slices={len(trips)}}}"
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
    looks_up = schedule.stages == schedule.meshes * (4 if name == "vocab-v-half" else 3) + 1
    spread = f"; vocabulary_embedding ends {embedded}, for {name}{{embedding=true}}" if embedded else ""
    if looks_up and not embedded:
        spread = (
            f"; {name}{{embedding=true}} has {meshes} for jaxpp.vocabulary_embedding: call it, or leave embedding out"
        )
    own = f"the last stage of layers and its {shards} shard{'s' * (shards != 1)}"
    return (
        f"vocabulary_cross_entropy ends {own} by itself: "
        f"mark the end of the other stages of layers, and the loss{spread}"
    )
