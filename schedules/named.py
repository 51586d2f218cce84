"""The library as classes, with JaxPP's names and constructors.

    Interleaved1F1B(num_stages=8, mpmd_dim=4).build(microbatches=16) == make("interleaved-1f1b", meshes=4, ...)

Those with one stage per mesh take `num_stages`, the others also `mpmd_dim`, the number of meshes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxpp.schedules.classes import BaseSchedule, ScheduleTasks, at_least_one
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.library import make
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement


@dataclass(frozen=True)
class LibrarySchedule(BaseSchedule):
    """A schedule of the library, with one stage per mesh.

    Attributes:
        published: its name in the library.
    """

    published: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "published" in cls.__dict__:
            cls.name = cls.published

    def tasks(self, n_mubatches: int) -> ScheduleTasks:
        """The cells of the library's schedule, in lists; a cell of several tasks is a tuple."""
        return [[cell[0] if len(cell) == 1 else cell for cell in row] for row in self._make(n_mubatches).cells]

    def get_mpmd_idx(self, stage_id: int) -> int:
        """The mesh where the weights of a stage are at home."""
        return self.placement()[stage_id]

    def build(self, microbatches: int) -> Schedule:
        """The library's schedule for so many microbatches.

        Raises:
            ScheduleError: it does not exist for this number of stages, meshes and microbatches.
        """
        # A user's subclass has orders of its own.
        return self._make(microbatches) if type(self).tasks is LibrarySchedule.tasks else super().build(microbatches)

    def _make(self, microbatches: int) -> Schedule:
        return make(self.published, meshes=self.meshes(), microbatches=microbatches, **self.options())

    def meshes(self) -> int:
        """Number of meshes."""
        return self.num_stages

    def options(self) -> dict[str, object]:
        """What the library's function takes beside meshes and microbatches."""
        return {}

    def placement(self) -> Placement:
        """Where the stages are at home."""
        return Placement.linear(self.num_stages)


@dataclass(frozen=True)
class InterleavedBaseSchedule(LibrarySchedule):
    """A schedule with several stages per mesh.

    Attributes:
        mpmd_dim: number of meshes, a divisor of the number of stages.
    """

    mpmd_dim: int

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self.mpmd_dim, "mpmd_dim")
        if self.num_stages % self.mpmd_dim:
            raise ScheduleError(
                f"{type(self).__name__}: num_stages={self.num_stages} can not be evenly divided by "
                f"mpmd_dim={self.mpmd_dim}"
            )

    def meshes(self) -> int:
        return self.mpmd_dim

    def chunks(self) -> int:
        """Stages per mesh."""
        return self.num_stages // self.mpmd_dim

    def options(self) -> dict[str, object]:
        return {"chunks": self.chunks()}

    def placement(self) -> Placement:
        return Placement.looped(self.mpmd_dim, self.chunks())


