"""Arrays and shardings in the terms of NVIDIA's JaxPP: views of plain `jax.Array`s, and moves between meshes.

Steps take and return plain `jax.Array`s, and need nothing from this file.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jaxpp.lowering import MpmdMesh, MpmdSharding
from jaxpp.runtime.processes.fetch import move


class MpmdArray:
    """One array with a whole copy on each of one or several meshes of an MpmdMesh: a view of these `jax.Array`s.

    Steps of `mpmd_jit_with_loop` and `mpmd_jit_by_yield` take it as an argument. `jnp.asarray` and `np.asarray` make a
    plain array of it. `array` is the same as one plain `jax.Array`.

    Args:
        partially_addressable_arrays: the array of each mesh of `mpmd_sharding.mesh_ids` that this process holds.
        mpmd_sharding: the meshes that hold the array, and its sharding on each of them.
        shape: the shape; required if this process holds no array.
        dtype: the dtype; required if this process holds no array.

    Raises:
        ValueError: an array is on no mesh of `mesh_ids`, is on the mesh of another array, or is not sharded as
            `mpmd_sharding`. Or shapes or dtypes differ, or are unknown.
        TypeError: an array is no `jax.Array`.
    """

    def __init__(
        self,
        partially_addressable_arrays: Sequence[jax.Array],
        mpmd_sharding: MpmdSharding,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
    ) -> None:
        self.mpmd_sharding = mpmd_sharding
        self._arrays = _by_mesh(partially_addressable_arrays, mpmd_sharding)
        held = list(self._arrays.values())
        if not held and (shape is None or dtype is None):
            raise ValueError("MpmdArray: no arrays; give shape and dtype")
        self.shape: tuple[int, ...] = tuple(shape) if shape is not None else held[0].shape
        self.dtype: Any = np.dtype(dtype) if dtype is not None else held[0].dtype
        for each in held:
            if (each.shape, each.dtype) != (self.shape, self.dtype):
                found = f"{each.dtype}{list(each.shape)}"
                raise ValueError(f"MpmdArray: expected {self.dtype}{list(self.shape)}, found {found}")

    @property
    def aval(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def spec(self) -> PartitionSpec:
        """The sharding of the array on each mesh."""
        return self.mpmd_sharding.spec

    @property
    def sharding(self) -> NamedSharding:
        """The sharding over all meshes that hold the array."""
        return self.mpmd_sharding.sharding

    @property
    def array(self) -> jax.Array:
        """The plain array: the one of its mesh, or one that is replicated over its meshes.

        Raises:
            ValueError: this process does not hold the arrays of all meshes.
        """
        ids, meshes = self.mpmd_sharding.mesh_ids, self.mpmd_sharding.mpmd_mesh.unstack
        missing = sorted(k for k in ids - self._arrays.keys() if meshes[k].local_devices)
        if missing or not ids:
            raise ValueError(f"MpmdArray: the arrays on the meshes {missing} are not there")
        if len(self._arrays) == len(ids) == 1:
            return next(iter(self._arrays.values()))
        shards = [shard.data for each in self._arrays.values() for shard in each.addressable_shards]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, shards, dtype=self.dtype)

    @property
    def is_mpmd_replicated(self) -> bool:
        """Whether several meshes hold the array."""
        return len(self.mpmd_sharding.mesh_ids) > 1

    @property
    def is_partially_addressable(self) -> bool:
        """Whether this process holds the array of at least one mesh."""
        return bool(self._arrays)

    @property
    def to_mpmd_local_array(self) -> jax.Array | list[jax.Array] | None:
        """The array, if this process holds that of one mesh; a list, by mesh, if of several; None if of no mesh."""
        held = list(self._arrays.values())
        return held[0] if len(held) == 1 else held or None

    @property
    def first_mpmd_replica(self) -> jax.Array | None:
        """The array of the first mesh; None if this process does not hold it."""
        return self._arrays.get(min(self.mpmd_sharding.mesh_ids, default=-1))

    def delete(self) -> None:
        """Deletes the arrays that are not deleted yet."""
        for each in self._arrays.values():
            each.delete()

    def is_deleted(self) -> bool:
        """Whether an array of a mesh is deleted."""
        return any(each.is_deleted() for each in self._arrays.values())

    def block_until_ready(self) -> "MpmdArray":
        """Waits until all arrays are computed; returns itself."""
        jax.block_until_ready(list(self._arrays.values()))
        return self

    def __repr__(self) -> str:
        meshes = sorted(self.mpmd_sharding.mesh_ids)
        return f"MpmdArray(shape={self.shape}, dtype={self.dtype}, mpmd_idxs={meshes}, spec={self.spec})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._local(), dtype=dtype, copy=copy)

    def __jax_array__(self) -> jax.Array:
        return self.array

    def __int__(self) -> int:
        return int(self._local())

    def __float__(self) -> float:
        return float(self._local())

    def __bool__(self) -> bool:
        return bool(self._local())

    def __format__(self, format_spec: str) -> str:
        return format(self._local(), format_spec) if format_spec else repr(self)

    def _local(self) -> jax.Array:
        """Returns the array of the first mesh that this process holds. Raises ValueError if it holds none."""
        if not self._arrays:
            raise ValueError("MpmdArray: this process holds no array of it")
        return next(iter(self._arrays.values()))


def _by_mesh(arrays: Sequence[jax.Array], where: MpmdSharding) -> dict[int, jax.Array]:
    """Returns each array under the index of its mesh, ascending. Raises as `MpmdArray`."""
    found: dict[int, jax.Array] = {}
    for k, array in enumerate(arrays):
        if not isinstance(array, jax.Array):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            raise TypeError(f"MpmdArray: array {k} is of type {type(array).__name__}, not a jax.Array")
        mesh = array.sharding.mesh if isinstance(array.sharding, NamedSharding) else None
        ids = None if mesh is None else where.mpmd_mesh.mpmd_indices_for_mesh(mesh)  # pyright: ignore[reportArgumentType]  # of an array it is concrete
        if ids is None or len(ids) != 1 or ids[0] not in where.mesh_ids:
            place = "no single mesh of the MpmdMesh" if ids is None or len(ids) != 1 else f"mesh {ids[0]}"
            raise ValueError(f"MpmdArray: array {k} is on {place}; expected one of {sorted(where.mesh_ids)}")
        if ids[0] in found:
            raise ValueError(f"MpmdArray: two arrays on mesh {ids[0]}")
        expected = NamedSharding(where.mpmd_mesh.unstack[ids[0]], where.spec)
        if not array.sharding.is_equivalent_to(expected, array.ndim):
            raise ValueError(f"MpmdArray: array {k} is sharded as {array.sharding}; expected {where.spec}")
        found[ids[0]] = array
    return dict(sorted(found.items()))


def plain(tree: Any) -> Any:
    """Returns `tree` with plain arrays instead of MpmdArrays; the tree itself if it has none."""
    leaves, structure = jax.tree.flatten(tree)
    if MpmdArray not in set(map(type, leaves)):
        return tree
    return jax.tree.unflatten(structure, [leaf.array if isinstance(leaf, MpmdArray) else leaf for leaf in leaves])


def spmd_to_mpmd_reshard(
    mpmd_mesh: MpmdMesh, spmd_arrays: Any, mpmd_shardings: Any, threshold: int | None = None
) -> Any:
    """Copies arrays to the meshes of `mpmd_shardings`.

    Args:
        mpmd_mesh: the meshes.
        spmd_arrays: a pytree of arrays on any devices. They stay as they are.
        mpmd_shardings: a tree of MpmdShardings with the same structure. A sharding without meshes stands for mesh 0.
        threshold: ignored; in JaxPP the amount that is moved at once.

    Returns:
        A tree of plain `jax.Array`s over the submeshes.

    Raises:
        TypeError: `mpmd_mesh` is no MpmdMesh, or a leaf of `mpmd_shardings` is no MpmdSharding. As `jax.device_put`,
            for a leaf that is no array.
        ValueError: the structures differ, a sharding is for other meshes, or does not fit its array.
    """
    _check_mesh("spmd_to_mpmd_reshard", mpmd_mesh)
    del threshold
    arrays = plain(spmd_arrays)
    expected, found = jax.tree.structure(arrays), jax.tree.structure(mpmd_shardings)
    if expected != found:
        raise ValueError(f"spmd_to_mpmd_reshard: mpmd_shardings have the structure {found}, the arrays {expected}")
    for path, each in jax.tree_util.tree_leaves_with_path(mpmd_shardings):
        where = f"mpmd_shardings{jax.tree_util.keystr(path)}"
        if not isinstance(each, MpmdSharding):
            raise TypeError(f"spmd_to_mpmd_reshard: {where} is of type {type(each).__name__}, not an MpmdSharding")
        if each.mpmd_mesh != mpmd_mesh:
            raise ValueError(f"spmd_to_mpmd_reshard: {where} is for another MpmdMesh")
    places = jax.tree.leaves(mpmd_shardings)
    moved = [move(array, each.sharding) for array, each in zip(jax.tree.leaves(arrays), places, strict=True)]
    return jax.tree.unflatten(expected, moved)


def mpmd_to_spmd_reshard(
    mpmd_mesh: MpmdMesh, mpmd_arrays: Any, spmd_shardings: Any, threshold: int | None = None
) -> Any:
    """Copies arrays from some meshes to all, as `jax.device_put(mpmd_arrays, spmd_shardings)` does.

    Args:
        mpmd_mesh: the meshes.
        mpmd_arrays: a pytree of `jax.Array`s or MpmdArrays. They stay as they are.
        spmd_shardings: a tree of shardings, or a prefix of one.
        threshold: ignored; in JaxPP the amount that is moved at once.

    Raises:
        TypeError: `mpmd_mesh` is no MpmdMesh.
        ValueError: this process lacks arrays of an MpmdArray. As `jax.device_put`, for shardings that don't fit.
    """
    _check_mesh("mpmd_to_spmd_reshard", mpmd_mesh)
    del threshold
    arrays = plain(mpmd_arrays)
    if jax.process_count() == 1:
        return jax.device_put(arrays, spmd_shardings)

    def move_all(sharding: Sharding, subtree: Any) -> Any:
        return jax.tree.map(partial(move, sharding=sharding), subtree)

    return jax.tree.map(move_all, spmd_shardings, arrays)


def _check_mesh(caller: str, mpmd_mesh: Any) -> None:
    if not isinstance(mpmd_mesh, MpmdMesh):
        raise TypeError(f"{caller}: expected a jaxpp.MpmdMesh, found {type(mpmd_mesh).__name__}")
