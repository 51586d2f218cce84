"""The base class of a user's schedule, and the nine schedules of the library that NVIDIA's JaxPP has as classes.

    class InOrder(BaseSchedule):  # stage i on mesh i, one microbatch after the other
        def tasks(self, n_mubatches):
            kinds = ("forward", "backward")
            return [[Task(k, s, mb) for mb in range(n_mubatches) for k in kinds] for s in range(self.num_stages)]

`InOrder(num_stages=4).build(microbatches=8)` is then a checked `Schedule`. The nine classes have JaxPP's names and
constructors, and build what `make` gives by name:

    Interleaved1F1B(num_stages=8, mpmd_dim=4).build(microbatches=16) == make("interleaved-1f1b", meshes=4, ...)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, cast

from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.library import make
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task

ScheduleTasks: TypeAlias = Sequence[Sequence[Task | Sequence[Task] | None]]
"""For each mesh its cells: a task, several fused tasks, or None for a bubble."""


@dataclass(frozen=True)
class BaseSchedule(ABC):
    """A schedule for any number of microbatches. A subclass defines `tasks`, and other methods if needed.

    Attributes:
        num_stages: the number of stages, at least 1.
        name: the name of the built schedules; by default the name of the class.
    """

    num_stages: int
    name: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def __post_init__(self) -> None:
        _at_least_one(self.num_stages, "num_stages")

    @abstractmethod
    def tasks(self, n_mubatches: int) -> ScheduleTasks | Schedule:
        """Returns for each mesh its tasks in order; None is a bubble and ignored, a list or tuple is fused.

        It may also return a `Schedule` of `n_mubatches` microbatches, with the stages on the meshes of `get_mpmd_idx`.
        """

    def get_mpmd_idx(self, stage_id: int) -> int:
        """Returns the mesh that holds a stage, or its home if several do; by default from `placement`."""
        return self.placement()[stage_id]

    def placement(self) -> Placement:
        """Returns the meshes of the stages, and the stages that each reads; by default `Placement.linear`."""
        return Placement.linear(self.num_stages)

    def build(self, microbatches: int) -> Schedule:
        """Returns the schedule for a number of microbatches, checked.

        Raises:
            ScheduleError: when `tasks` does not return a valid schedule of `microbatches` microbatches.
        """
        microbatches = whole_number(microbatches, "microbatches", least=1)
        placement = cast("object", self.placement())
        if not isinstance(placement, Placement) or placement.stages != self.num_stages:
            expected = f"a Placement of {self.num_stages} stages"
            raise ScheduleError(f"{self.name}: placement() must return {expected}, found {placement}")
        homes = [(self.get_mpmd_idx(stage),) for stage in range(self.num_stages)]
        says = "placement()" if type(self).placement is not BaseSchedule.placement else "get_mpmd_idx"
        if [home[:1] for home in placement.homes] != homes:
            placement, says = Placement.of(*homes, after=placement.after), "get_mpmd_idx"
        tasks: object = self.tasks(microbatches)
        schedule = tasks if isinstance(tasks, Schedule) else Schedule.of(self.name, placement, _rows(self.name, tasks))
        if schedule.placement.homes != placement.homes:
            found = f"those that tasks() returns are on {schedule.placement}"
            raise ScheduleError(f"{self.name}: {says} puts the stages on the meshes {placement}, {found}")
        if placement.after and schedule.placement.after != placement.after:
            found = f"those that tasks() returns read {schedule.placement.after or 'the one before'}"
            raise ScheduleError(f"{self.name}: placement() says that stages read {placement.after}, {found}")
        check(schedule)
        if schedule.microbatches != microbatches:
            found = f"found {schedule.microbatches}"
            raise ScheduleError(f"{self.name}: expected tasks for {microbatches} microbatches, {found}")
        return schedule


def _at_least_one(value: object, name: str) -> None:
    """Checks that a count is a whole number above 0. The message is JaxPP's, which its users' tests look for.

    Raises:
        ScheduleError: when it is not.
    """
    if isinstance(value, int) and value < 1:
        raise ScheduleError(f"The argument `{name}` must be `>= 0`, and not 0; found {value}")
    whole_number(value, name, least=1)


def _rows(name: str, tasks: object) -> list[list[tuple[Task, ...]]]:
    """Returns the cells in the value that a user's `tasks` returned, which may be of any type."""
    if not (isinstance(tasks, (list, tuple)) and all(isinstance(row, (list, tuple)) for row in tasks)):
        raise ScheduleError(f"{name}: tasks() must return one list of tasks per mesh, found {str(tasks)[:80]}")
    return [
        [_cell(cell, mesh, position) for position, cell in enumerate(row) if cell is not None]
        for mesh, row in enumerate(cast("list[list[object]]", tasks))
    ]


