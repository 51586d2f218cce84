"""`RemoteArray`: an array that actors hold and the driver only names, and the buffers that it stands for."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxpp import _compat
from jaxpp.ray.pool import Pool
from jaxpp.runtime.execution.shardings import Placed
from jaxpp.runtime.processes.fetch import Handle


class RemoteArray(np.lib.mixins.NDArrayOperatorsMixin, Handle):
    """An array in the memory of other processes, as a step on a cluster returns it.

    It goes back into a step of the same cluster without being moved. Where its numbers are needed (`np.asarray`,
    `jnp.asarray`, `float`, arithmetic, indexing, a format) they are fetched, once. `jax.tree.map`, `jax.device_get`,
    `jax.block_until_ready` and `jaxpp.checkpoint.save` take it as they take a `jax.Array`; a function of `jax.numpy`
    wants `jnp.asarray` around it.

    Args:
        aval: shape, dtype (of a random key, that of keys) and weak type.
        buffers: what the actors have of it. Random keys are their bits.
    """

    __array_priority__ = 100

    def __init__(self, aval: Any, buffers: "Buffers") -> None:
        self.aval, self.buffers = aval, buffers
        self._numbers: np.ndarray[Any, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """As of a `jax.Array`, as are the next ones."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """See `shape`."""
        return self.aval.dtype

    @property
    def weak_type(self) -> bool:
        """See `shape`."""
        return bool(getattr(self.aval, "weak_type", False))

    @property
    def ndim(self) -> int:
        """See `shape`."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """See `shape`."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """See `shape`."""
        return self.size * self.dtype.itemsize

    @property
    def sharding(self) -> NamedSharding:
        """How the array is laid out, over the mesh that the cluster made: its devices stand for those of the actors."""
        return self.buffers.sharding

    def fetch(self) -> Any:
        """The array in this process: in numpy, or a `jax.Array` if it is one of random keys.

        Raises RuntimeError when it was donated, and what `Buffers.read` raises.
        """
        if self._numbers is None:
            self._numbers = self.buffers.read()
            self._numbers.flags.writeable = False
        if _compat.is_key_type(self.dtype):
            return jax.random.wrap_key_data(jnp.asarray(self._numbers), impl=_compat.key_implementation(self.dtype))
        return self._numbers

    def copy_to_host_async(self) -> None:
        """Ask for the numbers, without waiting for them: `jax.device_get` so fetches many at once."""
        if self._numbers is None:
            self.buffers.start_reading()

    def block_until_ready(self) -> "RemoteArray":
        """Wait until it is computed."""
        self.buffers.wait()
        return self

    def delete(self) -> None:
        """Free its memory, wherever that is."""
        self.buffers.delete()

    def is_deleted(self) -> bool:
        """Whether it was deleted, or donated to a step."""
        return self.buffers.is_deleted()

    def item(self) -> Any:
        """Its one number."""
        return self.fetch().item()

    def tolist(self) -> Any:
        """Its numbers as lists."""
        return self.fetch().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.fetch(), dtype=dtype, copy=copy)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.fetch())

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        fetched = [each.fetch() if isinstance(each, RemoteArray) else each for each in inputs]
        return getattr(ufunc, method)(*fetched, **options)

    def __getitem__(self, index: Any) -> Any:
        return self.fetch()[index]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __float__(self) -> float:
        return float(self.fetch())

    def __int__(self) -> int:
        return int(self.fetch())

    def __index__(self) -> int:
        return self.fetch().__index__()

    def __bool__(self) -> bool:
        return bool(self.fetch())

    def __format__(self, format_spec: str) -> str:
        return format(self.fetch().item(), format_spec) if format_spec else repr(self)

    def __repr__(self) -> str:
        state = ", deleted" if self.is_deleted() else ""
        return f"RemoteArray({self.dtype}{list(self.shape)}, {self.sharding.spec}, {self.buffers}{state})"


class Buffers:
    """A value in the memory of actors.

    pool: of the actors.
    number: under which each of them has it.
    meshes: those that have it.
    owners: the actor of each mesh of the cluster.
    stacked: whether each mesh has another block of it, along the first dimension, and not the whole.
    placed: sharding and type of the whole, over the devices that stand for those of the actors.
    made: the step that makes it.
    """

    def __init__(
        self,
        pool: Pool,
        number: int,
        meshes: tuple[int, ...],
        owners: Sequence[int],
        stacked: bool,
        placed: Placed,
        made: "Made",
    ) -> None:
        self.pool, self.number, self.meshes, self.stacked, self.made = pool, number, meshes, stacked, made
        self.sharding, self.shape, self.dtype = placed.sharding, placed.aval.shape, placed.aval.dtype
        self.parts = parts(meshes, owners)
        self.epoch = pool.epoch
        self.deleted = False
        self.reads: dict[int, Any] = {}
        """The calls that read each actor's part."""

    def start_reading(self) -> None:
        """Ask for the numbers, unless that was done before."""
        self.check()
        if not self.reads:
            actors = self.parts if self.stacked else [min(self.parts)]
            self.reads = {actor: self.pool.call(actor, "fetch", self.number) for actor in actors}

    def read(self) -> np.ndarray[Any, Any]:
        """The numbers. Raises RuntimeError when it was donated or lost, ActorError when an actor can't say."""
        self.start_reading()
        parts = dict(zip(self.reads, self.pool.calls.get(list(self.reads.values()), "reading an array"), strict=True))
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
        if not self.deleted and self.epoch == self.pool.epoch:
            for actor in self.parts:
                self.pool.released[actor].append(self.number)
        self.deleted = True

    def is_deleted(self) -> bool:
        """Whether it was deleted, donated to a step, or lost with an actor."""
        return self.deleted or self.epoch != self.pool.epoch

    def check(self, name: str = "the array") -> None:
        """Raise RuntimeError, that speaks of `name`, when there is nothing left."""
        if self.epoch != self.pool.epoch:
            raise RuntimeError(f"{name} was lost when the cluster recovered: restore it from a checkpoint")
        if self.deleted:
            raise RuntimeError(f"{name} was donated to an earlier call: its array is deleted")

    def __del__(self) -> None:
        self.delete()

    def __str__(self) -> str:
        return f"on mesh {', '.join(map(str, self.meshes))}"


class Made:
    """What a step makes: the arrays `numbers`, each on some of `actors`. Waited for as one."""

    def __init__(self, pool: Pool, actors: Sequence[int], numbers: range) -> None:
        self.pool, self.actors, self.numbers = pool, actors, numbers
        self.is_done = False

    def wait(self) -> None:
        """Return when all of it is computed: one call per actor, once. Raises ActorError."""
        if not self.is_done:
            calls = [self.pool.call(actor, "wait", self.numbers) for actor in self.actors]
            self.pool.calls.get(calls, "waiting for a step")
        self.is_done = True


def parts(meshes: Sequence[int], owners: Sequence[int]) -> dict[int, list[int]]:
    """For each actor that owns some of `meshes` their positions among them."""
    found: dict[int, list[int]] = {}
    for position, mesh in enumerate(meshes):
        found.setdefault(owners[mesh], []).append(position)
    return found
