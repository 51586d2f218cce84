"""GPipe and 1F1B: every other schedule is measured against these two."""

from __future__ import annotations

from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement, Task


def gpipe(meshes: int, microbatches: int, chunks: int = 1, placement: Placement | None = None) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965).

    With several stages per mesh a stage finishes all its microbatches before the mesh goes on to its next one: the
    breadth-first order of arXiv 2211.05953, which gathers weights and reduces gradients once per stage.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh, in a loop.
        placement: any other placement, instead of `chunks`.

    Raises:
        ScheduleError: a count is below 1, or the placement does not fit.
    """
    microbatches = whole_number(microbatches, "microbatches", least=1)
    placement = _placement("gpipe", meshes, chunks, placement)
    orders = [
        [
            *(Task("forward", stage, microbatch) for stage in stages for microbatch in range(microbatches)),
            *(Task("backward", stage, microbatch) for stage in reversed(stages) for microbatch in range(microbatches)),
        ]
        for stages in map(placement.stages_of, range(placement.meshes))
    ]
    return Schedule.of("gpipe", placement, orders)


def one_f_one_b(meshes: int, microbatches: int, chunks: int = 1, placement: Placement | None = None) -> Schedule:
    """One forward, one backward (PipeDream-Flush, arXiv 2006.09503; DAPPLE, arXiv 2007.01045).

    Mesh i of p runs min(m, p - i - 1) forwards ahead, then one forward and one backward in turn, then the backwards
    that are left; it keeps at most min(m, p - i) activations instead of GPipe's m.

    With several stages per mesh no closed form stands in these papers: each mesh then takes, whenever it is free, a
    backward that is ready, else a forward, deepest stage first, as long as stage s of S keeps at most S - s of them.

    Args:
        meshes: number of meshes, at least 1.
        microbatches: at least 1.
        chunks: stages per mesh, in a loop.
        placement: any other placement, instead of `chunks`.

    Raises:
        ScheduleError: a count is below 1, or the placement does not fit.
    """
    microbatches = whole_number(microbatches, "microbatches", least=1)
    placement = _placement("1f1b", meshes, chunks, placement)
    if placement != Placement.linear(placement.meshes):
        return Schedule.of("1f1b", placement, _backward_first(placement, microbatches))
    orders: list[list[Task]] = []
    for stage in range(placement.stages):
        ahead = min(microbatches, placement.stages - stage - 1)
        order = [Task("forward", stage, microbatch) for microbatch in range(ahead)]
        for microbatch in range(microbatches):
            if microbatch + ahead < microbatches:
                order.append(Task("forward", stage, microbatch + ahead))
            order.append(Task("backward", stage, microbatch))
        orders.append(order)
    return Schedule.of("1f1b", placement, orders)


def _placement(name: str, meshes: int, chunks: int, placement: Placement | None) -> Placement:
    looped = Placement.looped(meshes, chunks)
    if placement is None:
        return looped
    if placement.meshes != meshes or chunks != 1:
        raise ScheduleError(
            f"{name}: expected a placement on {meshes} meshes and no chunks beside it, "
            f"found one on {placement.meshes} and chunks={chunks}"
        )
    for stage, homes in enumerate(placement.homes):
        if len(homes) > 1:
            raise ScheduleError(f"{name}: each stage must be on one mesh, found stage {stage} on {len(homes)}")
    return placement


class _Greedy:
    """A clocked run that decides the order as it goes; a forward takes one tick, a backward two.

    It never gets stuck: a stage takes its microbatches in order, so the oldest unfinished microbatch never waits for a
    limit, as whatever counts against it would be older still.
    """

    def __init__(self, stages: int, microbatches: int) -> None:
        self.stages = stages
        self.microbatches = microbatches
        # Ticks at which the forwards and backwards of each stage end, as far as they are placed.
        self.forward_ends: list[list[int]] = [[] for _ in range(stages)]
        self.backward_ends: list[list[int]] = [[] for _ in range(stages)]

    def can_backward(self, stage: int, now: int) -> bool:
        microbatch = len(self.backward_ends[stage])
        gradients = self.backward_ends[stage + 1] if stage + 1 < self.stages else self.forward_ends[stage]
        return microbatch < len(self.forward_ends[stage]) and _done(gradients, microbatch, now)

    def can_forward(self, stage: int, now: int) -> bool:
        microbatch = len(self.forward_ends[stage])
        alive = microbatch - len(self.backward_ends[stage])
        fed = stage == 0 or _done(self.forward_ends[stage - 1], microbatch, now)
        return fed and microbatch < self.microbatches and alive < self.stages - stage

    def pick(self, stages: tuple[int, ...], now: int) -> Task | None:
        for stage in reversed(stages):
            if self.can_backward(stage, now):
                self.backward_ends[stage].append(now + 2)
                return Task("backward", stage, len(self.backward_ends[stage]) - 1)
        for stage in reversed(stages):
            if self.can_forward(stage, now):
                self.forward_ends[stage].append(now + 1)
                return Task("forward", stage, len(self.forward_ends[stage]) - 1)
        return None


def _done(ends: list[int], microbatch: int, now: int) -> bool:
    return microbatch < len(ends) and ends[microbatch] <= now


def _backward_first(placement: Placement, microbatches: int) -> list[list[Task]]:
    run = _Greedy(placement.stages, microbatches)
    orders: list[list[Task]] = [[] for _ in range(placement.meshes)]
    free_at = [0] * placement.meshes
    left = 2 * placement.stages * microbatches
    now = 0
    while left:
        for mesh, order in enumerate(orders):
            task = run.pick(placement.stages_of(mesh), now) if free_at[mesh] <= now else None
            if task:
                order.append(task)
                free_at[mesh] = now + (2 if task.kind == "backward" else 1)
                left -= 1
        now += 1
    return orders
