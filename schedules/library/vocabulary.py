"""Schedules of models whose vocabulary is spread over all meshes."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpp.schedules.costs import Costs
from jaxpp.schedules.errors import whole_number
from jaxpp.schedules.priorities import by_priority
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement, Task


def vocab_1f1b(
    meshes: int, microbatches: int, ahead: int = 2, embedding: bool = False, costs: Costs | None = None
) -> Schedule:
    """1F1B with the vocabulary spread over all meshes (Vocabulary Parallelism, arXiv 2411.05288).

    For `jaxpp.vocabulary_cross_entropy`, and with `embedding` also `jaxpp.vocabulary_embedding`. Stages are a graph:
    the layers, one stage per mesh; on every mesh a shard of the logits, after the last of these; and what puts the
    shards together, on the last mesh. With `embedding` the shards of the input's embedding come first. While a
    microbatch is on its way to all shards and back, the meshes run others: `ahead` more than in 1F1B, p + 2 on the
    first mesh. With 1 more it is slower, with 3 no faster.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.
        ahead: how many more microbatches a mesh keeps than in 1F1B, at least 0.
        embedding: whether the input's embedding is spread too.
        costs: of the tasks: the layers of each mesh, its shards, and the last stage; by default all take equally long
            but the shards and what puts them together, which take a tenth of it.

    Raises:
        ScheduleError: a count is too small, or the costs are for other stages.
    """
    p, ahead = whole_number(meshes, "meshes", least=1), whole_number(ahead, "ahead", least=0)
    first = p if embedding else 0
    placement = vocabulary_stages(p, embedding)
    if costs is None:
        times = [0.1] * first + [1.0] * p + [0.1] * (p + 1)
        costs = Costs(forward=times, input_grad=times, weight_grad=times)

    def priority(task: Task) -> tuple[int, int]:
        is_backward = task.kind == "backward"
        if task.stage not in range(first, first + p):
            return 1 - is_backward, task.microbatch  # all meshes wait for it
        forwards_first = ahead > 1
        return 3 if is_backward == forwards_first else 2, task.microbatch

    def limit(stage: int) -> int:
        if stage < first:
            return p + ahead + 1
        return p + ahead - (stage - first) if stage < first + p else microbatches

    return by_priority("vocab-1f1b", placement, microbatches, priority, limit=limit, costs=costs)


def vocabulary_stages(meshes: int, embedding: bool) -> Placement:
    """The stages of `vocab_1f1b`, where they are, and which of them read which."""
    first = meshes if embedding else 0
    layers, shards = range(first, first + meshes), range(first + meshes, first + 2 * meshes)
    after: list[Sequence[int]] = [*[()] * first, range(first), *([stage] for stage in layers[:-1])]
    after += [*[layers[-1:]] * meshes, shards]
    return Placement.of(*[*range(meshes)] * (3 if embedding else 2), meshes - 1, after=after)
