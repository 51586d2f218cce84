"""`Saver` and `save`: write a state as a checkpoint."""

import operator
import os
import threading
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, SupportsIndex

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxpp import _compat, _jobs
from jaxpp._system import sync_folder, sync_tree
from jaxpp.checkpoint.checksums import checksum, write_checksum_of_metadata
from jaxpp.checkpoint.handler import ITEM, absolute, all_steps, delete, is_bucket, pytree_handler, set_aside
from jaxpp.checkpoint.leaves import Held, like_tree, named_leaves, to_store
from jaxpp.checkpoint.ownership import Ownership
from jaxpp.compatibility.array import plain
from jaxpp.runtime.processes import job
from jaxpp.runtime.processes.fetch import fetched
from jaxpp.runtime.processes.meetings import Meeting, MeetingKind, identity_of
from jaxpp.runtime.processes.waiting import WaitFor

SLOW_DISK = "see whether the file system of this directory is slow or full"


def save(directory: str | os.PathLike[str], step: SupportsIndex, state: Any, *, keep: int | None = None) -> None:
    """Saves a state, and returns when it is on the disk. It is a `Saver` for one step.

    Args:
        directory: the directory of all steps, created if needed. Several processes give the same, in a shared file
            system.
        step: the number of the checkpoint, at least 0.
        state: a pytree, see `Saver.save`.
        keep: the number of the latest checkpoints to keep; all others are deleted. None: keep all.

    Raises: as `Saver` and `Saver.save`.
    """
    with Saver(directory, keep=keep) as saver:
        saver.save(step, state)