def _cell(cell: object, mesh: int, position: int) -> tuple[Task, ...]:
    tasks = tuple(cell) if isinstance(cell, (list, tuple)) else (cell,)
    found = tuple(task for task in tasks if isinstance(task, Task))
    if not found or len(found) < len(tasks):
        raise ScheduleError(
            f"tasks() of mesh {mesh}, element {position}: expected Task, list of Task, or None, found {cell!r}"
        )
    return found


@dataclass(frozen=True)
class LibrarySchedule(BaseSchedule):
    """A schedule of the library, with one stage per mesh.

    Attributes:
        published: its name in the library.
    """

    published: ClassVar[str] = ""

    def __init_subclass__(cls, published: str = "", **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if published:
            cls.name = cls.published = published

    def tasks(self, n_mubatches: int) -> ScheduleTasks:
        """Returns the cells of the library's schedule, in lists; a cell of several tasks is a tuple."""
        return [[cell[0] if len(cell) == 1 else cell for cell in row] for row in self._make(n_mubatches).cells]

    def build(self, microbatches: int) -> Schedule:
        """Returns the library's schedule for a number of microbatches.

        Raises:
            ScheduleError: when it does not exist for this number of stages, meshes and microbatches.
        """
        # A user's subclass has orders of its own.
        return self._make(microbatches) if type(self).tasks is LibrarySchedule.tasks else super().build(microbatches)

    def _make(self, microbatches: int) -> Schedule:
        return make(self.published, meshes=self.num_stages, microbatches=microbatches)


class GPipe(LibrarySchedule, published="gpipe"):
    """All forwards, then all backwards."""


class Std1F1B(LibrarySchedule, published="1f1b"):
    """One forward, one backward."""


class Eager1F1B(LibrarySchedule, published="eager-1f1b"):
    """1F1B with twice as many forwards ahead."""


class ZeroBubble(LibrarySchedule, published="zb-h1"):
    """ZB-H1: the backward split in two, in the memory of 1F1B without `jax.checkpoint`."""


@dataclass(frozen=True)
class InterleavedBaseSchedule(LibrarySchedule):
    """A schedule with several stages per mesh, in a loop.

    Attributes:
        mpmd_dim: number of meshes, a divisor of the number of stages.
    """

    mpmd_dim: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least_one(self.mpmd_dim, "mpmd_dim")
        if self.num_stages % self.mpmd_dim:
            raise ScheduleError(
                f"{type(self).__name__}: num_stages={self.num_stages} can not be evenly divided by "
                f"mpmd_dim={self.mpmd_dim}"
            )

    def placement(self) -> Placement:
        return Placement.looped(self.mpmd_dim, self.num_stages // self.mpmd_dim)

    def _make(self, microbatches: int, **options: object) -> Schedule:
        chunks = self.num_stages // self.mpmd_dim
        return make(self.published, meshes=self.mpmd_dim, microbatches=microbatches, chunks=chunks, **options)


class InterleavedGPipe(InterleavedBaseSchedule, published="looped-bfs"):
    """GPipe with several stages per mesh, breadth-first."""


class InterleavedZeroBubble(InterleavedBaseSchedule, published="interleaved-zb"):
    """Interleaved 1F1B with the backward split in two."""


@dataclass(frozen=True)
class Interleaved1F1B(InterleavedBaseSchedule, published="interleaved-1f1b"):
    """1F1B with several stages per mesh.

    Attributes:
        fuse_steady_state: whether to run the forward and the backward of each steady-state turn as one task.
    """

    fuse_steady_state: bool = False

    def _make(self, microbatches: int, **options: object) -> Schedule:
        return super()._make(microbatches, fused=self.fuse_steady_state, **options)


class KimiK2(Interleaved1F1B, published="kimi-k2"):
    """Interleaved 1F1B with one more forward ahead."""


class DualPipeV(InterleavedBaseSchedule, published="dualpipe-v"):
    """DualPipe in one V, with two stages per mesh: down the meshes and up again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_stages != 2 * self.mpmd_dim:
            raise ScheduleError(
                f"{type(self).__name__} only supports 2 * mpmd_dim stages, self.num_stages={self.num_stages} requested "
                f"with self.mpmd_dim={self.mpmd_dim}"
            )

    def placement(self) -> Placement:
        return Placement.waves(self.mpmd_dim, 2)

    def _make(self, microbatches: int, **options: object) -> Schedule:
        if microbatches < self.num_stages:
            name = type(self).__name__
            raise ScheduleError(f"{name} requires n_mubatches={microbatches} >= self.num_stages={self.num_stages}")
        return make(self.published, meshes=self.mpmd_dim, microbatches=microbatches)
