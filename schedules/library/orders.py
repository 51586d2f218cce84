"""What the orders of published schedules are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.task import Task

Cell = Task | tuple[Task, ...]


class Row:
    """The order of one mesh as it is written down: each task is the next one of its kind and stage.

    A stage runs the microbatches from `firsts[stage]` (0 unless given) on, `microbatches` of them; what would go beyond
    them is left out, so that an order written for many microbatches also serves few.
    """

    def __init__(self, microbatches: int, firsts: dict[int, int] | None = None) -> None:
        self.cells: list[Cell] = []
        self.microbatches = microbatches
        self._firsts = firsts or {}
        self._counts: dict[tuple[str, int], int] = {}
        self._owed: list[Task] = []

    def forward(self, stage: int) -> None:
        """Append the next forward of the stage."""
        self._append(self._next("forward", stage))

    def backward(self, stage: int, split: bool = False) -> None:
        """Append the next backward of the stage; split, its input gradient alone, and the other half is owed."""
        tasks = self._next("backward", stage)
        if split:
            self._owed += [Task("weight_grad", task.stage, task.microbatch) for task in tasks]
            tasks = [Task("input_grad", task.stage, task.microbatch) for task in tasks]
        self._append(tasks)

    def both(self, forward: int, backward: int, fused: bool) -> None:
        """Append the next forward of one stage and the next backward of another, as one cell where `fused`."""
        tasks = [*self._next("forward", forward), *self._next("backward", backward)]
        if fused and len(tasks) > 1:
            self.cells.append(tuple(tasks))
        else:
            self._append(tasks)

    def weight_grad(self, stage: int | None = None) -> None:
        """Append the weight gradient that has been owed for longest, of that stage if one is named."""
        owed = next((task for task in self._owed if stage in (None, task.stage)), None)
        if owed:
            self._owed.remove(owed)
            self._append([owed])

    def count(self, kind: str, stage: int) -> int:
        """How many tasks of a kind ("forward" or "backward") the stage has had, those left out included."""
        return self._counts.get((kind, stage), 0)

    def _next(self, kind: str, stage: int) -> list[Task]:
        number = self.count(kind, stage)
        self._counts[kind, stage] = number + 1
        return [Task(kind, stage, self._firsts.get(stage, 0) + number)] if number < self.microbatches else []

    def _append(self, tasks: Iterable[Task]) -> None:
        self.cells += tasks


def in_turn(forwards: Sequence[Task], backwards: Sequence[Task], ahead: int) -> list[Task]:
    """`ahead` forwards, then one forward and one backward in turn, then the backwards that are left."""
    ahead = min(ahead, len(forwards))
    order = list(forwards[:ahead])
    for number, backward in enumerate(backwards):
        order += [*forwards[ahead + number : ahead + number + 1], backward]
    return order


def split(order: Iterable[Task], delay: int) -> list[Task]:
    """Each backward as its two halves, the weight gradient right behind the input gradient `delay` backwards later."""
    halves: list[Task] = []
    owed: list[Task] = []
    for task in order:
        if task.kind != "backward":
            halves.append(task)
            continue
        halves.append(Task("input_grad", task.stage, task.microbatch, task.slice))
        owed.append(Task("weight_grad", task.stage, task.microbatch, task.slice))
        if len(owed) > delay:
            halves.append(owed.pop(0))
    return halves + owed


def multiple(value: int, of: int, what: str, reason: str) -> None:
    """Guard: `value` is a multiple of `of`.

    Raises:
        ScheduleError: it is not; `reason` says who asks for it.
    """
    if value % of:
        raise ScheduleError(f"{what} must be a multiple of {of}, found {value}: {reason}")
