"""`restore`: makes a state of a checkpoint, with its arrays in any sharding."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding, Sharding

from jaxpp._compat import OwnTransfers, weakly_typed
from jaxpp._keys import bits_of, generator_of, is_key
from jaxpp.checkpoint.checksums import Checksums, check_metadata, unreadable, warn_unchecked
from jaxpp.checkpoint.handler import ITEM, absolute, all_steps, pytree_handler
from jaxpp.checkpoint.leaves import NUMBERS, Held, from_note, named_leaves, number_type, text
from jaxpp.compatibility.array import plain
from jaxpp.lowering import MpmdSharding

AS_SAVED = object()  # stands for a leaf that `like` does not describe
SHOWN = 5  # differences in a message


def latest_step(directory: str | os.PathLike[str]) -> int | None:
    """Returns the last step that is saved; None if there is no checkpoint."""
    return max(all_steps(directory), default=None)


def restore(
    directory: str | os.PathLike[str], like: Any = None, *, step: int | None = None, verify: bool = True
) -> Any:
    """Restores the saved state, with its arrays where `like` says. They may come from any devices and processes.

    Args:
        directory: the directory that was given to `save`.
        like: a tree with the structure of the state. Its leaves give the place and kind of the result's leaves:

            - an array or a `jax.ShapeDtypeStruct`: an array in this sharding; on the default device if the leaf has no
              sharding, or is uncommitted
            - a `jax.sharding.Sharding`, or a `jaxpp.MpmdSharding` (from `in_shardings` of a compiled step): an array
              in this sharding
            - a number: a number of that type
            - a numpy array or any other array: a numpy array

            None: nested dictionaries and lists of numpy arrays, numbers and key arrays.
        step: the step to restore; None: the latest.
        verify: whether to compare the values with their checksums. Blocks are read twice if the sharding has changed.
            A checkpoint without checksums is restored with a warning.

    Each of several processes reads the shards of its devices. An array of other processes' devices has no data here.

    Raises:
        FileNotFoundError: the directory has no checkpoint, or none of `step`.
        DamagedError: a file can't be read, or its values differ from the saved ones.
        ValueError: the checkpoint is of another model: leaves are missing in it or in `like`, or differ in shape or
            dtype, or don't fit their sharding. The message names them.
    """
    path = _find(absolute(directory), step)
    handler = pytree_handler()
    if verify:
        check_metadata(path)
    metadata = _reading(path, lambda: handler.metadata(path))
    custom: Any = metadata.custom_metadata or {}
    held, as_saved = _reading(path, lambda: _held_leaves(metadata.tree, custom.get("jaxpp", {})))
    checksums = _checksums(path, custom) if verify else None
    like = as_saved if like is None else plain(like)
    wanted = named_leaves(like)
    _check(path, held, wanted)

    def argument(stored: Any) -> ocp.RestoreArgs:
        return _argument(held[stored.name], wanted[stored.name])

    arguments = ocp.args.PyTreeRestore(restore_args=jax.tree.map(argument, metadata.tree))
    with OwnTransfers():
        read = named_leaves(_reading(path, lambda: handler.restore(path, args=arguments)))
        if checksums:
            checksums.check(held, read)
        leaves = [_finish(read.get(name), held[name], place) for name, place in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _reading(path: epath.Path, read: Callable[[], Any]) -> Any:
    """Returns `read()`. Turns its exceptions into DamagedError, as a damaged file makes orbax raise any of them."""
    try:
        return read()
    except (MemoryError, jax.errors.JaxRuntimeError):
        raise  # the memory does not suffice for the values; the files may be good
    except Exception as error:
        raise unreadable(path, error) from error


def _checksums(path: epath.Path, custom: Mapping[str, Any]) -> Checksums | None:
    """Returns the checksums of a checkpoint; warns and returns None if it has none."""
    saved = custom.get("jaxpp_checksums")
    if saved is None:
        warn_unchecked(path.parent.parent)
        return None
    return Checksums(path, _reading(path, lambda: saved["leaves"]))


def _held_leaves(stored: Any, notes: Mapping[str, Any]) -> tuple[dict[str, Held], Any]:
    """Returns the description of each stored leaf by name, and a tree of AS_SAVED in their structure."""

    def is_leaf(node: Any) -> bool:
        return node is None  # None also stands for a leaf without elements, which is not stored

    arrays: dict[str, Any] = ocp.tree.to_flat_dict(stored, sep=".", is_leaf=is_leaf)
    held = {
        name: from_note(notes.get(name, {}), array)
        for name, array in arrays.items()
        if array is not None or name in notes
    }
    leaves = [AS_SAVED if name in held else None for name in arrays]
    return held, jax.tree.unflatten(jax.tree.structure(stored, is_leaf=is_leaf), leaves)


def _find(directory: epath.Path, step: int | None) -> epath.Path:
    """Returns the folder of a step; None stands for the latest step."""
    steps = all_steps(directory)
    if not steps:
        raise FileNotFoundError(
            f"{directory} has no checkpoint" if directory.exists() else f"{directory} does not exist"
        )
    if step is not None and step not in steps:
        shown = ", ".join(map(str, steps[-SHOWN:]))
        raise FileNotFoundError(f"{directory} has no checkpoint of step {step}; the latest are {shown}")
    return directory / str(steps[-1] if step is None else step) / ITEM


def _sharding(place: Any) -> Sharding | None:
    """Returns the sharding of a leaf; None for a leaf that is read as numpy, as for a backend with remote devices."""
    if isinstance(place, MpmdSharding):
        return place.sharding if place.mpmd_mesh.backend is None else None
    if isinstance(place, Sharding):
        return place
    if isinstance(place, jax.ShapeDtypeStruct) or (isinstance(place, jax.Array) and place.committed):
        return place.sharding
    return None


def _argument(held: Held, place: Any) -> ocp.RestoreArgs:
    """Returns orbax's arguments for reading a leaf."""
    sharding = _sharding(place)
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=held.shape, dtype=_device_dtype(held, place))


