"""How orbax reads and writes the values of a pipeline: each is on the devices of some processes only."""

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
    """Orbax's handler of a pytree whose leaves are `jax.Array`s and numpy arrays."""
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=True,  # `Checksums` reads these two formats
        use_zarr3=False,
        type_handler_registry=ocp.type_handlers.create_type_handler_registry(
            (np.ndarray, ocp.type_handlers.NumpyHandler()), (jax.Array, ShardsHandler())
        ),
    )


def absolute(directory: str | os.PathLike[str]) -> epath.Path:
    """The directory as orbax wants it."""
    path = epath.Path(directory)
    return path if is_bucket(path) else path.absolute()


def is_bucket(path: epath.Path) -> bool:
    """Whether a path is none of the file system: `gs://...`."""
    return "://" in str(path)


def all_steps(directory: str | os.PathLike[str]) -> list[int]:
    """The steps that are saved, ascending; those that are only half-written are left out."""
    path = absolute(directory)
    found = ocp.utils.checkpoint_steps_paths(path) if path.is_dir() else []
    return sorted(int(each.name) for each in found if each.name.isdigit())


def delete(checkpoint: epath.Path) -> None:
    """Delete the checkpoint of a step. Killed in the middle, it leaves none that looks whole."""
    if is_bucket(checkpoint):  # there one is whole when it has this file, and a move is a copy
        (checkpoint / "commit_success.txt").unlink(missing_ok=True)
        checkpoint.rmtree()
    else:
        set_aside(checkpoint).rmtree()


def set_aside(checkpoint: epath.Path) -> epath.Path:
    """Move a checkpoint, whole or half-written, to a name under which nobody takes or finishes it; returns that."""
    if is_bucket(checkpoint):
        return checkpoint
    step = "".join(itertools.takewhile(str.isdigit, checkpoint.name))
    return checkpoint.rename(checkpoint.with_name(f"{step}-{secrets.token_hex(4)}{ocp.utils.TMP_DIR_SUFFIX}"))


class ShardsHandler(ocp.type_handlers.ArrayHandler):
    """Orbax's, for arrays that not every process holds a part of.

    Orbax takes an array for one of all processes: it refuses those that one process holds alone, and fails on those of
    which this one holds nothing. But each process writes files of its own, which are merged in the end, and each shard
    is written where the device of its first copy is. That is enough for any array; only who takes part has to be said.
    """

    def __init__(self) -> None:
        # No primary host: whoever has a shard writes the metadata of the array, the same everywhere.
        super().__init__(primary_host=None, enable_write_sharding_file=False, use_replica_parallel=False)

    async def serialize(
        self,
        values: Sequence[jax.Array],
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.SaveArgs] | None = None,
    ) -> Sequence[Any]:
        """Write the shards of which this process has the first copy."""
        here = [i for i, value in enumerate(values) if value.addressable_shards]
        if not here:
            return []
        views: list[Any] = [_View(values[i]) for i in here]
        written = await super().serialize(views, [infos[i] for i in here], args and [args[i] for i in here])
        # By now each shard has its copy on the host, which the files are made of.
        blocks = [(str(infos[i].name), *block) for i in here for block in blocks_of(values[i])]
        directory: Any = infos[here[0]].parent_dir
        return [*written, Writing(directory, blocks)]

    async def deserialize(
        self,
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.RestoreArgs] | None = None,
    ) -> Sequence[jax.Array]:
        """Read the shards of the devices of this process."""
        wanted: list[Any] = list(args or ())
        here = [i for i, each in enumerate(wanted) if each.sharding.addressable_devices]
        read = iter(await super().deserialize([infos[i] for i in here], [wanted[i] for i in here]) if here else ())
        return [next(read) if each.sharding.addressable_devices else _of_others(each) for each in wanted]


class _View:
    """A `jax.Array` that orbax does not ask whether it is one: it refuses one that a single process holds."""

    def __init__(self, array: jax.Array) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


def _of_others(wanted: ocp.ArrayRestoreArgs) -> jax.Array:
    """An array of which this process holds nothing."""
    shape: Any = wanted.global_shape
    sharding: Any = wanted.sharding
    return jax.make_array_from_single_device_arrays(shape, sharding, [], dtype=wanted.dtype)
