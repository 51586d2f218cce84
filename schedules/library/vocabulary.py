"""Schedules of models whose vocabulary is spread over all meshes (Vocabulary Parallelism, arXiv 2411.05288).

The schedules are for `jaxpp.models.vocabulary_cross_entropy`, and with `embedding` for `vocabulary_embedding` too. The
stages are a graph. First come the stages of layers. Every mesh then has a shard of the logits, which reads the last
stage of layers. A last stage joins the shards on the mesh of the last layers. With `embedding` the shards of the
input's embedding come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxpp.schedules.builders.priorities import by_priority
from jaxpp.schedules.costs import Costs
from jaxpp.schedules.engine.simulate import simulate
from jaxpp.schedules.errors import true_or_false, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task


def vocab_1f1b(
    meshes: int, microbatches: int, embedding: bool = False, ahead: int = 2, slices: int = 1, costs: Costs | None = None
) -> Schedule:
    """1F1B with the vocabulary spread over all meshes (arXiv 2411.05288, section 5).

    While the shards work on a microbatch, the meshes run other microbatches. So each mesh keeps `ahead` microbatches
    more than in 1F1B, by default p + 2 on the first mesh. The schedule is slower with `ahead=1`, and no faster with
    `ahead=3`.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        embedding: whether the input's embedding is spread too.
        ahead: how many more microbatches a mesh keeps than in 1F1B, at least 0; of several slices, how many more slices
            than in Seq1F1B.
        slices: how many slices n the sequence of each microbatch has (Seq1F1B, arXiv 2406.03488), at least 1. Mesh i
            then keeps p - i + `ahead` + n - 1 slices.
        costs: of the tasks: of the layers of each stage, of the shards, and of the last stage. By default all stages of
            layers take equally long, and all other stages take a tenth of it. The default order is taken if it is
            faster on the costs.

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

    Each mesh has two stages of layers in a V, and the backward is split. A mesh keeps at most p / 2 + 1 microbatches,
    rounded up to halves. Weight gradients run where no other task can run.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        embedding: whether the input's embedding is spread too.
        slices: how many slices n the sequence of each microbatch has, at least 1. A mesh then keeps p / 2 + n slices.
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
    """Returns the placement and the graph of these stages of layers with a spread vocabulary."""
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
    """Makes a schedule in which a free mesh prefers tasks of shards, then tasks of layers by their rank.

    All meshes wait for the shards; weight gradients of shards count as tasks of layers. A stage of layers keeps at most
    `limit(its number among the layers)` microbatches. A shard of the input's embedding keeps at most `limit(0) + 1`
    microbatches.
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
    """Makes the backward of the last stage whole.

    The last stage only joins shards and has no weights, so no weight gradient remains to run after its input gradient.
    """
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
