"""A small language to write schedules in: what each mesh does, as it would be said.

    from jaxpp.schedules.language import B, F, Plan

    def one_f_one_b(p, m):
        plan = Plan("1f1b", Placement.linear(p), m)
        for i, mesh in enumerate(plan):
            mesh.warm_up(F(i) * (p - 1 - i))     # so many forwards ahead,
            mesh.repeat(F(i) + B(i))             # then one forward, one backward, until nothing is left
        return plan.schedule()

`F(3)` is the next forward of stage 3, `B(3)` its next backward, `I(3)` splits the backward here: its input gradient
runs now, and its weight gradient is owed until `W(3)`, or `W()` for whichever is owed for longest. `F(0, 4, group=2)`
takes two microbatches through stage 0, then the same two through stage 4, and so on. Microbatches are counted by the
plan; a step of which nothing is left is left out, so cool-downs need no arithmetic. Steps are put together by

    F(0) + B(0)         one after the other
    (F(0) & B(1))       fused into one task
    F(0) * 3            three times

An operation of the user's own is one line, and stands beside the others:

    evict = Operation.parse("evict: forward; track copy; memory -1; time 0.5")
    mesh.repeat(F(0) + evict(0) + B(0))

Two other ways to say what runs when: `block` (`jaxpp.schedules.blocks`) lays out the tasks of one microbatch in slots
of time, to be repeated, and `by_priority` (`jaxpp.schedules.priorities`) tells what a free mesh prefers. What is done
to a finished schedule, such as "offload stage 0 until needed", is in `jaxpp.schedules.rewrites`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from jaxpp.schedules.check import check
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.kinds import LETTERS, Kind
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement, Task

_BACKWARD: Final = ("backward", "input_grad")
_COUNTED_AS: Final = {"input_grad": "backward"}


@dataclass(frozen=True)
class Step:
    """The next task of a kind, of one stage or of several in turn; `kind` has its rules where it is the user's."""

    name: str
    stages: tuple[int, ...]
    group: int
    kind: Kind | None = None

    def __str__(self) -> str:
        return f"{LETTERS.get(self.name, self.name)}({', '.join(map(str, self.stages))})"


@dataclass(frozen=True)
class Pattern:
    """Steps in order; those of one cell are fused. `+` joins patterns, `*` repeats one, `&` fuses single steps."""

    cells: tuple[tuple[Step, ...], ...]

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
    """A kind of task as a word of the language: called with stages it is a pattern of one step.

    Attributes:
        name: the kind of its tasks.
        kind: its rules, where it is not built in.
    """

    name: str
    kind: Kind | None = None

    @classmethod
    def parse(cls, text: str) -> Operation:
        """A user's own: `Operation.parse("evict: forward; track copy; memory -1; time 0.5")` (see `Kind.parse`).

        Raises:
            ScheduleError: the text is not of that form.
        """
        kind = Kind.parse(text)
        return cls(kind.name, kind)

    def __call__(self, *stages: int, group: int = 1) -> Pattern:
        """The next task of this kind.

        Args:
            stages: whose; of several each takes `group` microbatches in turn, and then the next ones. Without any it
                is the weight gradient that has been owed for longest.
            group: microbatches that a stage takes before it is the next stage's turn.

        Raises:
            ScheduleError: a number is not a whole number, or there is no stage.
        """
        if not stages and self.name != "weight_grad":
            raise ScheduleError(f"{self.name}: expected the stage, or several to take in turn, found none")
        numbers = tuple(whole_number(stage, f"the stage of {self.name}", least=0) for stage in stages)
        return Pattern(((Step(self.name, numbers, whole_number(group, "group", least=1), self.kind),),))


F: Final = Operation("forward")
B: Final = Operation("backward")
I: Final = Operation("input_grad")  # noqa: E741  # the letter of the grid
W: Final = Operation("weight_grad")


