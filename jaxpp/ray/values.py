"""What stands behind a handle: buffers of actors, by number."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxpp.runtime.arrays import Placed

if TYPE_CHECKING:
    from jaxpp.ray.cluster import Cluster


class Buffers:
    """A value in the memory of actors. A `Held` of a RemoteArray.

    cluster: whose actors.
    number: under which each of them has it.
    meshes: those that have it.
    owners: the actor of each mesh of the cluster.
    stacked: whether each mesh has another block of it, along the first dimension, and not the whole.
    placed: sharding and type of the whole, over the devices that stand for those of the actors.
    made: the step that makes it.
    """

    def __init__(
        self,
        cluster: "Cluster",
        number: int,
        meshes: tuple[int, ...],
        owners: Sequence[int],
        stacked: bool,
        placed: Placed,
        made: "Made",
    ) -> None:
        self.cluster, self.number, self.meshes, self.stacked, self.made = cluster, number, meshes, stacked, made
        self.sharding, self.shape, self.dtype = placed.sharding, placed.aval.shape, placed.aval.dtype
        self.parts = parts(meshes, owners)
        self.epoch = cluster.epoch
        self.deleted = False
        self.reads: dict[int, Any] = {}
        """The calls that read each actor's part."""

    def start_reading(self) -> None:
        """Ask for the numbers, unless that was done before."""
        self.check()
        if not self.reads:
            actors = self.parts if self.stacked else [min(self.parts)]
            self.reads = {actor: self.cluster.call(actor, "fetch", self.number) for actor in actors}

    def read(self) -> np.ndarray[Any, Any]:
        """The numbers. Raises RuntimeError when it was donated or lost, ActorError when an actor can't say."""
        self.start_reading()
        parts = dict(
            zip(self.reads, self.cluster.calls.get(list(self.reads.values()), "reading an array"), strict=True)
        )
        self.reads = {}
        if not self.stacked or len(parts) == 1:
            return next(iter(parts.values()))
        blocks: list[Any] = [None] * len(self.meshes)
        for actor, part in parts.items():
            positions = self.parts[actor]
            for position, block in zip(positions, np.split(part, len(positions)), strict=True):
                blocks[position] = block
        return np.concatenate(blocks)

    def wait(self) -> None:
        """Return when it is computed, and all that was made with it. Raises as `read`."""
        self.check()
        self.made.wait()

    def delete(self) -> None:
        """Have the actors give the buffers up, with their next step."""
        if not self.deleted and self.epoch == self.cluster.epoch:
            for actor in self.parts:
                self.cluster.released[actor].append(self.number)
        self.deleted = True

    def is_deleted(self) -> bool:
        """Whether it was deleted, donated to a step, or lost with an actor."""
        return self.deleted or self.epoch != self.cluster.epoch

    def check(self, name: str = "the array") -> None:
        """Raise RuntimeError, that speaks of `name`, when there is nothing left."""
        if self.epoch != self.cluster.epoch:
            raise RuntimeError(f"{name} was lost when the cluster recovered: restore it from a checkpoint")
        if self.deleted:
            raise RuntimeError(f"{name} was donated to an earlier call: its array is deleted")

    def __del__(self) -> None:
        self.delete()

    def __str__(self) -> str:
        return f"on mesh {', '.join(map(str, self.meshes))}"


class Made:
    """What a step makes: the arrays `numbers`, each on some of `actors`. Waited for as one."""

    def __init__(self, cluster: "Cluster", actors: Sequence[int], numbers: range) -> None:
        self.cluster, self.actors, self.numbers = cluster, actors, numbers
        self.is_done = False

    def wait(self) -> None:
        """Return when all of it is computed: one call per actor, once. Raises ActorError."""
        if not self.is_done:
            calls = [self.cluster.call(actor, "wait", self.numbers) for actor in self.actors]
            self.cluster.calls.get(calls, "waiting for a step")
        self.is_done = True


def parts(meshes: Sequence[int], owners: Sequence[int]) -> dict[int, list[int]]:
    """For each actor that owns some of `meshes` their positions among them."""
    found: dict[int, list[int]] = {}
    for position, mesh in enumerate(meshes):
        found.setdefault(owners[mesh], []).append(position)
    return found
