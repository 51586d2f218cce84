"""Backward first: the orders of schedules that their papers define by a rule rather than by a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxpp.schedules.task import Task


@dataclass
class Pipeline:
    """A pass through all stages, for some of the microbatches: one of them, or one per direction.

    Attributes:
        homes: the mesh of each stage.
        microbatches: in their order.
        limit: for each stage the most activations that it keeps alive.
    """

    homes: Sequence[int]
    microbatches: Sequence[int]
    limit: Callable[[int], int]
    # Ticks at which the forwards and backwards of each stage end, as far as they are placed.
    forward_ends: list[list[int]] = field(init=False)
    backward_ends: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.forward_ends = [[] for _ in self.homes]
        self.backward_ends = [[] for _ in self.homes]

    def can_backward(self, stage: int, now: int) -> bool:
        """Whether the next backward of the stage has all it needs."""
        number = len(self.backward_ends[stage])
        last = stage + 1 == len(self.homes)
        gradients = self.forward_ends[stage] if last else self.backward_ends[stage + 1]
        return number < len(self.forward_ends[stage]) and _done(gradients, number, now)

    def can_forward(self, stage: int, now: int) -> bool:
        """Whether the next forward of the stage has all it needs, memory included."""
        number = len(self.forward_ends[stage])
        alive = number - len(self.backward_ends[stage])
        fed = stage == 0 or _done(self.forward_ends[stage - 1], number, now)
        return fed and number < len(self.microbatches) and alive < self.limit(stage)


def backward_first(pipelines: Sequence[Pipeline], backward: int = 2) -> list[list[Task]]:
    """A clocked run that decides the order as it goes; a forward takes one tick, a backward `backward`.

    Each mesh takes, whenever it is free, a backward that is ready, else a forward: of the pipeline that is least far,
    and there of the deepest stage. A pipeline's microbatches go in order, so the oldest unfinished one never waits for
    a limit (whatever counts against it would be older still), and no run gets stuck.
    """
    meshes = 1 + max(mesh for pipeline in pipelines for mesh in pipeline.homes)
    held = [
        [(pipeline, stage) for pipeline in pipelines for stage, at in enumerate(pipeline.homes) if at == mesh]
        for mesh in range(meshes)
    ]
    orders: list[list[Task]] = [[] for _ in range(meshes)]
    free_at = [0] * meshes
    left = sum(2 * len(pipeline.homes) * len(pipeline.microbatches) for pipeline in pipelines)
    now = 0
    while left:
        for mesh, order in enumerate(orders):
            task = _pick(held[mesh], now, backward) if free_at[mesh] <= now else None
            if task:
                order.append(task)
                free_at[mesh] = now + (backward if task.kind == "backward" else 1)
                left -= 1
        now += 1
    return orders


def _pick(held: Sequence[tuple[Pipeline, int]], now: int, backward: int) -> Task | None:
    ready = [(len(each.backward_ends[stage]), -stage, each) for each, stage in held if each.can_backward(stage, now)]
    kind, ticks = "backward", backward
    if not ready:
        ready = [(len(each.forward_ends[stage]), -stage, each) for each, stage in held if each.can_forward(stage, now)]
        kind, ticks = "forward", 1
    if not ready:
        return None
    _, stage, pipeline = min(ready, key=lambda choice: choice[:2])
    ends = pipeline.backward_ends if kind == "backward" else pipeline.forward_ends
    ends[-stage].append(now + ticks)
    return Task(kind, -stage, pipeline.microbatches[len(ends[-stage]) - 1])


def _done(ends: list[int], number: int, now: int) -> bool:
    return number < len(ends) and ends[number] <= now