@dataclass
class MeshOrder:
    """What one mesh does, as it is written down.

    Attributes:
        microbatches: those that the mesh runs.
        slices: of the sequence of each.
        cells: what is written so far.
        kinds: the user's own kinds met so far.
    """

    microbatches: range
    slices: int = 1
    cells: list[tuple[Task, ...]] = field(default_factory=list[tuple[Task, ...]])
    kinds: dict[str, Kind] = field(default_factory=dict[str, Kind])
    _shares: dict[int, range] = field(default_factory=dict[int, range])
    _streams: dict[tuple[str, tuple[int, ...], int], Iterator[Task]] = field(
        default_factory=dict[tuple[str, tuple[int, ...], int], Iterator[Task]]
    )
    _done: set[Task] = field(default_factory=set[Task])
    _owed: list[Task] = field(default_factory=list[Task])

    def run(self, *patterns: Pattern) -> None:
        """Each step once, in order; those of which nothing is left are left out."""
        for pattern in patterns:
            for cell in _pattern(pattern).cells:
                tasks = tuple(task for step in cell if (task := self._next(step)))
                if tasks:
                    self.cells.append(tasks)

    warm_up = run
    cool_down = run

    def repeat(self, *patterns: Pattern, times: int | None = None) -> None:
        """The patterns again and again: so many times, or until nothing of them is left.

        Raises:
            ScheduleError: `times` is not a whole number of at least 0.
        """
        left = None if times is None else whole_number(times, "times", least=0)
        while left is None or left > 0:
            before = len(self.cells)
            self.run(*patterns)
            left = None if left is None else left - 1
            if len(self.cells) == before:
                return

    def share(self, stage: int, microbatches: range) -> None:
        """Of this stage, which other meshes hold as well, run only these microbatches here: before its first step."""
        self._shares[stage] = microbatches

    def _next(self, step: Step) -> Task | None:
        if step.kind:
            self.kinds[step.name] = step.kind
        if step.name == "weight_grad":
            task = next((task for task in self._owed if not step.stages or task.stage in step.stages), None)
            if task:
                self._owed.remove(task)
            return task
        name = _COUNTED_AS.get(step.name, step.name)
        key = (name, step.stages, step.group)
        stream = self._streams.setdefault(key, self._in_turn(name, step.stages, step.group))
        task = next((task for task in stream if task not in self._done), None)
        if task is None:
            return None
        self._done.add(task)
        if step.name != "input_grad":
            return task
        self._owed.append(Task("weight_grad", task.stage, task.microbatch, task.slice))
        return Task("input_grad", task.stage, task.microbatch, task.slice)

    def _in_turn(self, kind: str, stages: tuple[int, ...], group: int) -> Iterator[Task]:
        shares = [self._shares.get(stage, self.microbatches) for stage in stages]
        # Later slices attend to earlier ones: backwards go the other way.
        parts = range(self.slices)[:: -1 if kind in _BACKWARD else 1]
        for first in range(0, max(map(len, shares)), group):
            for stage, share in zip(stages, shares, strict=True):
                for microbatch in share[first : first + group]:
                    for part in parts:
                        yield Task(kind, stage, microbatch, part)


class Plan:
    """A schedule in the making: `for i, mesh in enumerate(plan)` gives the meshes to write to.

    Args:
        name: of the schedule, printable ASCII.
        placement: which mesh holds which stage.
        microbatches: at least 1.
        slices: into how many the sequence of a microbatch is cut.

    Raises:
        ScheduleError: a count is below 1.
    """

    def __init__(self, name: str, placement: Placement, microbatches: int, slices: int = 1) -> None:
        self.name, self.placement = name, placement
        self.microbatches = whole_number(microbatches, "microbatches", least=1)
        slices = whole_number(slices, "slices", least=1)
        self.rows = tuple(MeshOrder(range(self.microbatches), slices) for _ in range(placement.meshes))

    def __iter__(self) -> Iterator[MeshOrder]:
        """The meshes, in order."""
        return iter(self.rows)

    def __getitem__(self, mesh: int) -> MeshOrder:
        """One mesh.

        Raises:
            ScheduleError: there is no such mesh.
        """
        if whole_number(mesh, "a mesh", least=0) >= len(self.rows):
            raise ScheduleError(f"{self.name} has no mesh {mesh}: there are {len(self.rows)}")
        return self.rows[mesh]

    def schedule(self, skipped: Iterable[Task] = ()) -> Schedule:
        """What is written, checked.

        Args:
            skipped: tasks that are left out on purpose.

        Raises:
            ScheduleError: it is no valid schedule, or a step was never written: `1f1b: B(stage 0, mb 3) is missing`.
        """
        kinds = {name: kind for row in self.rows for name, kind in row.kinds.items()}
        schedule = Schedule.of(self.name, self.placement, (row.cells for row in self.rows), kinds.values(), skipped)
        check(schedule)
        if schedule.microbatches != self.microbatches:
            found = f"found {schedule.microbatches}"
            raise ScheduleError(f"{self.name}: expected tasks for {self.microbatches} microbatches, {found}")
        return schedule
