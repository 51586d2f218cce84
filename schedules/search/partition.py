"""Cuts of a row of layers into stages, and the order of their tasks: in turns, until neither gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from jaxpp.schedules.costs import Costs, given_costs
from jaxpp.schedules.engine.memory import Release
from jaxpp.schedules.engine.problem import Limits
from jaxpp.schedules.errors import ScheduleError, check_size, true_or_false, whole_number
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement
from jaxpp.schedules.model.values import is_list, number, positive
from jaxpp.schedules.search.candidates import placements
from jaxpp.schedules.search.cuts import Cuts
from jaxpp.schedules.search.cutting import SHARES, Cutting
from jaxpp.schedules.search.effort import Effort
from jaxpp.schedules.search.found import memory_limits
from jaxpp.schedules.search.history import History, ProgressCallback, proven_gap
from jaxpp.schedules.search.placed_row import PlacedRow


@dataclass(frozen=True)
class Partition:
    """The layers of each stage, and the schedule that runs them.

    Attributes:
        cuts: how many layers each stage has, from the first one on.
        schedule: the order of the tasks, with the recomputes and offloads that a memory limit asks for.
        costs: the costs of the stages.
        value: the makespan of the schedule on these costs, in their unit.
        lower_bound: no cuts and no order on the placements that were tried take less.
    """

    cuts: Cuts
    schedule: Schedule
    costs: Costs
    value: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """The share by which `value` exceeds the lower bound: 0 is proven optimal, infinity says nothing."""
        return proven_gap(self.value, self.lower_bound)

    def __str__(self) -> str:
        """Returns one line: `5, 5, 4, 2 layers: 254 (at least 247)`."""
        return f"{', '.join(map(str, self.cuts))} layers: {self.value:.6g} (at least {self.lower_bound:.6g})"


def partition(
    costs: Costs,
    meshes: int,
    microbatches: int,
    memory_limit: Limits = None,
    *,
    chunks: int | None = 1,
    placement: str | Placement = "any",
    released_at: Release = "W",
    memory_bytes: Limits = None,
    resident_bytes: float | Sequence[float] | Sequence[Sequence[float]] = 0.0,
    split_backward: bool = True,
    seconds: float = 10.0,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Partition:
    """Cuts a row of layers into stages, and finds their schedule, so that a step takes the least time.

    Dynamic programming makes cuts that balance the loads, with the time before and after the work of each mesh (DAPPLE,
    arXiv 2007.01045; DawnPiper). On each of these cuts an order is searched for. The idle times of that order are the
    weights of the next cuts, until neither gains (AdaPtis, arXiv 2509.23722). Then layers move across one border or
    several, as long as that gains.

    If bytes are limited, stages that do not fit recompute their forwards. Also, recomputes and offloads bring finished
    schedules into the limit, stage by stage (`keep_less`). The fastest schedule is taken.

    Args:
        costs: with one stage per layer: lists of as many numbers as there are layers. `speed` and `hop` may differ from
            mesh to mesh.
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        memory_limit: how many microbatches' activations a mesh may keep; a number, or one per mesh. By default any.
        chunks: stages per mesh; None: the search chooses among the numbers that the placements allow.
        placement: as for `search`; "any" with one chunk is "linear".
        released_at: as for `search`.
        memory_bytes: the limit in bytes instead; a number, or one per mesh.
        resident_bytes: the bytes that a layer always takes (parameters, gradients, the optimizer's state); a number, or
            one per layer, or for each layer one per mesh.
        split_backward: whether input and weight gradients are tasks of their own.
        seconds: what to spend, counted as in `search`: equal arguments give equal results.
        seed: of the random choices.
        progress: called now and then with the share of the time that is spent, the best value and the lower bound.

    Raises:
        ScheduleError: an argument is wrong, there are fewer layers than stages, or nothing fits the memory.
    """
    meshes = whole_number(meshes, "meshes", least=1)
    microbatches = whole_number(microbatches, "microbatches", least=1)
    check_size("partition", meshes=meshes, microbatches=microbatches)
    seed = whole_number(seed, "seed", least=0)
    split_backward = true_or_false(split_backward, "split_backward")
    layers = given_costs(costs).stages
    if layers is None:
        raise ScheduleError("partition: the costs are scalars: give a list with a number for each layer")
    possible = placements(meshes, placement, chunks, Costs())
    shapes = [each for each in possible if each.stages <= layers]
    if not shapes:
        stages = min(each.stages for each in possible)
        raise ScheduleError(f"partition: {layers} layers are fewer than the {stages} stages of {meshes} meshes")
    resident = _resident(resident_bytes, layers, meshes)
    memory = memory_limits(meshes, memory_limit, memory_bytes, released_at, costs, resident=[*map(max, resident)])
    costs = costs.listed(layers, meshes)
    rows = [PlacedRow(shape, costs, microbatches, memory, resident, split_backward) for shape in shapes]
    effort, rng = Effort(positive(seconds, "seconds")), np.random.default_rng(seed)
    searches = [Cutting(row, effort, rng) for row in rows]
    bound = min(each.bound for each in searches)
    History(effort, lambda: (min(each.value for each in searches), bound), progress)
    for share in SHARES:
        for each in searches:
            each.improve(share * effort.seconds)
    cuts, schedule, value = min(searches, key=lambda each: each.value).finish()
    return Partition(cuts, schedule, costs.cut(cuts), value, min(bound, value))


def _resident(given: object, layers: int, meshes: int) -> tuple[tuple[float, ...], ...]:
    """Returns the resident bytes of each layer on each mesh."""
    each = list(cast("Sequence[object]", given)) if is_list(given) else [given] * layers
    if len(each) != layers:
        raise ScheduleError(f"resident_bytes: expected a number for each of {layers} layers, found {len(each)}")
    rows: list[tuple[float, ...]] = []
    for layer, row in enumerate(each):
        what = f"resident_bytes of layer {layer}" if is_list(given) else "resident_bytes"
        here = list(cast("Sequence[object]", row)) if is_list(row) else [row] * meshes
        if len(here) != meshes:
            raise ScheduleError(f"{what}: expected a number for each of {meshes} meshes, found {len(here)}")
        rows.append(tuple(number(size, what, positive=False) for size in here))
    return tuple(rows)
