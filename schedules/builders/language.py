"""A small language for schedules: a plan says in a few lines what each mesh does.

    from jaxpp.schedules.builders.language import B, F, Plan

    def one_f_one_b(p, m):
        plan = Plan("1f1b", Placement.linear(p), m)
        for i, mesh in enumerate(plan):
            mesh.warm_up(F(i) * (p - 1 - i))     # so many forwards ahead,
            mesh.repeat(F(i) + B(i))             # then one forward, one backward, until nothing is left
        return plan.schedule()

`F(3)` is the next forward of stage 3, `B(3)` its next backward. `I(3)` is the input gradient of the next backward. It
splits that backward, and the weight gradient is owed until `W(3)` runs it. `W()` runs the weight gradient that has been
owed longest. `F(0, 4, group=2)` takes two microbatches through stage 0, then the same two through stage 4, and so on.

The plan counts microbatches. A step is left out once it has no tasks left, so cool-downs need no arithmetic. Steps are
combined by

    F(0) + B(0)         one after the other
    (F(0) & B(1))       fused into one task
    F(0) * 3            three times

A user's operation is one line, and is used like the others:

    evict = Operation.parse("evict: forward; uses copy_out; here -1; time 0.5")
    mesh.repeat(F(0) + evict(0) + B(0))

There are two other ways to write an order. `jaxpp.schedules.builders.block` repeats a layout of one microbatch's tasks
in time slots. `jaxpp.schedules.builders.by_priority` takes the preferences of a free mesh. Changes of a finished
schedule, such as recomputation, are in `jaxpp.schedules.rewrites`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Final, TypeAlias

from jaxpp.schedules.errors import ScheduleError, check_size, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.kinds import LETTERS, Kind
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task, Unit

Take: TypeAlias = Callable[[], tuple[Task, ...]]
"""A function that returns the tasks of a pattern's next cell, or none if no tasks are left."""


@dataclass(frozen=True)
class PlanStep:
    """The next task of a kind, for one stage or for several stages in turn.

    Attributes:
        name: the name of the kind.
        stages: the stages that take turns.
        groups: the number of microbatches per turn, turn by turn; the last number holds for all later turns.
        kind: the rules of the kind, if it is not built in.
    """

    name: str
    stages: tuple[int, ...]
    groups: tuple[int, ...]
    kind: Kind | None = None

    def __str__(self) -> str:
        return f"{LETTERS.get(self.name, self.name)}({', '.join(map(str, self.stages))})"


@dataclass(frozen=True)
class Pattern:
    """Cells of steps, in order; the steps of a cell are fused.

    `+` joins patterns, `*` repeats a pattern, `&` fuses single steps.
    """

    cells: tuple[tuple[PlanStep, ...], ...]

    def __add__(self, other: Pattern) -> Pattern:
        return Pattern(self.cells + _pattern(other).cells)

    def __mul__(self, times: int) -> Pattern:
        return Pattern(self.cells * whole_number(times, f"how often {self} is repeated", least=0))

    __rmul__ = __mul__

    def __and__(self, other: Pattern) -> Pattern:
        for side in (self, _pattern(other)):
            if len(side.cells) != 1:
                raise ScheduleError(f"only single steps are fused, found {side}: write (F(0) & B(1)) in parentheses")
        return Pattern(((*self.cells[0], *other.cells[0]),))

    def __str__(self) -> str:
        return " + ".join(" & ".join(map(str, cell)) for cell in self.cells) or "nothing"


def _pattern(value: object) -> Pattern:
    if isinstance(value, Pattern):
        return value
    raise ScheduleError(f"expected steps, such as F(0) + B(0), found {value!r}")


