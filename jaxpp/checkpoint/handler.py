"""Orbax's handlers for the values of a pipeline, each of which is on the devices of only some processes."""

import itertools
import os
import secrets
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from jaxpp.checkpoint.checksums import Writing, blocks_of

ITEM = "default"  # the folder of a step in which orbax's manager keeps a state


def pytree_handler() -> ocp.PyTreeCheckpointHandler:
    """Returns orbax's handler of a pytree whose leaves are `jax.Array`s and numpy arrays."""
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=True,  # `Checksums` reads these two formats
        use_zarr3=False,
        type_handler_registry=ocp.type_handlers.create_type_handler_registry(
            (np.ndarray, ocp.type_handlers.NumpyHandler()), (jax.Array, ShardsHandler())
        ),
    )


def absolute(directory: str | os.PathLike[str]) -> epath.Path:
    """Returns the directory in the form that orbax expects."""
    path = epath.Path(directory)
    return path if is_bucket(path) else path.absolute()


def is_bucket(path: epath.Path) -> bool:
    """Whether a path is in object storage instead of a file system: `gs://...`."""
    return "://" in str(path)


def all_steps(directory: str | os.PathLike[str]) -> list[int]:
    """Returns the steps that are saved, ascending, without half-written ones."""
    path = absolute(directory)
    found = ocp.utils.checkpoint_steps_paths(path) if path.is_dir() else []
    return sorted(int(each.name) for each in found if each.name.isdigit())


def delete(checkpoint: epath.Path) -> None:
    """Deletes the checkpoint of a step. If the process is killed meanwhile, the rest does not look whole."""
    if is_bucket(checkpoint):  # in a bucket this file marks a whole checkpoint, and a move would be a copy
        (checkpoint / "commit_success.txt").unlink(missing_ok=True)
        checkpoint.rmtree()
    else:
        set_aside(checkpoint).rmtree()


def set_aside(checkpoint: epath.Path) -> epath.Path:
    """Moves a checkpoint, whole or half-written, to a name that nobody reads or finishes; returns the new path."""
    if is_bucket(checkpoint):
        return checkpoint
    step = "".join(itertools.takewhile(str.isdigit, checkpoint.name))
    return checkpoint.rename(checkpoint.with_name(f"{step}-{secrets.token_hex(4)}{ocp.utils.TMP_DIR_SUFFIX}"))


class ShardsHandler(ocp.type_handlers.ArrayHandler):
    """Orbax's array handler, for arrays of which some processes hold no shard.

    Orbax expects that all processes hold a part of each array. It refuses an array that only one process holds, and
    fails if this process holds no shard. But the file format suffices for any array. Each process writes separate
    files, which are merged at the end. The process of a shard's first copy writes the shard. So this class only tells
    orbax which processes take part.
    """

    def __init__(self) -> None:
        # No primary host: each holder of a shard writes the metadata of the array, which is the same everywhere.
        super().__init__(primary_host=None, enable_write_sharding_file=False, use_replica_parallel=False)

    async def serialize(
        self,
        values: Sequence[jax.Array],
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.SaveArgs] | None = None,
    ) -> Sequence[Any]:
        """Writes the shards of which this process has the first copy."""
        here = [i for i, value in enumerate(values) if value.addressable_shards]
        if not here:
            return []
        views: list[Any] = [_View(values[i]) for i in here]
        written = await super().serialize(views, [infos[i] for i in here], args and [args[i] for i in here])
        # By now each shard has a copy on the host, from which the files are written.
        blocks = [(str(infos[i].name), *block) for i in here for block in blocks_of(values[i])]
        directory: Any = infos[here[0]].parent_dir
        return [*written, Writing(directory, blocks)]

    async def deserialize(
        self,
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.RestoreArgs] | None = None,
    ) -> Sequence[jax.Array]:
        """Reads the shards of this process's devices."""
        wanted: list[Any] = list(args or ())
        here = [i for i, each in enumerate(wanted) if each.sharding.addressable_devices]
        read = iter(await super().deserialize([infos[i] for i in here], [wanted[i] for i in here]) if here else ())
        return [next(read) if each.sharding.addressable_devices else _of_others(each) for each in wanted]


class _View:
    """A wrapper that hides from orbax that this is a `jax.Array`: orbax refuses one that a single process holds."""

    def __init__(self, array: jax.Array) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


def _of_others(wanted: ocp.ArrayRestoreArgs) -> jax.Array:
    """Returns an array without data, for shards that only other processes hold."""
    shape: Any = wanted.global_shape
    sharding: Any = wanted.sharding
    return jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=wanted.dtype)
