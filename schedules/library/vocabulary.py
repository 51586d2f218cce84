"""Schedules of models whose vocabulary is spread over all meshes (Vocabulary Parallelism, arXiv 2411.05288).

They are for `jaxpp.vocabulary_cross_entropy`, and with `embedding` also for `jaxpp.vocabulary_embedding`. Stages are a
graph: the layers; on every mesh a shard of the logits, which comes after the last of these; and what puts the shards
together, where the last layers are. With `embedding` the shards of the input's embedding come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxpp.schedules.check import check
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import true_or_false, whole_number
from jaxpp.schedules.priorities import by_priority
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.simulate import simulate
from jaxpp.schedules.task import Placement, Task


def vocab_1f1b(
    meshes: int, microbatches: int, embedding: bool = False, ahead: int = 2, slices: int = 1, costs: Costs | None = None
) -> Schedule:
    """1F1B with the vocabulary spread over all meshes (arXiv 2411.05288, section 5).

    While a microbatch is on its way to all shards and back, the meshes run others: `ahead` more than in 1F1B, p + 2 on
    the first mesh. With 1 more it is slower, with 3 no faster.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        embedding: whether the input's embedding is spread too.
        ahead: how many more microbatches a mesh keeps than in 1F1B, at least 0; of several slices, how many more slices
            than in Seq1F1B.
        slices: how many slices n the sequence of each microbatch has (Seq1F1B, arXiv 2406.03488), at least 1. Mesh i
            keeps p - i + `ahead` + n - 1 slices then.
        costs: of the tasks: of the layers of each stage, of the shards, and of the last stage; by default all stages of
            layers take equally long, all else a tenth of it. If the default order is faster on the costs, it is taken.

    Raises:
        ScheduleError: a count is too small, or the costs are for other stages.
    """
    layers = Placement.linear(whole_number(meshes, "meshes", least=1))
    ahead, slices = whole_number(ahead, "ahead", least=0), whole_number(slices, "slices", least=1)
    forwards_first = ahead > 1

    def rank(task: Task) -> int:
        return (task.kind == "forward") != forwards_first

    def limit(stage: int) -> int:
        return meshes + ahead - stage + slices - 1

    return _spread("vocab-1f1b", layers, microbatches, slices, ("forward", "backward"), rank, limit, embedding, costs)


def vocab_v_half(
    meshes: int, microbatches: int, embedding: bool = False, slices: int = 1, costs: Costs | None = None
) -> Schedule:
    """Half of 1F1B's memory, with the vocabulary spread over all meshes (arXiv 2411.05288, section 5).

    Two stages of layers on each mesh, down the meshes and up again, with the backward split. A mesh keeps p / 2 + 1
    microbatches at most, rounded up to halves; weight gradients run where nothing else can.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        embedding: whether the input's embedding is spread too.
        slices: how many slices n the sequence of each microbatch has, at least 1. A mesh keeps p / 2 + n slices then.
        costs: as of `vocab_1f1b`.

    Raises:
        ScheduleError: a count is too small, or the costs are for other stages.
    """
    layers, slices = Placement.waves(meshes, 2), whole_number(slices, "slices", least=1)
    order = "forward", "input_grad", "weight_grad"

    def limit(stage: int) -> int:
        return (layers.stages - stage) // 2 + slices

    def rank(task: Task) -> int:
        return order.index(task.kind)

    return _spread("vocab-v-half", layers, microbatches, slices, order, rank, limit, embedding, costs)


def vocabulary_stages(layers: Placement, embedding: bool) -> Placement:
    """The stages of these layers with a spread vocabulary, where they are, and which of them read which."""
    meshes, count = range(layers.meshes), layers.stages
    first = layers.meshes if embedding else 0
    homes = [*(meshes if embedding else ()), *(layers[stage] for stage in range(count)), *meshes, layers[count - 1]]
    last = first + count - 1
    after: list[Sequence[int]] = [*[()] * first, range(first), *([stage] for stage in range(first, last))]
    after += [*[[last]] * layers.meshes, range(last + 1, last + 1 + layers.meshes)]
    return Placement.of(*homes, after=after)


def _spread(
    name: str,
    layers: Placement,
    microbatches: int,
    slices: int,
    kinds: Sequence[str],
    rank: Callable[[Task], int],
    limit: Callable[[int], int],
    embedding: bool,
    costs: Costs | None,
) -> Schedule:
    """What a free mesh prefers: what all others wait for, then tasks of layers by their rank.

    Stages are kept below `limit` of their number among the layers, those of the input's embedding below one more than
    the first of these.
    """
    embedding = true_or_false(embedding, f"{name}: embedding")
    placement = vocabulary_stages(layers, embedding)
    first = layers.meshes if embedding else 0
    times = [0.1] * first + [1.0] * layers.stages + [0.1] * (layers.meshes + 1)
    usual = Costs(times, times, times)

    def is_layer(stage: int) -> bool:
        return first <= stage < first + layers.stages

    def priority(task: Task) -> tuple[int, int, int]:
        if is_layer(task.stage) or task.kind == "weight_grad":
            return 1, rank(task), task.microbatch
        return 0, task.kind == "forward", task.microbatch

    def most(stage: int) -> int:
        return limit(stage - first) if is_layer(stage) else microbatches * slices if stage >= first else limit(0) + 1

    def order_for(guess: Costs) -> Schedule:
        made = by_priority(name, placement, microbatches, priority, tasks=kinds, limit=most, costs=guess, slices=slices)
        return _with_whole_end(made) if "weight_grad" in kinds else made

    if costs is None:
        return order_for(usual)
    return min((order_for(costs), order_for(usual)), key=lambda made: simulate(made, costs).makespan)


def _with_whole_end(schedule: Schedule) -> Schedule:
    """The last stage puts shards together, and has no weights: its backward is whole, and keeps nothing behind it."""
    last = schedule.stages - 1
    rows = [
        [
            replace(task, kind="backward") if (task.kind, task.stage) == ("input_grad", last) else task
            for task in order
            if (task.kind, task.stage) != ("weight_grad", last)
        ]
        for order in schedule.orders
    ]
    made = Schedule.of(schedule.name, schedule.placement, rows)
    check(made)
    return made