@dataclass(frozen=True)
class Operation:
    """A kind of task as a word of the language: a call with stages returns a pattern of one step.

    Attributes:
        name: the kind of its tasks.
        kind: the rules of the kind, if it is not built in.
    """

    name: str
    kind: Kind | None = None

    @classmethod
    def parse(cls, text: str) -> Operation:
        """Returns a user's operation, such as `Operation.parse("evict: forward; uses copy_out; here -1; time 0.5")`.

        Raises:
            ScheduleError: when the text is not of the form that `Kind.parse` reads.
        """
        kind = Kind.parse(text)
        return cls(kind.name, kind)

    def __call__(self, *stages: int, group: int | Sequence[int] = 1) -> Pattern:
        """Returns a pattern of the next task of this kind.

        Args:
            stages: the stage of the task. Several stages take turns: each takes `group` microbatches, then the first
                stage takes the next microbatches. Without a stage, `W()` takes the weight gradient that has been owed
                longest.
            group: the number of microbatches per turn. A sequence gives one number per round of turns; the last number
                holds for all later rounds.

        Raises:
            ScheduleError: when a number is not a whole number, or there is no stage.
        """
        if not stages and self.name != "weight_grad":
            raise ScheduleError(f"{self.name}: expected the stage, or several to take in turn, found none")
        numbers = tuple(whole_number(stage, f"the stage of {self.name}", least=0) for stage in stages)
        sizes = group if isinstance(group, Sequence) and group else [group]
        groups = tuple(whole_number(size, "group", least=1) for size in sizes)
        return Pattern(((PlanStep(self.name, numbers, groups, self.kind),),))


F: Final = Operation("forward")
B: Final = Operation("backward")
I: Final = Operation("input_grad")  # noqa: E741  # the letter of the grid
W: Final = Operation("weight_grad")


@dataclass
class MeshOrder:
    """The order of one mesh while it is written.

    Attributes:
        microbatches: the microbatches that the mesh runs.
        slices: the number of slices of each microbatch's sequence.
        cells: the cells so far.
        kinds: the user's kinds in these cells.
    """

    microbatches: range
    slices: int = 1
    cells: list[tuple[Task, ...]] = field(default_factory=list[tuple[Task, ...]])
    kinds: dict[str, Kind] = field(default_factory=dict[str, Kind])
    _shares: dict[int, range] = field(default_factory=dict[int, range])
    _streams: dict[PlanStep, Iterator[Unit]] = field(default_factory=dict[PlanStep, Iterator[Unit]])
    # For each (kind, stage) the number of its tasks so far.
    _taken: dict[tuple[str, int], list[int]] = field(default_factory=dict[tuple[str, int], list[int]])
    # For each stage the weight gradients that are owed, each with its index among all that were ever owed.
    _owed: dict[int, deque[tuple[int, Task]]] = field(default_factory=dict[int, deque[tuple[int, Task]]])
    _debts: Iterator[int] = field(default_factory=itertools.count)

    def run(self, *patterns: Pattern) -> None:
        """Adds each step once, in order, except those that have no tasks left."""
        self._write(self._takes(patterns))

    warm_up = run
    cool_down = run

    def repeat(self, *patterns: Pattern, times: int | None = None) -> None:
        """Adds the patterns `times` times, or until they have no tasks left.

        Raises:
            ScheduleError: when `times` is not a whole number of at least 0.
        """
        takes = self._takes(patterns)
        for _ in itertools.count() if times is None else range(whole_number(times, "times", least=0)):
            before = len(self.cells)
            self._write(takes)
            if len(self.cells) == before:
                return

    def share(self, stage: int, microbatches: range) -> None:
        """Limits this mesh to these microbatches of a stage that other meshes also hold.

        It must be called before the first step of that stage.
        """
        self._shares[stage] = microbatches

    def _write(self, takes: Iterable[Take]) -> None:
        append = self.cells.append
        for take in takes:
            if cell := take():
                append(cell)

    def _takes(self, patterns: Iterable[Pattern]) -> list[Take]:
        cells = [[self._take(step) for step in cell] for pattern in patterns for cell in _pattern(pattern).cells]
        return [cell[0] if len(cell) == 1 else partial(_fused, cell) for cell in cells]

    def _take(self, step: PlanStep) -> Take:
        if step.kind:
            self.kinds[step.name] = step.kind
        if step.name == "weight_grad":
            return partial(self._pay, step.stages)
        # A split backward is counted as a backward.
        counted = replace(step, name="backward") if step.name == "input_grad" else step
        stream = self._streams.get(counted)
        if stream is None:
            stream = self._streams[counted] = self._in_turn(counted)
        if step.name == "input_grad":
            return partial(self._split, stream)
        return partial(next, zip(itertools.starmap(partial(Task, step.name), stream), strict=True), ())

    def _split(self, stream: Iterator[Unit]) -> tuple[Task, ...]:
        """Returns the input gradient of the next backward, and records its weight gradient as owed."""
        unit = next(stream, None)
        if unit is None:
            return ()
        self._owed.setdefault(unit[0], deque()).append((next(self._debts), Task("weight_grad", *unit)))
        return (Task("input_grad", *unit),)

    def _pay(self, stages: tuple[int, ...]) -> tuple[Task, ...]:
        """Returns the weight gradient that has been owed longest, of these stages or, without stages, of all."""
        owed = [queue for stage, queue in self._owed.items() if queue and (not stages or stage in stages)]
        return min(owed, key=itemgetter(0)).popleft()[1:] if owed else ()

    def _in_turn(self, step: PlanStep) -> Iterator[Unit]:
        shares = [self._shares.get(stage, self.microbatches) for stage in step.stages]
        # Later slices attend to earlier slices, so backwards run through the slices in reverse.
        parts = range(self.slices)[:: -1 if step.name == "backward" else 1]
        most = max(map(len, shares))
        turns = itertools.chain(step.groups, itertools.repeat(step.groups[-1])) if len(shares) > 1 else [most]
        first = 0
        for size in turns:
            for stage, share in zip(step.stages, shares, strict=True):
                # Another step may take tasks of the same stage: both take them in the same order.
                number, taken = first * len(parts), self._taken.setdefault((step.name, stage), [0])
                for microbatch in share[first : first + size]:
                    for part in parts:
                        if number == taken[0]:
                            taken[0] = number + 1
                            yield stage, microbatch, part
                        number += 1
            first += size
            if first >= most:
                return


