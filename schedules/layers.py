"""The order of a model's layers in stacked arrays that makes the layers of each mesh contiguous."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.classes import BaseSchedule
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement


def rows_of_layers(
    schedule: BaseSchedule | Schedule | Placement, layers: int, cuts: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Returns the row of each layer in arrays that stack the layers mesh by mesh, from mesh 0 on.

    An array can only be sharded in equal parts of contiguous rows. In this order the layers of a mesh are contiguous,
    even if its stages don't follow one another. In the order of the model they are not. Rows that are stored on another
    mesh are then sent every step, and their gradients back. With `rows = rows_of_layers(schedule, layers)`:

        stacked[rows]                   the layers in the order of the model, over which a loss scans
        stacked = model[np.argsort(rows)]    the stack, from parameters in the order of the model

    If the stages of each mesh follow one another and have equally many layers, as in 1F1B, this is `arange(layers)`.

    With `cuts` the meshes may have different numbers of layers. The block of each mesh is then as large as the largest,
    and there are `stored_rows` rows in all. The rows after the layers of a smaller mesh are padding, and are never
    read:

        stacked = jnp.zeros((stored_rows(schedule, cuts), ...)).at[rows].set(model)

    Args:
        schedule: the schedule or placement, which gives the mesh of each stage.
        layers: their number.
        cuts: the number of layers of each stage, in order; None: all stages have equally many.

    Returns:
        For each layer of the model its row. Without padding these are the numbers 0 to layers - 1 in some order.

    Raises:
        ScheduleError: when the cuts do not add up to `layers`, or are not one per stage. Without cuts, when the stages
            don't have equally many layers, or the meshes don't have equally many stages.
        TypeError: when the cuts are not whole numbers.

    >>> rows_of_layers(Placement.of(0, 1, 1, 0), 4)  # mesh 0 has the layers 0 and 3, in the rows 0 and 1
    array([0, 2, 3, 1])
    >>> rows_of_layers(Placement.of(0, 1), 4, cuts=[1, 3])  # the rows 1 and 2 are padding
    array([0, 3, 4, 5])
    """
    homes = _homes(schedule)
    layers, stages = whole_number(layers, "the number of layers", least=1), len(homes)
    if cuts is None:
        if layers % stages:
            raise ScheduleError(f"{layers} layers can't be cut into {stages} stages of equally many")
        counts = {mesh: homes.count(mesh) for mesh in sorted(set(homes))}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{count} on mesh {mesh}" for mesh, count in counts.items())
            raise ScheduleError(f"the meshes must be the homes of equally many stages, found {found}")
        cuts = [layers // stages] * stages
    cuts = layers_of_stages(cuts)
    sizes = _sizes(homes, cuts)
    if sum(cuts) != layers:
        raise ScheduleError(f"the cuts {cuts} are of {sum(cuts)} layers, found {layers}")
    block, free = max(sizes.values()), dict.fromkeys(sizes, 0)
    rows: list[int] = []
    for mesh, size in zip(homes, cuts, strict=True):
        first = list(sizes).index(mesh) * block + free[mesh]
        rows += range(first, first + size)
        free[mesh] += size
    return np.array(rows)


def stored_rows(schedule: BaseSchedule | Schedule | Placement, cuts: Sequence[int]) -> int:
    """Returns the number of rows of stacked layers, where every mesh has as many as the mesh with the most layers.

    Args:
        schedule: the schedule or placement, which gives the mesh of each stage.
        cuts: the number of layers of each stage, in order.

    Raises:
        ScheduleError: when the cuts are not one per stage.
        TypeError: when the cuts are not whole numbers.

    >>> stored_rows(Placement.of(0, 1), [1, 3])
    6
    """
    sizes = _sizes(_homes(schedule), layers_of_stages(cuts))
    return len(sizes) * max(sizes.values())


def layers_of_stages(cuts: Iterable[int]) -> tuple[int, ...]:
    """Returns the number of layers of each stage, from any sequence of whole numbers (NumPy's, too).

    Raises:
        TypeError: when `cuts` is no such sequence.
    """
    sizes = tuple(cuts) if isinstance(cast("object", cuts), Iterable) and not isinstance(cuts, str | bytes) else ("",)
    if not all(isinstance(size, int | np.integer) and not isinstance(size, bool) for size in sizes):
        raise TypeError(f"cuts: expected the layers of each stage, such as [5, 5, 4, 2], found {cuts!r}")
    return tuple(map(int, sizes))


def _sizes(homes: Sequence[int], cuts: Sequence[int]) -> dict[int, int]:
    """Returns the number of layers of each mesh that holds a stage, in the order of the meshes."""
    if len(cuts) != len(homes):
        raise ScheduleError(f"expected the layers of each of {len(homes)} stages, found {tuple(cuts)}")
    sizes = dict.fromkeys(sorted(homes), 0)
    for mesh, size in zip(homes, cuts, strict=True):
        sizes[mesh] += whole_number(size, "the layers of a stage", least=1)
    return sizes


def _homes(schedule: BaseSchedule | Schedule | Placement) -> list[int]:
    """Returns the home mesh of each stage."""
    if isinstance(schedule, BaseSchedule):
        return [schedule.get_mpmd_idx(stage) for stage in range(schedule.num_stages)]
    placement = schedule.placement if isinstance(schedule, Schedule) else schedule
    if not isinstance(placement, Placement):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
        raise ScheduleError(
            f"expected a schedule or a placement, found {schedule!r}; "
            "a name or a file: jaxpp.schedules.resolve(it, meshes=..., microbatches=...)"
        )
    return [placement[stage] for stage in range(placement.stages)]
