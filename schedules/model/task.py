"""The parts of a schedule: tasks, and the placement of stages on meshes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final, TypeAlias

from jaxpp.schedules.errors import ScheduleError, check_size, whole_number
from jaxpp.schedules.model.kinds import KIND_NAME, LETTERS


class TaskType(StrEnum):
    """The kinds of tasks by JaxPP's names, as in `Task.make(stage_id, mubatch_idx, TaskType.FWD)`."""

    FWD = "forward"
    BWD = "backward"
    BWD_I = "input_grad"
    BWD_W = "weight_grad"


Unit: TypeAlias = tuple[int, int, int]
"""The (stage, microbatch, slice) that a task works on."""

_TYPES: Final = {str(each): each for each in TaskType}


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work: a kind, on one stage, for one microbatch; stages and microbatches are counted from 0.

    `kind` is "forward", "backward" (input and weight gradient in one), "input_grad", "weight_grad", or the name of
    another kind. The printed form is a cell of PyTorch's pipelining tables, `<stage><kind><microbatch>`: `2B5`. If the
    sequence of a microbatch is cut, `slice` is the index of the slice: `2B5.1`.

    Raises:
        ScheduleError: when the kind is no lower-case name, or a number is not a whole number of at least 0.
    """

    kind: str
    stage: int
    microbatch: int
    slice: int = 0

    def __post_init__(self) -> None:
        known = type(self.kind) is str and self.kind in LETTERS
        numbers = type(self.stage) is type(self.microbatch) is type(self.slice) is int
        if known and numbers and self.stage >= 0 <= self.microbatch and self.slice >= 0:
            return
        object.__setattr__(self, "kind", _kind_name(self.kind))
        object.__setattr__(self, "stage", whole_number(self.stage, "the stage of a task", least=0))
        object.__setattr__(self, "microbatch", whole_number(self.microbatch, "the microbatch of a task", least=0))
        object.__setattr__(self, "slice", whole_number(self.slice, "the slice of a task", least=0))

    def __str__(self) -> str:
        """Returns the cell, such as `0F3` or `0offload3`; a slice other than the first is appended: `0F3.1`."""
        cell = f"{self.stage}{LETTERS.get(self.kind, self.kind)}{self.microbatch}"
        return f"{cell}.{self.slice}" if self.slice else cell

    @property
    def unit(self) -> Unit:
        """The (stage, microbatch, slice) that it works on."""
        return self.stage, self.microbatch, self.slice

    @property
    def words(self) -> str:
        """The task in messages, such as `B(stage 3, mb 1)`."""
        part = f", slice {self.slice}" if self.slice else ""
        return f"{LETTERS.get(self.kind, self.kind)}(stage {self.stage}, mb {self.microbatch}{part})"

    @classmethod
    def make(cls, stage_id: int, mubatch_idx: int, fwd_or_bwd: str, latency: float | None = None) -> Task:
        """Returns a task, with JaxPP's names and order of arguments: `Task.make(0, 3, TaskType.FWD)`.

        `latency` is ignored: `Costs` give the times.
        """
        return cls(fwd_or_bwd, stage_id, mubatch_idx)

    @property
    def stage_id(self) -> int:
        """JaxPP's name of `stage`."""
        return self.stage

    @property
    def mubatch_idx(self) -> int:
        """JaxPP's name of `microbatch`."""
        return self.microbatch

    @property
    def fwd_or_bwd(self) -> str:
        """JaxPP's name of `kind`: a `TaskType`, or the name of another kind."""
        return _TYPES.get(self.kind, self.kind)


def _kind_name(kind: object) -> str:
    if isinstance(kind, str) and KIND_NAME.fullmatch(str(kind)):
        return str(kind)
    raise ScheduleError(
        f"the kind of a task must be a name in lower case, such as 'forward', found {kind!r}; "
        "write Task(kind, stage, microbatch) or Task.make(stage_id, mubatch_idx, fwd_or_bwd)"
    )


Cell: TypeAlias = tuple[Task, ...]
"""The tasks that run as one, usually a single task."""