@dataclass(frozen=True)
class _VShaped(InterleavedBaseSchedule):
    """Two stages per mesh, down the meshes and up again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunks() != 2:
            raise ScheduleError(
                f"{type(self).__name__} only supports 2 * mpmd_dim stages, self.num_stages={self.num_stages} requested "
                f"with self.mpmd_dim={self.mpmd_dim}"
            )

    def options(self) -> dict[str, object]:
        return {}

    def placement(self) -> Placement:
        return Placement.waves(self.mpmd_dim, self.chunks())


class GPipe(LibrarySchedule):
    """All forwards, then all backwards (see `gpipe`)."""

    published = "gpipe"


class Std1F1B(LibrarySchedule):
    """One forward, one backward (see `one_f_one_b`)."""

    published = "1f1b"


class Eager1F1B(LibrarySchedule):
    """1F1B with twice as many forwards ahead (see `eager_one_f_one_b`)."""

    published = "eager-1f1b"


class ZeroBubble(LibrarySchedule):
    """ZB-H1: the backward split in two, in the memory of 1F1B (see `zb_h1`)."""

    published = "zb-h1"


class ZeroBubbleH2(LibrarySchedule):
    """ZB-H2: nearly no bubble, in twice the memory of 1F1B (see `zb_h2`)."""

    published = "zb-h2"


class Chimera(LibrarySchedule):
    """Two directions, each stage on two meshes (see `chimera`)."""

    published = "chimera"


@dataclass(frozen=True)
class DualPipe(LibrarySchedule):
    """Two directions, a forward of one with a backward of the other (see `dualpipe`).

    Attributes:
        fused: run the two as one task.
    """

    fused: bool = True
    published = "dualpipe"

    def options(self) -> dict[str, object]:
        return {"fused": self.fused}


@dataclass(frozen=True)
class Seq1F1B(LibrarySchedule):
    """1F1B over slices of the sequence (see `seq1f1b`).

    Attributes:
        slices: slices per microbatch.
    """

    slices: int = 2
    published = "seq1f1b"

    def options(self) -> dict[str, object]:
        return {"slices": self.slices}


@dataclass(frozen=True)
class Interleaved1F1B(InterleavedBaseSchedule):
    """1F1B with several stages per mesh (see `interleaved_1f1b`).

    Attributes:
        fuse_steady_state: run the forward and the backward that are each other's turn as one task.
    """

    fuse_steady_state: bool = False

    published = "interleaved-1f1b"

    def options(self) -> dict[str, object]:
        return {"chunks": self.chunks(), "fused": self.fuse_steady_state}


@dataclass(frozen=True)
class KimiK2(InterleavedBaseSchedule):
    """Interleaved 1F1B with one more forward ahead (see `kimi_k2`).

    Attributes:
        fuse_steady_state: as of `Interleaved1F1B`.
    """

    fuse_steady_state: bool = False

    published = "kimi-k2"

    def options(self) -> dict[str, object]:
        return {"chunks": self.chunks(), "fused": self.fuse_steady_state}


class LoopedBFS(InterleavedBaseSchedule):
    """GPipe with several stages per mesh, breadth-first (see `looped_bfs`)."""

    published = "looped-bfs"


InterleavedGPipe = LoopedBFS
"""JaxPP's name."""


class InterleavedZeroBubble(InterleavedBaseSchedule):
    """Interleaved 1F1B with the backward split in two (see `interleaved_zb`)."""

    published = "interleaved-zb"


@dataclass(frozen=True)
class GIS(InterleavedBaseSchedule):
    """Interleaved in smaller groups, for less memory (see `gis`).

    Attributes:
        group: microbatches per group; by default half as many as there are meshes.
    """

    group: int | None = None
    published = "gis"

    def options(self) -> dict[str, object]:
        return {"chunks": self.chunks(), "group": self.group}


class Hanayo(InterleavedBaseSchedule):
    """Waves down and up the meshes (see `hanayo`)."""

    published = "hanayo"

    def placement(self) -> Placement:
        return Placement.waves(self.mpmd_dim, self.chunks())


class ZeroBubbleV(_VShaped):
    """ZB-V: no bubble in the memory of 1F1B (see `zb_v`)."""

    published = "zb-v"


class VHalf(_VShaped):
    """Half of 1F1B's memory (see `v_half`)."""

    published = "v-half"


class VMin(_VShaped):
    """A third of 1F1B's memory (see `v_min`)."""

    published = "v-min"


@dataclass(frozen=True)
class DualPipeV(_VShaped):
    """DualPipe in one V (see `dualpipe_v`).

    Attributes:
        fused: run a forward and a backward as one task.
    """

    fused: bool = False
    published = "dualpipe-v"

    def options(self) -> dict[str, object]:
        return {"fused": self.fused}

    def _make(self, microbatches: int) -> Schedule:
        if microbatches < self.num_stages:
            name = type(self).__name__
            raise ScheduleError(f"{name} requires n_mubatches={microbatches} >= self.num_stages={self.num_stages}")
        return super()._make(microbatches)


class BitPipe(_VShaped):
    """Two V-shaped directions, each stage on two meshes (see `bitpipe`)."""

    published = "bitpipe"
