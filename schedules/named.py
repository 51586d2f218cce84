"""The library's schedules as classes, with JaxPP's names and constructors.

    Interleaved1F1B(num_stages=8, mpmd_dim=4).build(microbatches=16) == make("interleaved-1f1b", meshes=4, ...)

Classes with one stage per mesh take `num_stages`, the others also `mpmd_dim`, the number of meshes. Each other option
of the library's schedule is a field of its class, with the same default.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Final

from jaxpp.schedules.classes import BaseSchedule, ScheduleTasks, at_least_one
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.library import make, options_of
from jaxpp.schedules.library.exchange import exchange_stages
from jaxpp.schedules.library.vocabulary import vocabulary_stages
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement

_LIBRARY_NAMES: Final = {"fuse_steady_state": "fused"}
"""The library's names of options that have another name in JaxPP."""


@dataclass(frozen=True)
class LibrarySchedule(BaseSchedule):
    """A schedule of the library, with one stage per mesh.

    Attributes:
        published: its name in the library.
    """

    published: ClassVar[str] = ""

    def __init_subclass__(cls, published: str = "", **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if published or "published" in cls.__dict__:
            cls.name = cls.published = published or cls.published

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
        return make(self.published, meshes=self.meshes(), microbatches=microbatches, **self.options())

    def meshes(self) -> int:
        """Returns the number of meshes."""
        return self.num_stages

    def options(self) -> dict[str, object]:
        """Returns the options of the library's function, besides meshes and microbatches, from the fields."""
        values = {_LIBRARY_NAMES.get(each.name, each.name): getattr(self, each.name) for each in fields(self)}
        return {name: values[name] for name in options_of(self.published) if name in values}


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
        """Returns the number of stages per mesh."""
        return self.num_stages // self.mpmd_dim

    def options(self) -> dict[str, object]:
        chunks = {"chunks": self.chunks()} if "chunks" in options_of(self.published) else {}
        return {**chunks, **super().options()}

    def placement(self) -> Placement:
        return Placement.looped(self.mpmd_dim, self.chunks())


class _Waves(InterleavedBaseSchedule):
    """A schedule whose stages go down the meshes and up again."""

    def placement(self) -> Placement:
        return Placement.waves(self.mpmd_dim, self.chunks())


class _VShaped(_Waves):
    """A schedule with two stages per mesh, down the meshes and up again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunks() != 2:
            raise ScheduleError(
                f"{type(self).__name__} only supports 2 * mpmd_dim stages, self.num_stages={self.num_stages} requested "
                f"with self.mpmd_dim={self.mpmd_dim}"
            )


class GPipe(LibrarySchedule, published="gpipe"):
    """All forwards, then all backwards (see `gpipe`)."""


class Std1F1B(LibrarySchedule, published="1f1b"):
    """One forward, one backward (see `one_f_one_b`)."""


@dataclass(frozen=True)
class PipeDream2BW(LibrarySchedule, published="pipedream-2bw"):
    """1F1B over several optimizer steps, without a bubble between them (see `pipedream_2bw`).

    Attributes:
        steps: the number of optimizer steps.
        delay: the number of updates that the weights of a step lack.
    """

    steps: int = 1
    delay: int = 1


class Eager1F1B(LibrarySchedule, published="eager-1f1b"):
    """1F1B with twice as many forwards ahead (see `eager_one_f_one_b`)."""


@dataclass(frozen=True)
class ZeroBubble(LibrarySchedule, published="zb-h1"):
    """ZB-H1: the backward split in two, in the memory of 1F1B without `jax.checkpoint` (see `zb_h1`).

    Attributes:
        waiting: the most weight gradients that a mesh delays; None: as many as there are meshes before it.
    """

    waiting: int | None = None


class ZeroBubbleH2(LibrarySchedule, published="zb-h2"):
    """ZB-H2: nearly no bubble, in twice the memory of 1F1B (see `zb_h2`)."""


class BPipe(LibrarySchedule, published="bpipe"):
    """1F1B with activations spread evenly over the meshes (see `bpipe`)."""


@dataclass(frozen=True)
class Chimera(LibrarySchedule, published="chimera"):
    """Two directions, each stage on two meshes (see `chimera`).

    Attributes:
        doubling: forwards first, of twice as many microbatches, for backwards of twice the length.
    """

    doubling: bool = False


@dataclass(frozen=True)
class DualPipe(LibrarySchedule, published="dualpipe"):
    """Two directions, a forward of one with a backward of the other (see `dualpipe`).

    Attributes:
        fused: run the two as one task.
    """

    fused: bool = True


@dataclass(frozen=True)
class Seq1F1B(LibrarySchedule, published="seq1f1b"):
    """1F1B over slices of the sequence (see `seq1f1b`).

    Attributes:
        slices: slices per microbatch.
    """

    slices: int = 2


@dataclass(frozen=True)
class Seq1F1BZeroBubble(Seq1F1B, published="seq1f1b-zb"):
    """ZB-H1 over slices of the sequence (see `seq1f1b_zb`)."""


@dataclass(frozen=True)
class Seq1F1BInterleaved(InterleavedBaseSchedule, published="seq1f1b-i"):
    """Interleaved 1F1B over slices of the sequence (see `seq1f1b_i`).

    Attributes:
        slices: slices per microbatch.
    """

    slices: int = 2


@dataclass(frozen=True)
class SlimPipe(LibrarySchedule, published="slimpipe"):
    """1F1B over slices that share out their attention, three stages for each layer and one more (see `slimpipe`).

    Attributes:
        slices: slices per microbatch.
        layers: layers of each mesh.
    """

    slices: int = 2
    layers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number(self.layers, "layers", least=1)
        if self.num_stages % (3 * self.layers + 1):
            expected = f"{3 * self.layers + 1} for each mesh: three for each layer, and one more"
            raise ScheduleError(f"SlimPipe: num_stages={self.num_stages} must be {expected}")

    def meshes(self) -> int:
        return self.num_stages // (3 * self.layers + 1)

    def placement(self) -> Placement:
        return exchange_stages(self.meshes(), self.layers)


@dataclass(frozen=True)
class Interleaved1F1B(InterleavedBaseSchedule, published="interleaved-1f1b"):
    """1F1B with several stages per mesh (see `interleaved_1f1b`).

    Attributes:
        fuse_steady_state: whether to run the forward and the backward of each steady-state turn as one task.
    """

    fuse_steady_state: bool = False


@dataclass(frozen=True)
class KimiK2(InterleavedBaseSchedule, published="kimi-k2"):
    """Interleaved 1F1B with one more forward ahead (see `kimi_k2`).

    Attributes:
        fuse_steady_state: see `Interleaved1F1B`.
    """

    fuse_steady_state: bool = False


class LoopedBFS(InterleavedBaseSchedule, published="looped-bfs"):
    """GPipe with several stages per mesh, breadth-first (see `looped_bfs`)."""


InterleavedGPipe = LoopedBFS
"""JaxPP's name."""


class InterleavedZeroBubble(InterleavedBaseSchedule, published="interleaved-zb"):
    """Interleaved 1F1B with the backward split in two (see `interleaved_zb`)."""


@dataclass(frozen=True)
class GIS(InterleavedBaseSchedule, published="gis"):
    """Interleaved 1F1B in smaller groups, for less memory (see `gis`).

    Attributes:
        group: the number of microbatches per group; by default half the number of meshes, rounded up.
    """

    group: int | None = None


@dataclass(frozen=True)
class POH(InterleavedBaseSchedule, published="po-h"):
    """PO-H: GIS with the activations that wait longest in the host (see `po_h`).

    Attributes:
        group: see `GIS`.
    """

    group: int | None = None


@dataclass(frozen=True)
class POF(InterleavedBaseSchedule, published="po-f"):
    """PO-F: GIS with all activations in the host (see `po_f`).

    Attributes:
        group: see `GIS`.
    """

    group: int | None = None


class Hanayo(_Waves, published="hanayo"):
    """Waves down and up the meshes (see `hanayo`)."""


class ZeroBubbleV(_VShaped, published="zb-v"):
    """ZB-V: no bubble in the memory of 1F1B without `jax.checkpoint` (see `zb_v`)."""


class STP(_VShaped, published="stp"):
    """A V-shaped schedule that runs a forward and a backward of each stage as one task (see `stp`)."""


class VHalf(_VShaped, published="v-half"):
    """A V-shaped schedule with half of 1F1B's memory (see `v_half`)."""


class VMin(_VShaped, published="v-min"):
    """A V-shaped schedule with a third of 1F1B's memory (see `v_min`)."""


@dataclass(frozen=True)
class DualPipeV(_VShaped, published="dualpipe-v"):
    """DualPipe in one V (see `dualpipe_v`).

    Attributes:
        fused: run a forward and a backward as one task.
    """

    fused: bool = False

    def _make(self, microbatches: int) -> Schedule:
        if microbatches < self.num_stages:
            name = type(self).__name__
            raise ScheduleError(f"{name} requires n_mubatches={microbatches} >= self.num_stages={self.num_stages}")
        return super()._make(microbatches)


class BitPipe(_VShaped, published="bitpipe"):
    """Two V-shaped directions, each stage on two meshes (see `bitpipe`)."""


@dataclass(frozen=True)
class _Vocabulary(LibrarySchedule):
    """A schedule with a spread vocabulary: each mesh has a shard, and one stage joins the shards.

    Attributes:
        embedding: whether the input's embedding is also spread, with one more stage per mesh.
    """

    embedding: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.num_stages - 1) % self._times or self.num_stages == 1:
            expected = f"{self._times} for each mesh, and 1 that joins the shards"
            raise ScheduleError(f"{type(self).__name__}: num_stages={self.num_stages} must be {expected}")

    @property
    def _times(self) -> int:
        return self._layers(1).stages + 1 + self.embedding

    def _layers(self, meshes: int) -> Placement:
        return Placement.linear(meshes)

    def meshes(self) -> int:
        return self.num_stages // self._times

    def placement(self) -> Placement:
        return vocabulary_stages(self._layers(self.meshes()), self.embedding)


@dataclass(frozen=True)
class Vocab1F1B(_Vocabulary, published="vocab-1f1b"):
    """1F1B with the vocabulary spread over all meshes, 2p + 1 stages or 3p + 1 (see `vocab_1f1b`).

    Attributes:
        ahead: how many more microbatches a mesh keeps than in 1F1B.
        slices: slices per microbatch.
    """

    ahead: int = 2
    slices: int = 1


@dataclass(frozen=True)
class VocabVHalf(_Vocabulary, published="vocab-v-half"):
    """Half of 1F1B's memory, with the vocabulary spread, 3p + 1 stages or 4p + 1 (see `vocab_v_half`).

    Attributes:
        slices: slices per microbatch.
    """

    slices: int = 1

    def _layers(self, meshes: int) -> Placement:
        return Placement.waves(meshes, 2)
