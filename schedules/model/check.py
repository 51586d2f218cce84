"""The check that a schedule is valid; its errors use the terms of schedules."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Protocol

from jaxpp.schedules.errors import ScheduleError, marked
from jaxpp.schedules.model.graph import Graph
from jaxpp.schedules.model.run import cells_of_graph, run
from jaxpp.schedules.model.task import Task


class HasGraph(Protocol):
    """A schedule, or another object that has a graph."""

    @property
    def graph(self) -> Graph:
        """The tasks, numbered."""
        ...

    @property
    def skipped(self) -> frozenset[Task]:
        """The tasks that are left out on purpose."""
        ...


def check(schedule: HasGraph) -> None:
    """Checks that the schedule computes every gradient exactly once and cannot deadlock, whatever the timing.

    It takes time linear in the number of tasks. A schedule is valid if

    - every task runs once, on a mesh that holds its stage.
    - every stage runs the forward of every microbatch, and the backward, whole or as input and weight gradient. Only
      skipped tasks may be absent, or all backwards of all stages.
    - the tasks that a task needs come earlier on its mesh, or on other meshes without a cycle.

    Messages give the position of a cell in its mesh's order, counted from 0.

    Raises:
        ScheduleError: when the schedule is not valid. The message has the first error, and its row with a mark at the
            cell if one cell is wrong.
    """
    graph = schedule.graph
    for task in schedule.skipped:
        if task.stage >= graph.placement.stages or task.kind not in graph.rules:
            raise ScheduleError(f"{task.words} is left out, but there is no such stage or kind of task")
    _check_each_task(graph)
    _check_complete(graph, schedule.skipped)
    _check_needs(graph)
    _check_moves(graph)
    _check_deadlock(graph)


def _check_each_task(graph: Graph) -> None:
    if not _every_task_is_fine(graph):
        _name_the_wrong_task(graph)


def _every_task_is_fine(graph: Graph) -> bool:
    """Whether each task has a known kind, is on a mesh that holds its stage, and is there once.

    This is a fast test. It returns False for schedules with kinds that may run on other meshes, which need the slow
    test.
    """
    on_meshes = [{task.stage for task in graph.tasks[row.start : row.stop]} for row in graph.rows]
    held = map(graph.placement.stages_of, range(len(graph.rows)))
    distinct = sum(map(len, graph.numbers.values()))
    return (
        distinct == len(graph.tasks)
        and graph.rules.keys() >= graph.numbers.keys()
        and all(graph.rules[kind].stands == "home" for kind in graph.numbers)
        and all(map(set.issubset, on_meshes, held))
    )


def _name_the_wrong_task(graph: Graph) -> None:
    seen: set[Task] = set()
    for mesh, row in enumerate(graph.rows):
        stages = graph.placement.stages_of(mesh)
        held = frozenset(stages)
        for number in row:
            task = graph.tasks[number]
            rule = graph.rules.get(task.kind)
            if rule is not None and rule.stands == ("peer" if task.stage in held else "home"):
                where = f"mesh {mesh} holds {_listed(stages)}"
                other = ", and this task stands on one that does not" if task.stage in held else ""
                raise _error(graph, number, f"{task.words} does not belong here: {where}{other}")
            if rule is None:
                raise _error(graph, number, f"{task.words} is of an unknown kind: known are {', '.join(graph.rules)}")
            if task in seen:
                first = _at(graph, graph.tasks.index(task))
                raise _error(graph, number, f"{task.words} is there twice, first on {first}")
            seen.add(task)


def _check_complete(graph: Graph, skipped: Set[Task]) -> None:
    """Checks that no task is missing; the first missing task is found in at most as many steps as there are tasks."""
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
    cells = cells_of_graph(graph, [1.0] * len(graph.tasks))
    counts = run(cells, cells.rows).counts
    # For each mesh the first task of the cell that it is stuck at, or the end of its row.
    heads = [
        graph.heads[row[count]] if count < len(row) else tasks.stop
        for row, count, tasks in zip(cells.rows, counts, graph.rows, strict=True)
    ]
    mesh = next((mesh for mesh, row in enumerate(graph.rows) if heads[mesh] != row.stop), None)
    if mesh is None:
        return
    # A stuck mesh waits for a task at or after the head of another mesh. A walk along these waits closes a cycle.
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
    """Returns the waiting task at the head of a stuck mesh, and the task on another mesh that it waits for."""
    head = heads[mesh]
    return next(
        (number, need)
        for number in range(head, head + graph.spans[head])
        for need in graph.needs[number]
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
