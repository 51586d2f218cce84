"""Checksums of the values of a checkpoint, made while it is written and compared when it is restored.

Each value has one checksum for each block in which it is stored. The blocks are the shards that the value was saved
from, whatever shards it is restored to. Each process writes a file with the checksums of the blocks that it writes. The
checksums of leaves that are not `jax.Array`s are in the notes. The file with the tree and the notes has its checksum in
a separate file.

The CRC-32 of the standard library finds every error of up to 32 bits in a row. It is much faster than compressing the
same bytes.
"""

import json
import math
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import tensorstore
from etils import epath

from jaxpp import _compat
from jaxpp.checkpoint.leaves import Held
from jaxpp.runtime.processes.arrays import Bounds, bounds_of, covers

THREADS = 4
FILES = "checksums.process_{}.json"
METADATA, OF_METADATA = "_METADATA", "checksums.metadata.json"


class DamagedError(OSError):
    """A checkpoint differs from the saved one, or can't be read."""


def checksum(array: np.ndarray[Any, Any]) -> int:
    """Returns the CRC-32 of the elements in row-major order."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def write_checksum_of_metadata(directory: epath.Path) -> None:
    """Writes the checksum of orbax's metadata file, which has the tree of a checkpoint and jaxpp's notes."""
    found = {METADATA: zlib.crc32((directory / METADATA).read_bytes())}
    (directory / OF_METADATA).write_text(json.dumps(found))


def check_metadata(directory: epath.Path) -> None:
    """Compares orbax's metadata file with its checksum, if there is one. Earlier versions of jaxpp wrote none.

    Raises:
        DamagedError: the file differs from the saved one, or can't be read.
    """
    path, saved = directory / METADATA, directory / OF_METADATA
    if not saved.exists():
        return
    try:
        expected, found = json.loads(saved.read_text()).get(METADATA), zlib.crc32(path.read_bytes())
    except (OSError, ValueError, AttributeError) as error:
        raise DamagedError(f"{directory} is damaged: {error}") from None
    if found != expected:
        raise DamagedError(f"{path} is damaged: it does not have the checksum that it was saved with, in {saved.name}")


class Writing:
    """The pending checksums of one process's blocks, for a file of `directory`. A future, as orbax expects.

    blocks: (name of the leaf, bounds, elements); nobody may write to the elements.
    """

    def __init__(self, directory: epath.Path, blocks: Iterable[tuple[str, Bounds, np.ndarray[Any, Any]]]) -> None:
        self._path = directory / FILES.format(jax.process_index())
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="jaxpp-checksum")
        self._pending = [(name, bounds, pool.submit(checksum, array)) for name, bounds, array in blocks]
        pool.shutdown(wait=False)

    def result(self, timeout: float | None = None) -> None:
        """Writes the file. Orbax calls this after it has written the values, so the directory exists."""
        found: dict[str, list[Any]] = {}
        for name, bounds, pending in self._pending:
            found.setdefault(name, []).append([bounds, pending.result(timeout)])
        self._path.write_text(json.dumps(found))


def blocks_of(array: jax.Array) -> Iterator[tuple[Bounds, np.ndarray[Any, Any]]]:
    """Yields the blocks of an array that this process writes: the first copy of each shard, on the host."""
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield bounds_of(shard.index, array.shape), np.asarray(shard.data)


class Checksums:
    """The checksums of a checkpoint.

    path: the folder with the values.
    leaves: the checksums of the leaves that are not `jax.Array`s, from the notes.

    Raises DamagedError for a file that can't be read.
    """

    def __init__(self, path: epath.Path, leaves: Mapping[str, int]) -> None:
        self._path, self._leaves = path, leaves
        self._blocks: dict[str, list[tuple[Bounds, int]]] = {}
        for file in sorted(path.glob(FILES.format("*"))):
            try:
                for name, blocks in json.loads(file.read_text()).items():
                    found = [(tuple((low, high) for low, high in bounds), int(crc)) for bounds, crc in blocks]
                    self._blocks.setdefault(name, []).extend(found)
            except (ValueError, TypeError, AttributeError) as error:
                raise DamagedError(f"{file} is damaged: {error}") from None

    def check(self, held: Mapping[str, Held], read: Mapping[str, Any]) -> None:
        """Compares the leaves that this process has read with their checksums.

        If this process has read only parts of a block, because the value is now sharded differently, it reads the whole
        block again.

        Raises:
            DamagedError: a block differs from the saved one, or has no checksum.
        """
        with ThreadPoolExecutor(THREADS, thread_name_prefix="jaxpp-checksum") as pool:
            for pending in [pool.submit(self._check, *block) for block in self._find(held, read)]:
                pending.result()

    def _find(self, held: Mapping[str, Held], read: Mapping[str, Any]) -> Iterator[tuple[str, Held, Bounds, int, Any]]:
        """Yields (name, description, bounds, checksum, array that was read) of every block."""
        for name, each in held.items():
            if each.is_empty:
                continue
            whole = [(tuple((0, size) for size in each.shape), self._leaves[name])] if name in self._leaves else []
            blocks = whole or self._blocks.get(name, [])
            if sum(_size(bounds) for bounds, _ in blocks) != math.prod(each.shape):
                files = self._path / FILES.format("*")
                raise DamagedError(f"{files}: they lack checksums of `{name}`; verify=False restores it unchecked")
            for bounds, crc in blocks:
                yield name, each, bounds, crc, read[name]

    def _check(self, name: str, held: Held, bounds: Bounds, saved: int, read: Any) -> None:
        parts = list(_parts(read, bounds))
        if not parts:
            return  # only other processes have read it
        block = next((part for part in parts if part is not None and part.dtype == held.dtype), None)
        found = checksum(self._read(name, bounds) if block is None else block)
        if found != saved:
            where = f"[{', '.join(f'{low}:{high}' for low, high in bounds)}]" if bounds else ""
            raise DamagedError(
                f"{self._path.parent} is damaged: `{name}`{where} is not what was saved (CRC-32 {found:08x}, not "
                f"{saved:08x}); restore another step, or this one as it is, with verify=False"
            )

    def _read(self, name: str, bounds: Bounds) -> np.ndarray[Any, Any]:
        """Returns a block as it is stored."""
        text = str(self._path)
        base = f"{text}/" if "://" in text else {"driver": "file", "path": f"{text}/"}
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
        try:
            stored: Any = tensorstore.open(spec, read=True).result()
            return stored[tuple(slice(low, high) for low, high in bounds)].read().result()
        except ValueError as error:
            raise unreadable(self._path, error) from None


def unreadable(path: epath.Path, error: Exception) -> DamagedError:
    """Returns the error for a checkpoint that orbax or tensorstore can't read."""
    if isinstance(error, json.JSONDecodeError):
        return DamagedError(f"{path / METADATA} is damaged: {error}")
    while type(error) is Exception and isinstance(error.__cause__, Exception):
        error = error.__cause__  # orbax wraps tensorstore's message in the specification of the array
    text = str(error).partition(" [")[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return DamagedError(f"{path.parent} is damaged or incomplete: {text}")


def warn_unchecked(directory: epath.Path) -> None:
    """Warns that a directory has checkpoints without checksums. Python shows a warning once for each directory."""
    warnings.warn(
        f"{directory} has checkpoints without checksums: what is restored from them is not checked", stacklevel=3
    )


def _parts(read: Any, bounds: Bounds) -> Iterator[np.ndarray[Any, Any] | None]:
    """Yields the block from each shard of this process that has all of it, and None for a shard with part of it."""
    if not isinstance(read, jax.Array):
        yield np.asarray(read)[tuple(slice(*each) for each in bounds)]
        return
    for shard in read.addressable_shards:
        held = bounds_of(shard.index, read.shape)
        pairs = list(zip(held, bounds, strict=True))
        if covers(held, bounds):
            # A second array around the same buffer: an array keeps the host copy that was made of it.
            own = jax.make_array_from_single_device_arrays(shard.data.shape, shard.data.sharding, [shard.data])
            yield _compat.to_host(own)[tuple(slice(start - low, end - low) for (low, _), (start, end) in pairs)]
        elif all(max(low, start) < min(high, end) for (low, high), (start, end) in pairs):
            yield None


def _size(bounds: Bounds) -> int:
    return math.prod(high - low for low, high in bounds)