@dataclass(frozen=True)
class Placement:
    """The meshes of each stage, and the stages that each stage reads.

    Most schedules keep each stage on one mesh. Schedules in two directions (Chimera, DualPipe) keep it on several
    meshes: each holds a copy of the weights, and each task runs on one of them.

    By default stages are a chain: each stage reads the result of the previous stage. With `after` they are a graph,
    such as two encoders and a stage that joins them (FlexPipe, arXiv 2510.05112; Tessel, arXiv 2311.15269).

    Attributes:
        homes: for each stage the meshes that hold it. The first is the home of its weights.
        after: for each stage the earlier stages whose results it reads; () if the stages are a chain.

    Raises:
        ScheduleError: when there is no stage, a stage has no mesh or the same mesh twice, or a mesh below the highest
            has no stage. Also when a stage reads itself or a later stage, or a stage that is not the last has no
            reader.
    """

    homes: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.homes:
            raise ScheduleError("a placement must have at least one stage, found none")
        for stage, homes in enumerate(self.homes):
            for mesh in homes:
                whole_number(mesh, f"the mesh of stage {stage}", least=0)
            if not homes or len(set(homes)) != len(homes):
                raise ScheduleError(
                    f"stage {stage} must be placed on one mesh or on several distinct ones, found {homes}"
                )
        used = {mesh for homes in self.homes for mesh in homes}
        for mesh in range(len(used)):
            if mesh not in used:
                raise ScheduleError(f"mesh {mesh} holds no stage, but mesh {max(used)} does: number the meshes from 0")
        if self.after:
            # Equal placements must have equal attributes: a chain has no `after`.
            after = _checked_after(self.after, len(self.homes))
            chain = tuple((stage - 1,) if stage else () for stage in range(len(self.homes)))
            object.__setattr__(self, "after", () if after == chain else after)

    @property
    def heights(self) -> list[int]:
        """The number of stages on the longest path from each stage to the last stage, including both."""
        found = [1] * self.stages
        for stage in reversed(range(self.stages)):
            found[stage] += max((found[reader] for reader in self.near(stage, 1)), default=0)
        return found

    @classmethod
    def of(cls, *meshes: int | Sequence[int], after: Iterable[Iterable[int]] = ()) -> Placement:
        """Returns a placement from one argument per stage: its mesh, or its meshes. `of(0, 1, 1, 0)` is V-shaped.

        `of(0, 1, 2, after=[[], [], [0, 1]])` has two encoders, each on a mesh, and a third stage that reads both.
        """
        homes = tuple(tuple(mesh) if isinstance(mesh, Sequence) else (mesh,) for mesh in meshes)
        return cls(homes, after=tuple(map(tuple, after)))

    @classmethod
    def linear(cls, meshes: int) -> Placement:
        """Returns the placement with one stage per mesh: stage s on mesh s."""
        return cls.looped(meshes, 1)

    @classmethod
    def looped(cls, meshes: int, chunks: int) -> Placement:
        """Returns the placement of stage s on mesh s % meshes, for `chunks` stages per mesh.

        It is from arXiv 2104.04473, section 2.2.
        """
        meshes, chunks = whole_number(meshes, "meshes", least=1), whole_number(chunks, "chunks", least=1)
        check_size("a placement", meshes=meshes, chunks=chunks)
        return cls.of(*list(range(meshes)) * chunks)

    @classmethod
    def waves(cls, meshes: int, chunks: int) -> Placement:
        """Returns a placement that goes `chunks` times through the meshes, alternately down and up.

        2 is V-shaped (arXiv 2405.15362), 4 a W.
        """
        meshes, chunks = whole_number(meshes, "meshes", least=1), whole_number(chunks, "chunks", least=1)
        check_size("a placement", meshes=meshes, chunks=chunks)
        down = list(range(meshes))
        return cls.of(*(mesh for chunk in range(chunks) for mesh in down[:: 1 - chunk % 2 * 2]))

    def __getitem__(self, stage: int) -> int:
        """Returns the home mesh of a stage's weights."""
        return self.homes[stage][0]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.homes)

    @cached_property
    def meshes(self) -> int:
        """The number of meshes."""
        return 1 + max(mesh for homes in self.homes for mesh in homes)

    @property
    def has_copies(self) -> bool:
        """Whether a stage is on several meshes, each of which has a copy of its weights."""
        return max(map(len, self.homes)) > 1

    def stages_of(self, mesh: int) -> tuple[int, ...]:
        """Returns the stages that `mesh` holds, in ascending order."""
        return self._stages_of[mesh]

    @cached_property
    def _stages_of(self) -> tuple[tuple[int, ...], ...]:
        held: list[list[int]] = [[] for _ in range(self.meshes)]
        for stage, homes in enumerate(self.homes):
            for mesh in homes:
                held[mesh].append(stage)
        return tuple(map(tuple, held))

    def near(self, stage: int, steps: int) -> tuple[int, ...]:
        """Returns the stages `steps` steps after a stage, or before it if negative.

        One step leads to the stages that read the stage's result.
        """
        if not self.after:
            return (stage + steps,) if 0 <= stage + steps < self.stages else ()
        found = {stage}
        for _ in range(min(abs(steps), self.stages)):
            found = {other for each in found for other in (self._before if steps > 0 else self.after)[each]}
        return tuple(sorted(found))

    @cached_property
    def _before(self) -> tuple[tuple[int, ...], ...]:
        """For each stage the stages that read its result."""
        readers: list[list[int]] = [[] for _ in self.homes]
        for stage, read in enumerate(self.after):
            for other in read:
                readers[other].append(stage)
        return tuple(map(tuple, readers))

    def __str__(self) -> str:
        """Returns the mesh of each stage, `0 1 2 3`; several are joined: `0+3 1+2`."""
        return " ".join("+".join(map(str, homes)) for homes in self.homes)


def _checked_after(after: Sequence[Sequence[int]], stages: int) -> tuple[tuple[int, ...], ...]:
    """Returns for each stage the stages that it reads, in ascending order.

    Raises:
        ScheduleError: when their number is wrong, a stage reads itself or a later stage, or no stage reads a stage that
            is not the last.
    """
    if len(after) != stages:
        raise ScheduleError(f"after must say of each of {stages} stages which it reads, found {len(after)}")
    for stage, read in enumerate(after):
        for other in read:
            if whole_number(other, f"a stage that stage {stage} reads", least=0) >= stage:
                raise ScheduleError(
                    f"stage {stage} can't come after stage {other}: it may read earlier stages only; number the stages "
                    "in the order in which data passes through them"
                )
    read = {other for each in after for other in each}
    for stage in range(stages - 1):
        if stage not in read:
            reason = "a stage must come after it, as it is not the last"
            raise ScheduleError(f"nobody reads what stage {stage} makes: {reason}")
    return tuple(tuple(sorted(set(each))) for each in after)
