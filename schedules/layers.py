"""The order of a model's layers in stacked arrays that makes the layers of each mesh contiguous."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.classes import BaseSchedule
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement


def rows_of_layers(schedule: BaseSchedule | Schedule | Placement, layers: int) -> NDArray[np.int64]:
    """The row of each layer in arrays that stack the layers mesh by mesh, first those of mesh 0, then of mesh 1...

    An array can only be sharded in equal parts of contiguous rows. Where a mesh holds stages that don't follow one
    another, its layers are contiguous in this order. In the order of the model they are not: rows that are stored on
    another mesh are sent every step, and their gradients back. With `rows = rows_of_layers(schedule, layers)`:

        stacked[rows]                   the layers in the order of the model: what a loss scans over
        stacked = model[np.argsort(rows)]    stacked so, from parameters in the order of the model

    Where the stages of each mesh follow one another, as in 1F1B, this is `arange(layers)`.

    Args:
        schedule: which mesh is the home of which stage.
        layers: their number; each stage has as many, in order.

    Returns:
        The numbers 0 to layers - 1 in some order, as indices of the model's layers.

    Raises:
        ScheduleError: the stages don't have equally many layers, or the meshes don't have equally many stages.

    >>> rows_of_layers(Placement.of(0, 1, 1, 0), 4)  # mesh 0 has the layers 0 and 3, in the rows 0 and 1
    array([0, 2, 3, 1])
    """
    homes = _homes(schedule)
    layers, stages = whole_number(layers, "the number of layers", least=1), len(homes)
    if layers % stages:
        raise ScheduleError(f"{layers} layers can't be cut into {stages} stages of equally many")
    counts = {mesh: homes.count(mesh) for mesh in sorted(set(homes))}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} on mesh {mesh}" for mesh, count in counts.items())
        raise ScheduleError(f"the meshes must be the homes of equally many stages, found {found}")
    order = np.arange(layers).reshape(stages, -1)[np.argsort(homes, kind="stable")]
    return np.argsort(order.reshape(-1))


def _homes(schedule: BaseSchedule | Schedule | Placement) -> list[int]:
    """The mesh of each stage."""
    if isinstance(schedule, BaseSchedule):
        return [schedule.get_mpmd_idx(stage) for stage in range(schedule.num_stages)]
    placement = schedule.placement if isinstance(schedule, Schedule) else schedule
    if not isinstance(placement, Placement):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
        raise ScheduleError(
            f"expected a schedule or a placement, found {schedule!r}; "
            "a name or a file: jaxpp.schedules.resolve(it, meshes=..., microbatches=...)"
        )
    return [placement[stage] for stage in range(placement.stages)]