def _device_dtype(held: Held, place: Any) -> np.dtype[Any]:
    """Returns the dtype on a device. A Python number takes the dtype of `place`."""
    if held.number and hasattr(place, "dtype"):
        return place.dtype
    return jax.dtypes.canonicalize_dtype(held.dtype)


def _finish(read: Any, held: Held, place: Any) -> Any:
    """Converts an array that was read into a leaf of the same kind as `place`."""
    if isinstance(place, np.generic):
        return place.dtype.type(read)
    if place is AS_SAVED and held.number:
        return NUMBERS[held.number](read.item())
    if number_type(place):
        return type(place)(read.item())
    if held.is_empty:
        read = np.zeros(held.shape, held.dtype)
    if held.key is None and not isinstance(place, jax.Array | jax.ShapeDtypeStruct | Sharding | MpmdSharding):
        return read
    if isinstance(read, np.ndarray):
        read = _put(read.astype(_device_dtype(held, place), copy=False), _sharding(place))
    if held.key:
        return jax.random.wrap_key_data(read, impl=held.key)
    is_weak = getattr(place, "weak_type", True) if held.number else held.is_weak
    return weakly_typed(read) if is_weak else read


def _put(array: np.ndarray[Any, Any], sharding: Sharding | None) -> jax.Array:
    """Places an array on devices, this process's shards only; on the default device without a sharding."""
    if sharding is None:
        return jnp.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index], array.dtype)


def _check(path: epath.Path, held: Mapping[str, Held], wanted: Mapping[str, Any]) -> None:
    """Raises ValueError if the wanted tree does not match the checkpoint's."""
    found = [f"{name}: not in the checkpoint" for name in wanted if name not in held]
    found += [f"{name}: not in `like`, {each} in the checkpoint" for name, each in held.items() if name not in wanted]
    both = {name: _difference(held[name], place) for name, place in wanted.items() if name in held}
    found += [f"{name}: {difference}" for name, difference in both.items() if difference]
    if found:
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        lines = "".join(f"\n  {line}" for line in [*found[:SHOWN], *more])
        raise ValueError(f"{path.parent} is the checkpoint of another model{lines}")


def _difference(held: Held, place: Any) -> str:
    """Explains why a leaf can't be restored as `place`; empty if it can."""
    number = number_type(place)
    wanted: Any = np.empty((), NUMBERS[number]) if number else place
    key = None
    if is_key(place):
        wanted, key = bits_of(jax.ShapeDtypeStruct(place.shape, place.dtype)), generator_of(place)
    if hasattr(wanted, "dtype"):
        is_same = (key, wanted.shape) == (held.key, held.shape)
        if not is_same or not _converts(held.dtype, wanted.dtype, exactly=not (number or held.number)):
            return f"{held} in the checkpoint, {text(wanted.shape, wanted.dtype, key)} in `like`"
    sharding = _sharding(place)
    if sharding is None:
        return ""
    try:
        sharding.shard_shape(held.shape)
    except (ValueError, IndexError):
        return f"{held} does not fit {_spec(sharding)}"
    return ""


def _converts(held: np.dtype[Any], wanted: np.dtype[Any], exactly: bool) -> bool:
    """Whether dtypes match: exactly, or for Python numbers such that values only get rounded."""
    if exactly:
        return held == wanted
    are_integers = jnp.issubdtype(held, np.integer) and jnp.issubdtype(wanted, np.integer)
    return are_integers or np.can_cast(held, wanted, "same_kind")


def _spec(sharding: Sharding) -> str:
    """Describes a sharding for messages."""
    return f"{sharding.spec} on {dict(sharding.mesh.shape)}" if isinstance(sharding, NamedSharding) else str(sharding)
