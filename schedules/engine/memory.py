"""The changes that tasks make to the memories of meshes; the simulator and `activations` both read them.

A forward makes an activation, and a recompute makes it again. Between two tasks, the mesh keeps the part that the next
reader holds. Before a backward this is the whole, before a recompute the input, and between the input gradient and the
weight gradient the rest. After the last reader the mesh keeps nothing. The amounts that kinds take and give back are
added to this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.model.graph import Graph
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Task, Unit

Release: TypeAlias = Literal["W", "B", "half"]

KEPT: Final[dict[str, float]] = {"W": 1.0, "B": 0.0, "half": 0.5}
"""The share of a stage's activations that stays from the input gradient to the weight gradient."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of an activation and of its parts, for each stage.

    Attributes:
        activation: the whole that a forward makes.
        rest: the part that the weight gradient reads, including the gradient of the stage's output.
        input: the part that a recompute starts from.
        size: the factor for the slice and microbatch of a task, which multiplies all of these; None where it is 1.
    """

    activation: Sequence[float]
    rest: Sequence[float]
    input: Sequence[float]
    size: Callable[[Task], float] | None = None


class Change(NamedTuple):
    """The change that a task makes to one memory: `start` is added at its start, `end` at its end."""

    number: int
    start: float
    end: float


def changes(graph: Graph, mesh: int, sizes: Sizes, pool: str = "here") -> Iterator[Change]:
    """Yields the changes that tasks make to a memory of one mesh, in no particular order.

    Args:
        graph: the schedule.
        mesh: the mesh.
        sizes: the sizes of activations.
        pool: "here", the memory of the mesh's devices, or "host".
    """
    found = _amounts(graph, graph.rows[mesh], sizes, pool)
    if pool == "here":
        yield from _lives(graph, mesh, sizes)
        taken = [number for number, source in graph.sources.items() if graph.homes[source] == mesh]
        yield from _amounts(graph, taken, sizes, "peer")
    yield from found


def _amounts(graph: Graph, numbers: Sequence[int], sizes: Sizes, pool: str) -> Iterator[Change]:
    """Yields the changes by the `amounts` of kinds."""
    amounts = {kind: graph.rules[kind].amount(pool) for kind in graph.numbers}
    if not any(amounts.values()):
        return
    size = moved(graph, sizes)
    for number in numbers:
        task = graph.tasks[number]
        if amount := amounts[task.kind]:
            change = amount * size(task)
            yield Change(number, max(change, 0.0), min(change, 0.0))


def moved(graph: Graph, sizes: Sizes) -> Callable[[Task], float]:
    """Returns a function that gives the size of the value that a task moves.

    The value is the activation, or only the stage's input where the activation is recomputed later.
    """
    rules = {kind: graph.rules[kind] for kind in graph.numbers if kind in graph.rules}
    moving = {kind for kind, rule in rules.items() if len(rule.amounts) > 1}
    remade = [graph.numbers[kind] for kind, rule in rules.items() if rule.makes and rule.holds]

    def size(task: Task) -> float:
        again = task.kind in moving and any(graph.key(task) in table for table in remade)
        return (sizes.input if again else sizes.activation)[task.stage] * (sizes.size(task) if sizes.size else 1.0)

    return size


def share_sizes(schedule: Schedule, kept: float, size: Callable[[Task], float] | None = None) -> Sizes:
    """Returns sizes as shares of the activations of all stages of one mesh for one microbatch.

    `kept` is the share of an activation that stays until the weight gradient.
    """
    share = schedule.meshes / schedule.stages
    return Sizes([share] * schedule.stages, [share * kept] * schedule.stages, [0.0] * schedule.stages, size)


def byte_sizes(schedule: Schedule, costs: Costs) -> Sizes:
    """Returns the sizes in bytes. The input of the first stage has 0 bytes, because it is an argument of the step.

    Raises:
        ScheduleError: when the costs are for other stages, slices or microbatches.
    """
    names = ("activation_bytes", "weight_grad_bytes", "message_bytes")
    whole, rest, messages = (costs.bytes(what, schedule) for what in names)
    inputs = [min(*each) for each in zip(whole, [0.0, *messages], strict=False)]
    return Sizes(whole, rest, inputs, costs.size(schedule))


@dataclass(frozen=True)
class MemoryLimits:
    """The memory limits of meshes.

    Attributes:
        limits: one per mesh.
        released_at: the time when activations are freed (`Report.peak_activations`). None: the limits are in bytes, and
            the costs give the bytes that a stage keeps until its input gradient and until its weight gradient.
    """

    limits: tuple[float, ...]
    released_at: Release | None

    def sizes(self, schedule: Schedule, costs: Costs) -> Sizes:
        """Returns the sizes of activations, in the unit of the limits."""
        if self.released_at is None:
            return byte_sizes(schedule, costs)
        return share_sizes(schedule, KEPT[self.released_at], costs.size(schedule))


def _lives(graph: Graph, mesh: int, sizes: Sizes) -> Iterator[Change]:
    """Yields the changes by activations that tasks make and hold on a mesh.

    It goes from the last task to the first, because what stays after a task is what later tasks hold.
    """
    parts: dict[str, Sequence[float]] = {"activation": sizes.activation, "rest": sizes.rest, "input": sizes.input}
    nothing = [0.0] * graph.placement.stages
    rules = [rule for rule in graph.rules.values() if rule.makes or rule.holds]
    tables = {rule.name: (rule.makes, parts.get(rule.holds, nothing)) for rule in rules}
    remade = {rule.name for rule in rules if rule.makes and rule.holds}
    row = [number for number in reversed(graph.rows[mesh]) if graph.tasks[number].kind in tables]
    first = {graph.tasks[number].unit: number for number in row}
    left: dict[Unit, tuple[float, bool]] = {}
    for number in row:
        task = graph.tasks[number]
        makes, held = tables[task.kind]
        scale = sizes.size(task) if sizes.size else 1.0
        after, again = left.get(task.unit, (0.0, False))
        before, whole = held[task.stage] * scale, sizes.activation[task.stage] * scale
        if not makes:
            before = during = max(before, min(after, whole))
        else:
            during = after if again else whole
        left[task.unit] = before, task.kind in remade
        if number == first[task.unit]:
            before = 0.0  # The residuals of a lent backward arrive when it starts.
        yield Change(number, during - before, after - during)
