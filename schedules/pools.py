"""What tasks do to the memories of meshes: the one account that the simulator and `activations` read.

An activation is made by a forward, or again by a recompute. In between, so much of it stays as the next task that
reads it holds: all of it up to a backward, its input up to a recompute, the rest from the input gradient to the weight
gradient; nothing is left when nobody reads it any more. What kinds take and give back by amounts comes on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.graph import Graph
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Task, Unit


@dataclass(frozen=True)
class Sizes:
    """How large an activation and its parts are, for each stage.

    Attributes:
        activation: what a forward makes.
        rest: what the weight gradient reads of it, and of the gradient of its output.
        input: what a recompute starts from.
        size: of the slice and microbatch of a task, by which all of these are multiplied; None where it is 1.
    """

    activation: Sequence[float]
    rest: Sequence[float]
    input: Sequence[float]
    size: Callable[[Task], float] | None = None


class Change(NamedTuple):
    """What a task does to one memory: what it takes from its start on, and what changes at its end."""

    number: int
    start: float
    end: float


def changes(graph: Graph, mesh: int, sizes: Sizes, pool: str = "here") -> Iterator[Change]:
    """What tasks do to a memory of one mesh, in no particular order.

    Args:
        graph: the schedule.
        mesh: the mesh.
        sizes: of activations.
        pool: "here", the memory of its devices, or "host".
    """
    found = _amounts(graph, graph.rows[mesh], sizes, pool)
    if pool == "here":
        yield from _lives(graph, mesh, sizes)
        taken = [number for number, source in graph.sources.items() if graph.homes[source] == mesh]
        yield from _amounts(graph, taken, sizes, "peer")
    yield from found


def _amounts(graph: Graph, numbers: Sequence[int], sizes: Sizes, pool: str) -> Iterator[Change]:
    """What kinds take and give back by amounts."""
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
    """How large that is of which a task moves an amount: an activation, or the input alone where it is made again."""
    rules = {kind: graph.rules[kind] for kind in graph.numbers if kind in graph.rules}
    moving = {kind for kind, rule in rules.items() if len(rule.amounts) > 1}
    remade = [graph.numbers[kind] for kind, rule in rules.items() if rule.makes and rule.holds]

    def size(task: Task) -> float:
        again = task.kind in moving and any(graph.key(task) in table for table in remade)
        return (sizes.input if again else sizes.activation)[task.stage] * (sizes.size(task) if sizes.size else 1.0)

    return size


def share_sizes(schedule: Schedule, kept: float, size: Callable[[Task], float] | None = None) -> Sizes:
    """Activations in units of a microbatch's in all stages of one mesh; `kept` of them until the weight gradient."""
    share = schedule.meshes / schedule.stages
    return Sizes([share] * schedule.stages, [share * kept] * schedule.stages, [0.0] * schedule.stages, size)


def byte_sizes(schedule: Schedule, costs: Costs) -> Sizes:
    """The bytes of activations; the input of the first stage is an argument of the step, and no bytes of it.

    Raises:
        ScheduleError: the costs are for other stages, slices or microbatches.
    """
    names = ("activation_bytes", "weight_grad_bytes", "message_bytes")
    whole, rest, messages = (costs.bytes(what, schedule) for what in names)
    inputs = [min(*each) for each in zip(whole, [0.0, *messages], strict=False)]
    return Sizes(whole, rest, inputs, costs.size(schedule))


def _lives(graph: Graph, mesh: int, sizes: Sizes) -> Iterator[Change]:
    """From the last task to the first, as what is left after one is what those behind it hold."""
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
            before = 0.0  # a lent backward: its residuals arrive when it starts
        yield Change(number, during - before, after - during)
