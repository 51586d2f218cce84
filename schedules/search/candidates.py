"""The candidates of a search: placements, and published schedules as starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import combinations
from typing import Final, cast

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.library import LIBRARY, make, options_of
from jaxpp.schedules.model.kinds import LETTERS
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement

_USUAL: Final = {
    "linear": (("looped", 1),),
    "v": (("waves", 2),),
    "looped": (("looped", 2), ("looped", 3), ("looped", 4)),
    "waves": (("waves", 2), ("waves", 4)),
    "any": (("looped", 1), ("waves", 2), ("looped", 2), ("looped", 3), ("looped", 4), ("waves", 4)),
}
"""For each name the placements that it stands for, with their stages per mesh."""


def placements(meshes: int, placement: str | Placement, chunks: int | None, costs: Costs) -> list[Placement]:
    """Returns the placements that a name stands for.

    Args:
        meshes: number of meshes.
        placement: a placement, or "linear", "v", "looped", "waves", or "any" of these. If the costs differ from stage
            to stage, "any" also includes a balanced placement.
        chunks: stages per mesh; None: the usual numbers.
        costs: if they are lists, a placement must have a number of stages that divides the length of the lists.

    Raises:
        ScheduleError: the placement is unknown, or none fits the meshes, the chunks and the costs.
    """
    if isinstance(placement, Placement):
        if placement.meshes != meshes or chunks not in (None, placement.stages // meshes):
            beside = "" if chunks is None else f" and chunks={chunks}"
            raise ScheduleError(f"placement is on {placement.meshes} meshes, found meshes={meshes}{beside}")
        return [placement]
    if not isinstance(cast("object", placement), str) or placement not in _USUAL:
        known = ", ".join(_USUAL)
        raise ScheduleError(f"placement must be one of {known}, or a Placement, found {placement!r}")
    usual = _USUAL[placement]
    if chunks is not None:
        chunks = whole_number(chunks, "chunks", least=1)
        if placement in ("linear", "v") and chunks != usual[0][1]:
            each = f"{usual[0][1]} stage{'s' * (usual[0][1] > 1)} per mesh"
            raise ScheduleError(f"a {placement} placement has {each}, found chunks={chunks}")
        usual = [(shape, chunks) for shape in dict(usual)]
    shapes = {"looped": Placement.looped, "waves": Placement.waves}
    found = [
        shapes[shape](meshes, each) for shape, each in usual if not costs.stages or not costs.stages % (meshes * each)
    ]
    if not found:
        has = f"has the {costs.stages} stages of the costs, or a divisor of them"
        kind = "" if placement == "any" else f"{placement} "
        raise ScheduleError(f"no {kind}placement on {meshes} meshes {has}")
    if placement == "any" and costs.stages and costs.stages > meshes:
        found.append(_even(found[-1], costs.merged(found[-1].stages)))
    return list(dict.fromkeys(found))


def _even(placement: Placement, costs: Costs) -> Placement:
    """Returns the placement after stages have been swapped between meshes, as long as that lowers the highest load."""
    homes = [mesh for mesh, *_ in placement.homes]
    empty = Schedule("even", placement, ((),) * placement.meshes)
    times = [
        [
            sum(each)
            for each in zip(*(costs.on_mesh(kind, mesh, empty) for kind in ("forward", "backward")), strict=True)
        ]
        for mesh in range(placement.meshes)
    ]

    def worst(chosen: list[int]) -> list[float]:
        loads = [0.0] * placement.meshes
        for stage, mesh in enumerate(chosen):
            loads[mesh] += times[mesh][stage]
        return sorted(loads, reverse=True)

    while True:
        swaps = [_swapped(homes, *pair) for pair in combinations(range(len(homes)), 2)]
        better = min(swaps, key=worst, default=homes)
        if worst(better) >= worst(homes):
            return Placement.of(*homes)
        homes = better


def _swapped(homes: list[int], one: int, other: int) -> list[int]:
    swapped = list(homes)
    swapped[one], swapped[other] = homes[other], homes[one]
    return swapped


def published(placement: Placement, microbatches: int, costs: Costs) -> Iterator[Schedule]:
    """Yields the schedules of the library on a placement.

    Left out are schedules that do not exist for these numbers, and those that move or recompute activations.
    """
    meshes, chunks = placement.meshes, placement.stages // placement.meshes
    offered: dict[str, object] = {"chunks": chunks, "costs": costs}
    for name in LIBRARY:
        if _home(name, meshes, chunks) not in (placement, None):
            continue
        options = {each: offered[each] for each in options_of(name) if each in offered}
        try:
            made = make(name, meshes=meshes, microbatches=microbatches, **options)
        except ScheduleError:
            continue
        if made.placement == placement and all(task.kind in LETTERS for task in made):
            yield made


@cache
def _home(name: str, meshes: int, chunks: int) -> Placement | None:
    """Returns the placement of a schedule of the library; None if it is unknown.

    It makes the schedule for few microbatches, because that is cheap.
    """
    options = {"chunks": chunks} if "chunks" in options_of(name) else {}
    for microbatches in (1, 2, meshes, 2 * meshes):
        with suppress(ScheduleError):
            return make(name, meshes=meshes, microbatches=microbatches, **options).placement
    return None
