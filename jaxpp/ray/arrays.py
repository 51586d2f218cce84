"""`RemoteArray`: the driver's handle of an array that actors hold, and `Buffers`: the actors' parts of the array."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxpp._keys import keys_of
from jaxpp.ray.pool import Pool
from jaxpp.runtime.execution.arguments import DONATED
from jaxpp.runtime.execution.shardings import Placed
from jaxpp.runtime.processes.fetch import Handle


class RemoteArray(np.lib.mixins.NDArrayOperatorsMixin, Handle):
    """An array in the memory of other processes. A step on a cluster returns its results as such arrays.

    A step of the same cluster takes the array without moving it. The numbers are fetched once, where they are needed:
    `np.asarray`, `jnp.asarray`, `float`, arithmetic, indexing, formatting. `jax.tree.map`, `jax.device_get`,
    `jax.block_until_ready` and `jaxpp.checkpoint.save` take the array as they take a `jax.Array`. Functions of
    `jax.numpy` need `jnp.asarray` around it.

    Args:
        aval: shape, dtype and weak type. Of random keys, `dtype` is a key dtype.
        buffers: the actors' parts of the array. Of random keys they hold the bits.
    """

    __array_priority__ = 100

    def __init__(self, aval: Any, buffers: "Buffers") -> None:
        self.aval, self.buffers = aval, buffers
        self._numbers: np.ndarray[Any, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The same as this property of a `jax.Array`; so are the next five."""
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
        """The sharding over the cluster's mesh, whose devices stand for the actors' devices."""
        return self.buffers.sharding

    def fetch(self) -> Any:
        """Returns the array in this process: a numpy array, or a `jax.Array` of random keys.

        Raises RuntimeError if the array was donated, and the errors of `Buffers.read`.
        """
        if self._numbers is None:
            self._numbers = self.buffers.read()
            self._numbers.flags.writeable = False
        return keys_of(self._numbers, self)

    def copy_to_host_async(self) -> None:
        """Asks for the numbers, without waiting for them. So `jax.device_get` fetches many arrays at once."""
        if self._numbers is None:
            self.buffers.start_reading()

    def block_until_ready(self) -> "RemoteArray":
        """Waits until the array is computed."""
        self.buffers.wait()
        return self

    def delete(self) -> None:
        """Frees the array's memory on all actors."""
        self.buffers.delete()

    def is_deleted(self) -> bool:
        """Whether the array was deleted, donated to a step, or lost with an actor."""
        return self.buffers.is_deleted()

    def item(self) -> Any:
        """Returns the only element, as a Python number."""
        return self.fetch().item()

    def tolist(self) -> Any:
        """Returns the elements as nested lists."""
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

    pool: the pool of these actors.
    number: the number of the value on each of them.
    meshes: the meshes that hold the value.
    owners: the actor of each mesh of the cluster.
    stacked: whether each mesh holds a different block along the first dimension, instead of the whole value.
    placed: the sharding and type of the whole value, over devices that stand for the actors' devices.
    made: the step that makes the value.
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
        """The pending `fetch` call of each actor that is asked for its part."""

    def start_reading(self) -> None:
        """Asks for the numbers, unless a request is pending."""
        self.check()
        if not self.reads:
            actors = self.parts if self.stacked else [min(self.parts)]
            self.reads = {actor: self.pool.call(actor, "fetch", self.number) for actor in actors}

    def read(self) -> np.ndarray[Any, Any]:
        """Returns the numbers. Raises RuntimeError if the value was donated or lost, ActorError if an actor fails."""
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
        """Waits until all results of the value's step are computed. Raises as `read`."""
        self.check()
        self.made.wait()

    def delete(self) -> None:
        """Tells the actors to free the buffers, in the message of their next step."""
        if not self.deleted and self.epoch == self.pool.epoch:
            for actor in self.parts:
                self.pool.released[actor].append(self.number)
        self.deleted = True

    def is_deleted(self) -> bool:
        """Whether the value was deleted, donated to a step, or lost with an actor."""
        return self.deleted or self.epoch != self.pool.epoch

    def check(self, name: str = "the array") -> None:
        """Raises RuntimeError, with `name` in its message, if the value was deleted, donated or lost."""
        if self.epoch != self.pool.epoch:
            raise RuntimeError(f"{name} was lost when the cluster recovered: restore it from a checkpoint")
        if self.deleted:
            raise RuntimeError(f"{name} {DONATED}")

    def __del__(self) -> None:
        self.delete()

    def __str__(self) -> str:
        return f"on mesh {', '.join(map(str, self.meshes))}"


class Made:
    """The results of one step: the arrays `numbers`, each on some of `actors`. One wait covers all of them."""

    def __init__(self, pool: Pool, actors: Sequence[int], numbers: range) -> None:
        self.pool, self.actors, self.numbers = pool, actors, numbers
        self.is_done = False

    def wait(self) -> None:
        """Waits until all results are computed. Calls each actor once in all. Raises ActorError."""
        if not self.is_done:
            calls = [self.pool.call(actor, "wait", self.numbers) for actor in self.actors]
            self.pool.calls.get(calls, "waiting for a step")
        self.is_done = True


def parts(meshes: Sequence[int], owners: Sequence[int]) -> dict[int, list[int]]:
    """Returns the positions in `meshes` of each actor's meshes."""
    found: dict[int, list[int]] = {}
    for position, mesh in enumerate(meshes):
        found.setdefault(owners[mesh], []).append(position)
    return found
