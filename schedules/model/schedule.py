"""A schedule as data: for each mesh an ordered list of tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

from jaxpp._system import collector_paused
from jaxpp.schedules.errors import ScheduleError, instance_of
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.csv import check_copies, parse_csv, placement_of, print_csv
from jaxpp.schedules.model.graph import CellRows, Graph, build_graph
from jaxpp.schedules.model.grid import parse_grid, print_grid
from jaxpp.schedules.model.kinds import Kind, rules_of
from jaxpp.schedules.model.task import Placement, Task

_NAME: Final = re.compile(r"[!-~]+( [!-~]+)*")


@dataclass(frozen=True, repr=False)
class Schedule:
    """A schedule: the order in which each mesh runs its tasks.

    A `Schedule` may be invalid, so that its errors can be shown; `check` finds them. `str` prints it as a grid of
    meshes and time slots, and `parse` reads the grid back exactly.

    Attributes:
        name: printable ASCII, on one line.
        placement: which mesh holds which stage.
        orders: for each mesh its tasks, in the order in which they run.
        fused: groups of neighbours in one order that run as one task, such as DualPipe's forward-and-backward. A group
            starts when the needs of all its tasks have arrived, and its tasks end together.
        kinds: the user's kinds of tasks, and built-in kinds that the user changed.
        skipped: tasks that are left out on purpose. No task waits for them, and `check` does not miss them. An example
            is the weight gradients of frozen layers, per stage and microbatch (TimelyFreeze, arXiv 2602.05754).

    Raises:
        ScheduleError: when the name is not printable, the number of orders is not the number of meshes, or a fused
            group is not a run of neighbours.
    """

    name: str
    placement: Placement
    orders: tuple[tuple[Task, ...], ...]
    fused: frozenset[tuple[Task, ...]] = frozenset()
    kinds: tuple[Kind, ...] = ()
    skipped: frozenset[Task] = frozenset()

    shown: ClassVar[Callable[[Schedule], str]]
    """Returns HTML that shows a schedule in a notebook. `jaxpp.schedules.plot` sets it."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ScheduleError(f"the name of a schedule must be printable ASCII on one line, found {self.name!r}")
        if len(self.orders) != self.meshes:
            raise ScheduleError(
                f"{self.name}: the placement names {self.meshes} meshes, but there are {len(self.orders)} orders"
            )
        found = {cell for row in self.cells for cell in row if len(cell) > 1} if self.fused else set()
        for group in self.fused - found:
            words = "+".join(map(str, group))
            raise ScheduleError(f"{self.name}: fused group {words} must be two or more neighbours in one mesh's order")

    def _repr_html_(self) -> str:
        """Returns the schedule for a notebook, as it runs without costs."""
        return Schedule.shown(self)

    @classmethod
    def of(
        cls,
        name: str,
        placement: Placement,
        rows: Iterable[Iterable[Task | Sequence[Task]]],
        kinds: Iterable[Kind] = (),
        skipped: Iterable[Task] = (),
    ) -> Schedule:
        """Builds a schedule from the cells of each mesh; a cell is a task, or a sequence of fused tasks."""
        orders: list[tuple[Task, ...]] = []
        fused: set[tuple[Task, ...]] = set()
        for row in rows:
            order: list[Task] = []
            for cell in row:
                if isinstance(cell, Task):
                    order.append(cell)
                    continue
                order += cell
                if len(cell) > 1:
                    fused.add(tuple(cell))
            orders.append(tuple(order))
        return cls(name, placement, tuple(orders), frozenset(fused), tuple(kinds), frozenset(skipped))

    @staticmethod
    def parse(text: str) -> Schedule:
        """Reads the text that `str` prints, and checks the schedule.

        Raises:
            ScheduleError: when the text or the schedule is wrong; the message has the row with a mark at the cell, and
                the reason.
        """
        grid = parse_grid(text)
        schedule = Schedule.of(grid.name, grid.placement, grid.rows, grid.kinds, grid.skipped)
        check(schedule)
        return schedule

    @staticmethod
    def from_csv(
        text: str,
        name: str = "csv",
        placement: Placement | None = None,
        kinds: Iterable[Kind] = (),
        skipped: Iterable[Task] = (),
    ) -> Schedule:
        """Reads one of PyTorch's pipelining tables (see `jaxpp.schedules.model.csv`), and checks the schedule.

        Args:
            text: a row per rank. Cells that communicate are optional; they are checked and not kept.
            name: the name of the schedule, which a table does not have.
            placement: which mesh holds which stage; by default the mesh of the row that runs it.
            kinds: the user's kinds in the table.
            skipped: tasks that are left out on purpose, such as the weight gradients of frozen layers.

        Raises:
            ScheduleError: when the table or the schedule is wrong; the message has the row, the column and the reason.
        """
        table, kinds = parse_csv(text), tuple(kinds)
        schedule = Schedule.of(name, placement or placement_of(table, kinds), table.rows, kinds, skipped)
        try:
            check(schedule)
        except ScheduleError as error:
            if error.where is None:
                raise
            mesh, position = error.where
            raise ScheduleError(f"{table.where(mesh, table.columns[mesh][position])}: {error}", error.where) from None
        check_copies(table, schedule.graph)
        return schedule

    def to_csv(self, communicate: bool = False) -> str:
        """Returns the table that `from_csv` reads, without the name, the rules of kinds, and the skipped tasks.

        Args:
            communicate: whether to write the cells that send and receive; bubbles are then left out.

        Raises:
            ScheduleError: when the stages are a graph, or, with `communicate`, a value moves for which a table has no
                cells.
        """
        return print_csv(self.graph, communicate)

    def __repr__(self) -> str:
        counts = f"stages={self.stages}, meshes={self.meshes}, microbatches={self.microbatches}"
        return f"<Schedule {self.name!r}: {counts}, tasks={sum(map(len, self.orders))}>"

    def __str__(self) -> str:
        """Returns the grid of meshes and time slots (see `jaxpp.schedules.model.grid`)."""
        return print_grid(self.name, self.graph, self.kinds, self.skipped)

    def __iter__(self) -> Iterator[Task]:
        """Yields all tasks, mesh by mesh."""
        for order in self.orders:
            yield from order

    @property
    def meshes(self) -> int:
        """The number of meshes."""
        return self.placement.meshes

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self.placement.stages

    @cached_property
    def microbatches(self) -> int:
        """The number of microbatches: one more than the highest index in a task."""
        return 1 + max((task.microbatch for task in self), default=-1)

    @cached_property
    def slices(self) -> int:
        """The number of slices of a microbatch's sequence; 1 if it is not cut."""
        return 1 + max((task.slice for task in self), default=0)

    @cached_property
    def cells(self) -> CellRows:
        """For each mesh its cells in order: tuples of tasks that run as one, mostly of one task."""
        heads = {group[0]: group for group in self.fused if len(group) > 1}
        if not heads:
            return tuple(tuple(zip(order, strict=True)) for order in self.orders)
        return tuple(_cells(order, heads) for order in self.orders)

    @cached_property
    def rules(self) -> dict[str, Kind]:
        """The rules of each kind by name: the built-in kinds and the schedule's own."""
        return rules_of(self.kinds)

    @property
    def graph(self) -> Graph:
        """The schedule as a graph of numbered tasks, built once."""
        return self._graph

    @cached_property
    def _graph(self) -> Graph:
        with collector_paused():
            return build_graph(self.placement, self.rules, self.cells, self.skipped)

    def number_of(self, task: Task) -> int:
        """Returns the number of a task in `graph`.

        Raises:
            ScheduleError: when the schedule has no such task.
        """
        number = self.graph.numbers.get(task.kind, {}).get(self.graph.key(task))
        if number is None or self.graph.tasks[number] != task:
            raise ScheduleError(f"{self.name} has no task {task.words}")
        return number

    def dependences(self, task: Task) -> tuple[Task, ...]:
        """Returns the tasks that `task` needs by the rules of its kind. An invalid schedule may lack some of them.

        Raises:
            ScheduleError: when the schedule has no such task.
        """
        number = self.number_of(task)
        return (*(self.graph.tasks[need] for need in self.graph.needs[number]), *self.graph.lacking.get(number, ()))


def _cells(order: tuple[Task, ...], heads: dict[Task, tuple[Task, ...]]) -> tuple[tuple[Task, ...], ...]:
    cells: list[tuple[Task, ...]] = []
    position = 0
    while position < len(order):
        cell = heads.get(order[position], ())
        if not cell or order[position : position + len(cell)] != cell:
            cell = (order[position],)
        cells.append(cell)
        position += len(cell)
    return tuple(cells)


def check_type(schedule: object) -> None:
    """Checks that an argument is a Schedule, and not its name or text.

    Raises:
        ScheduleError: when it is not.
    """
    instance_of(Schedule, schedule, "schedule", ", as schedules.make makes it")
