"""`RemoteArray`: an array that another process holds and this one only names."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxpp import _compat


class Held(Protocol):
    """What stands behind a RemoteArray: the buffers of one value, wherever they are. Random keys are their bits.

    sharding: over devices that stand for those that hold it.
    """

    sharding: NamedSharding

    def start_reading(self) -> None:
        """Ask for the numbers, unless that was done before."""
        ...

    def read(self) -> np.ndarray[Any, Any]:
        """The numbers, when they are here."""
        ...

    def wait(self) -> None:
        """Return when they are computed."""
        ...

    def delete(self) -> None:
        """Give the buffers up; does nothing the second time."""
        ...

    def is_deleted(self) -> bool:
        """Whether they were given up, or donated."""
        ...


class RemoteArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array in the memory of other processes, as a step on a cluster returns it.

    It goes back into a step of the same cluster without being moved. Where its numbers are needed (`np.asarray`,
    `jnp.asarray`, `float`, arithmetic, indexing, a format) they are fetched, once. `jax.tree.map`, `jax.device_get`,
    `jax.block_until_ready` and `jaxpp.checkpoint.save` take it as they take a `jax.Array`; a function of `jax.numpy`
    wants `jnp.asarray` around it.

    Args:
        aval: shape, dtype (of a random key, that of keys) and weak type.
        held: its buffers.
    """

    __array_priority__ = 100

    def __init__(self, aval: Any, held: Held) -> None:
        self.aval, self.held = aval, held
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
        return self.held.sharding

    def fetch(self) -> Any:
        """The array in this process: in numpy, or a `jax.Array` if it is one of random keys.

        Raises RuntimeError when it was donated, and what `Held.read` raises.
        """
        if self._numbers is None:
            self._numbers = self.held.read()
            self._numbers.flags.writeable = False
        if jnp.issubdtype(self.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(self._numbers), impl=_compat.key_implementation(self.dtype))
        return self._numbers

    def copy_to_host_async(self) -> None:
        """Ask for the numbers, without waiting for them: `jax.device_get` so fetches many at once."""
        if self._numbers is None:
            self.held.start_reading()

    def block_until_ready(self) -> "RemoteArray":
        """Wait until it is computed."""
        self.held.wait()
        return self

    def delete(self) -> None:
        """Free its memory, wherever that is."""
        self.held.delete()

    def is_deleted(self) -> bool:
        """Whether it was deleted, or donated to a step."""
        return self.held.is_deleted()

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
        return f"RemoteArray({self.dtype}{list(self.shape)}, {self.sharding.spec}, {self.held}{state})"


def described(tree: Any) -> Any:
    """`tree` with the type and sharding of RemoteArrays instead of them, as a step is lowered for."""

    def describe(leaf: Any) -> Any:
        if not isinstance(leaf, RemoteArray):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=leaf.weak_type)

    return jax.tree.map(describe, tree)


def fetched(tree: Any) -> Any:
    """`tree` with the numbers of RemoteArrays instead of them, all asked for at once."""
    remote = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, RemoteArray)]
    for leaf in remote:
        leaf.copy_to_host_async()
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [each.fetch() if isinstance(each, RemoteArray) else each for each in leaves])