def _fused(takes: Sequence[Take]) -> tuple[Task, ...]:
    return tuple(task for take in takes for task in take())


class Plan:
    """A schedule in the making: `for i, mesh in enumerate(plan)` yields the meshes to write to.

    Args:
        name: the name of the schedule, printable ASCII.
        placement: which mesh holds which stage.
        microbatches: their number, at least 1.
        slices: the number of slices of each microbatch's sequence.

    Raises:
        ScheduleError: when a number is below 1, or the schedule would be too large.
    """

    def __init__(self, name: str, placement: Placement, microbatches: int, slices: int = 1) -> None:
        self.name, self.placement = name, placement
        self.microbatches = whole_number(microbatches, "microbatches", least=1)
        slices = whole_number(slices, "slices", least=1)
        check_size(name, stages=placement.stages, microbatches=self.microbatches, slices=slices)
        self.rows = tuple(MeshOrder(range(self.microbatches), slices) for _ in range(placement.meshes))

    def __iter__(self) -> Iterator[MeshOrder]:
        """Yields the meshes, in order."""
        return iter(self.rows)

    def __getitem__(self, mesh: int) -> MeshOrder:
        """Returns one mesh.

        Raises:
            ScheduleError: when there is no such mesh.
        """
        if whole_number(mesh, "a mesh", least=0) >= len(self.rows):
            raise ScheduleError(f"{self.name} has no mesh {mesh}: there are {len(self.rows)}")
        return self.rows[mesh]

    def schedule(self, skipped: Iterable[Task] = ()) -> Schedule:
        """Returns the schedule as written, checked.

        Args:
            skipped: tasks that are left out on purpose.

        Raises:
            ScheduleError: when the schedule is not valid, or a step was never written: `1f1b: B(stage 0, mb 3) is
                missing`.
        """
        schedule = self.draft(skipped)
        check(schedule)
        if schedule.microbatches != self.microbatches:
            found = f"found {schedule.microbatches}"
            raise ScheduleError(f"{self.name}: expected tasks for {self.microbatches} microbatches, {found}")
        return schedule

    def draft(self, skipped: Iterable[Task] = ()) -> Schedule:
        """Returns the schedule as written, unchecked.

        The library uses it, because tests check the library's schedules.
        """
        kinds = {name: kind for row in self.rows for name, kind in row.kinds.items()}
        return Schedule.of(self.name, self.placement, (row.cells for row in self.rows), kinds.values(), skipped)