class Saver:
    """A writer of checkpoints, step after step, while the training goes on.

        with jaxpp.checkpoint.Saver("checkpoints", keep=3) as saver:
            ...
                saver.save(step, state)

    Each of several processes has a Saver, and all save the same steps in the same order. A directory has one Saver at a
    time, which deletes half-written checkpoints of an earlier one. While its process runs, a second Saver on the same
    machine is refused. A Saver on another machine takes the directory over, and the saves of the first one then fail.

    Args:
        directory: the directory of all steps, created if needed. Several processes give the same, in a shared file
            system.
        keep: the number of the latest checkpoints to keep. All others are deleted when the next step is saved or the
            Saver is closed. None: keep all.

    Raises:
        ValueError: `keep` is less than 1.
        OSError: the directory can't be made or read, or another process saves there.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int | None = None) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self._directory, self._keep = absolute(directory), keep
        self._directory.mkdir(parents=True, exist_ok=True)
        self._owner: Ownership | None = None
        if jax.process_index() == 0:
            self._owner = Ownership(self._directory)
            for path in self._directory.iterdir():
                if path.name[0].isdigit() and ocp.utils.is_tmp_checkpoint(path):
                    set_aside(path).rmtree()
        # With `active_processes` orbax uses the barriers of JAX's coordination service. Otherwise it would run a
        # computation on all devices, at a moment that may differ relative to the other programs on these devices.
        all_of_them = ocp.options.MultiprocessingOptions(active_processes=set(range(jax.process_count())))
        # Orbax's CheckpointManager is not used. It also asks JAX's preemption service, about other steps and in the
        # background. This can keep the processes from agreeing on the step at which they stop.
        item: Any = {ITEM: pytree_handler()}
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(multiprocessing_options=all_of_them), **item
        )
        self._checkpointer = ocp.AsyncCheckpointer(
            handler,
            async_options=ocp.options.AsyncOptions(
                barrier_sync_fn=_meet_in_background, post_finalization_callback=self._end
            ),
            multiprocessing_options=all_of_them,
        )
        self._saving: int | None = None
        self._abandoned: BaseException | None = None
        """Why orbax was left while it began a save. Another thread may still be in it: it isn't touched."""

    def save(self, step: SupportsIndex, state: Any) -> None:
        """Saves a state as the checkpoint of `step`. Returns once it is copied to the host: it may then be donated.

        The files are written in the background. The checkpoint appears in one move when all processes have written
        their parts, and can't be restored before. If an earlier save is still running, this call waits for it first.

        Args:
            step: the number of the checkpoint, at least 0.
            state: a pytree of `jax.Array`s on any devices, key arrays, numpy arrays, numbers, or anything that
                `np.asarray` takes. The process with the first copy of a shard writes it. Process 0 writes leaves that
                are not `jax.Array`s.

        Raises:
            FileExistsError: there is a checkpoint of `step`.
            RuntimeError: an array of the state was donated.
            TypeError: a leaf is neither an array of numbers nor a number, or its dtype can't be stored.
            ValueError: `step` is negative, the state has no leaves, or two leaves have the same name.
            OSError: the save before failed, see `wait_until_finished`.
            TransferError: another process is gone (PeerError), or saves something else, or does not save.
        """
        number = operator.index(step)
        if number < 0:
            raise ValueError(f"step must be at least 0, not {number}")
        state = fetched(plain(state))
        stored = {name: to_store(name, leaf) for name, leaf in named_leaves(state).items()}
        if not stored:
            raise ValueError("the state has no leaves: there is nothing to save")
        self.wait_until_finished()
        if number in all_steps(self._directory):
            raise FileExistsError(f"{self._directory} has a checkpoint of step {number} already")
        notes = {name: held.note() for name, (_, held) in stored.items() if held.note()}
        tree = like_tree(state, {name: None if held.is_empty else array for name, (array, held) in stored.items()})
        metadata: Any = {"jaxpp": notes, "jaxpp_checksums": _checksums(stored)}
        item = ocp.args.PyTreeSave(tree, custom_metadata=metadata)
        if jax.process_count() > 1:
            text = f"step {number} in {self._directory}"
            job.meet_all(Meeting(MeetingKind.SAVE, identity_of(text), text=text))
        self._saving = number

        has_begun = threading.Event()

        def begin() -> None:
            try:
                with _compat.OwnTransfers():
                    self._checkpointer.save(self._directory / str(number), args=ocp.args.Composite(**{ITEM: item}))
            finally:
                has_begun.set()

        if jax.process_count() > 1:  # orbax's barriers would wait for a dead process until JAX's timeout
            try:
                job.interruptible(begin, f"the beginning of the save of step {number}", remedy=SLOW_DISK)
            except BaseException as error:  # a process is gone, or Ctrl-C; or orbax failed, and is done with it
                if not has_begun.is_set():
                    self._abandoned = error
                raise
        else:
            begin()

    def wait_until_finished(self) -> None:
        """Waits until the last saved step is on the disk, then deletes the steps that `keep` leaves out.

        Raises:
            OSError: the step could not be written: the disk is full, a process died.
        """
        if self._abandoned:
            reason = str(self._abandoned) or type(self._abandoned).__name__
            raise OSError(f"{self._directory}: step {self._saving} is not saved: {reason}")
        try:
            with WaitFor(f"the save of step {self._saving} in {self._directory}", None, SLOW_DISK):
                self._checkpointer.wait_until_finished()
        except Exception as error:  # orbax and tensorstore may raise anything, in a background thread
            if self._saving not in all_steps(self._directory):  # otherwise a process died after the save
                raise OSError(f"{self._directory}: step {self._saving} is not saved: {error}") from None
        if self._owner is None:
            return
        if not is_bucket(self._directory):
            sync_folder(str(self._directory))  # the new step has its name before older ones go
        if self._keep is not None and (old := all_steps(self._directory)[: -self._keep]):
            self._owner.check()
            for step in old:
                delete(self._directory / str(step))

    def _end(self) -> None:
        """Flushes the checkpoint to the disk, with the checksum of its metadata, before its directory gets its name."""
        assert self._owner  # orbax calls it on process 0
        unfinished = [path for path in self._directory.iterdir() if path.name.partition(".")[0] == str(self._saving)]
        for path in unfinished:
            write_checksum_of_metadata(path / ITEM)
            if not is_bucket(path):
                sync_tree(str(path))
        self._owner.check()

    def close(self) -> None:
        """Waits as `wait_until_finished`, and frees the directory. Leaving the context calls this."""
        try:
            self.wait_until_finished()
        finally:
            if not self._abandoned:
                self._checkpointer.close()
            if self._owner:
                self._owner.release()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except OSError as problem:
            if error is None:
                raise
            error.add_note(f"jaxpp: {problem}")


def _checksums(stored: Mapping[str, tuple[Any, Held]]) -> dict[str, Any]:
    """Returns the checksums to save with the notes: those for the leaves that are not `jax.Array`s."""
    leaves = {
        name: checksum(each)
        for name, (each, held) in stored.items()
        if isinstance(each, np.ndarray) and not held.is_empty
    }
    return {"leaves": leaves}


def _meet_in_background(*, key: str, timeout_ms: int) -> None:
    """Waits at orbax's barrier between the processes; raises if one of them is gone."""
    if jax.process_count() > 1:
        store = _jobs.key_value_store()
        barrier = partial(store.wait_at_barrier, key, timeout_ms)
        job.interruptible(barrier, "all processes to write their parts of a checkpoint", job.other_processes())
