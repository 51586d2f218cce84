"""Is a schedule valid, and if not, why: answered in the schedule's own terms."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Protocol

from jaxpp.schedules.errors import ScheduleError, marked
from jaxpp.schedules.graph import Graph
from jaxpp.schedules.sweep import sweep
from jaxpp.schedules.task import Task


class HasGraph(Protocol):
    """A schedule, or what else can be numbered."""

    @property
    def graph(self) -> Graph:
        """The tasks, numbered."""
        ...

    @property
    def skipped(self) -> frozenset[Task]:
        """The tasks that are left out on purpose."""
        ...


def check(schedule: HasGraph) -> None:
    """Prove that the schedule computes every gradient exactly once and cannot deadlock, whatever the timing.

    Every task runs once, on a mesh that holds its stage, or, where the stage is spread, once on each of its meshes;
    every stage runs every microbatch forward, and, unless no stage has a backward, also backward: fused, or as input
    and weight gradient; only what the schedule skips is left out. What a task needs comes earlier on its mesh, or on
    another mesh without a cycle. Linear in the number of tasks.

    Positions in messages are those of cells in their mesh's order, counted from 0.

    Raises:
        ScheduleError: the first thing that is wrong, the row with the cell marked where there is one cell to blame.
    """
    graph = schedule.graph
    for task in schedule.skipped:
        if task.stage >= graph.placement.stages or task.kind not in graph.rules:
            raise ScheduleError(f"{task.words} is left out, but there is no such stage or kind of task")
    _check_each_task(graph)
    _check_spread(graph)
    _check_complete(graph, schedule.skipped)
    _check_needs(graph)
    _check_moves(graph)
    _check_deadlock(graph)


def _check_each_task(graph: Graph) -> None:
    if not _every_task_is_fine(graph):
        _name_the_wrong_task(graph)


def _every_task_is_fine(graph: Graph) -> bool:
    """Whether each task is of a known kind, on a mesh that holds its stage, and there once, by quick looks at them all.

    A task of a spread stage is there once on each mesh.
    """
    on_meshes = [{task.stage for task in graph.tasks[row.start : row.stop]} for row in graph.rows]
    held = map(graph.placement.stages_of, range(len(graph.rows)))
    distinct = sum(map(len, graph.numbers.values()))
    return (
        not graph.partners
        and distinct == len(graph.tasks)
        and graph.rules.keys() >= graph.numbers.keys()
        and all(graph.rules[kind].stands == "home" for kind in graph.numbers)
        and all(map(set.issubset, on_meshes, held))
    )


def _name_the_wrong_task(graph: Graph) -> None:
    seen: set[Task] = set()
    for mesh, row in enumerate(graph.rows):
        stages = graph.placement.stages_of(mesh)
        held = frozenset(stages)
        here: set[Task] = set()
        for number in row:
            task = graph.tasks[number]
            rule = graph.rules.get(task.kind)
            if rule is not None and rule.stands == ("peer" if task.stage in held else "home"):
                where = f"mesh {mesh} holds {_listed(stages)}"
                other = ", and this task stands on one that does not" if task.stage in held else ""
                raise _error(graph, number, f"{task.words} does not belong here: {where}{other}")
            if rule is None:
                raise _error(graph, number, f"{task.words} is of an unknown kind: known are {', '.join(graph.rules)}")
            if task in here or (task in seen and task.stage not in graph.placement.spread):
                first = _at(graph, graph.tasks.index(task))
                raise _error(graph, number, f"{task.words} is there twice, first on {first}")
            here.add(task)
        seen |= here


def _check_spread(graph: Graph) -> None:
    for number in graph.partners:
        task = graph.tasks[number]
        found = {graph.place(other)[0] for other in graph.partners[number]}
        for mesh in graph.placement.homes[task.stage]:
            if mesh not in found:
                raise _error(graph, number, f"{task.words} runs on all its meshes at once, but not on mesh {mesh}")
        if graph.spans[number] != 1:
            raise _error(graph, number, f"{task.words} runs on several meshes and cannot be fused with others")


def _check_complete(graph: Graph, skipped: Set[Task]) -> None:
    """Walk over stages and microbatches; what is missing is met after at most as many steps as there are tasks."""
    kinds = ("forward", "backward", "input_grad", "weight_grad")
    forward, backward, input_grad, weight_grad = (graph.numbers.get(kind, {}) for kind in kinds)
    if not forward:
        raise ScheduleError("the schedule has no forward task")
    trains = bool(backward or input_grad or weight_grad)
    stages, slices = graph.placement.stages, graph.slices
    for key in range((1 + max(task.microbatch for task in graph.tasks)) * slices * stages):
        unit, stage = divmod(key, stages)
        missing: list[str] = []
        if key not in forward:
            missing = ["forward"]
        elif key in backward:
            if key in input_grad or key in weight_grad:
                number = input_grad.get(key, weight_grad.get(key, 0))
                other = graph.tasks[backward[key]].words
                raise _error(graph, number, f"{graph.tasks[number].words} repeats a part of {other}")
        elif trains and key not in input_grad:
            missing = ["backward", "input_grad"]
        elif trains and key not in weight_grad:
            missing = ["weight_grad"]
        tasks = [Task(kind, stage, unit // slices, unit % slices) for kind in missing]
        if tasks and skipped.isdisjoint(tasks):
            raise ScheduleError(f"{tasks[0].words} is missing: mesh {graph.placement[stage]} should run it")


def _check_needs(graph: Graph) -> None:
    for number, lacking in graph.lacking.items():
        raise _error(graph, number, f"{graph.tasks[number].words} needs {lacking[0].words}, which is missing")
    for mesh, row in enumerate(graph.rows):
        for number in row:
            for need in graph.needs[number]:
                if number <= need < row.stop:
                    needed = f"needs {graph.tasks[need].words}, which comes later on mesh {mesh}"
                    raise _error(graph, number, f"{graph.tasks[number].words} {needed}")


def _check_moves(graph: Graph) -> None:
    evicted, offloaded = graph.numbers.get("evict", {}), graph.numbers.get("offload", {})
    for key in evicted.keys() & offloaded.keys():
        number, other = offloaded[key], graph.tasks[evicted[key]].words
        reason = f"{graph.tasks[number].words} moves what {other} moves already: it can wait in one place only"
        raise _error(graph, number, reason)


def _check_deadlock(graph: Graph) -> None:
    heads = sweep(graph, [1.0] * len(graph.tasks)).heads
    mesh = next((mesh for mesh, row in enumerate(graph.rows) if heads[mesh] != row.stop), None)
    if mesh is None:
        return
    # Each mesh that is stuck waits for a task at or behind the head of another: following them closes a cycle.
    steps: dict[int, str] = {}
    while mesh not in steps:
        number, need = _blocked(graph, heads, mesh)
        task, needed = graph.tasks[number].words, graph.tasks[need].words
        steps[mesh] = f"{_at(graph, number)}: {task} needs {needed} of {_at(graph, need)}"
        mesh, _ = graph.place(need)
    cycle = list(steps)[list(steps).index(mesh) :]
    lines = "".join(f"\n  {steps[mesh]}" for mesh in cycle)
    raise ScheduleError(f"deadlock: these meshes wait for one another{lines}", graph.place(heads[mesh]))


def _blocked(graph: Graph, heads: list[int], mesh: int) -> tuple[int, int]:
    """The task at the head of a stuck mesh that waits, and the one on another mesh that it waits for."""
    head = heads[mesh]
    # A task of several meshes may have all it needs, and wait for its part on a mesh that is not there yet.
    partners = [(head, other) for other in graph.partners.get(head, ())]
    needs = [(number, need) for number in range(head, head + graph.spans[head]) for need in graph.needs[number]]
    return next(
        (number, need)
        for number, need in (*needs, *partners)
        if need not in graph.rows[mesh] and need >= heads[graph.place(need)[0]]
    )


def _error(graph: Graph, number: int, reason: str) -> ScheduleError:
    mesh, position = where = graph.place(number)
    row = ["+".join(map(str, cell)) for cell in graph.cells[mesh]]
    return ScheduleError(f"{_at(graph, number)}: {reason}\n{marked(f'mesh {mesh}:', row, position)}", where)


def _at(graph: Graph, number: int) -> str:
    mesh, position = graph.place(number)
    return f"mesh {mesh} position {position}"


def _listed(stages: Iterable[int]) -> str:
    words = list(map(str, stages))
    if len(words) > 12:
        words[6:-6] = ["..."]
    return f"stage{'s' if len(words) > 1 else ''} {', '.join(words)}"
