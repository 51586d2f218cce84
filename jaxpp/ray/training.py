"""`train`: a training that outlives its actors."""

import os
from collections.abc import Callable
from typing import Any

from jaxpp.ray.calls import ActorError
from jaxpp.ray.cluster import Cluster
from jaxpp.runtime.processes.fetch import fetched

ATTEMPTS = 3
"""How often one step may fail before it is taken for its own fault."""


def train(
    cluster: Cluster,
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    batch: Callable[[int], Any],
    steps: int,
    *,
    directory: str | os.PathLike[str] | None = None,
    every: int = 100,
    keep: int | None = 2,
    on_step: Callable[[int, Any], None] | None = None,
) -> Any:
    """Make `steps` steps, going on from the last checkpoint whenever an actor dies, freezes or fails.

    Step i is `state, output = step(state, batch(i))`; checkpoint i is the state before it. With a checkpoint in
    `directory` the training goes on from there, so a driver that died is simply started again. Steps after the last
    checkpoint are made again, from the same state and with the same batches: the result is that of a run in which
    nothing happened. A directory needs `jaxpp[checkpoint]`. Without one the driver keeps the last checkpoint in its
    memory, which has to hold the whole state: with `every=1` an actor that dies then costs one step.

    Args:
        cluster: where `step` runs.
        step: of `mpmd_jit_with_loop`, over a mesh of `cluster`.
        state: the first; where there is a checkpoint only its structure, shapes and dtypes count.
        batch: makes the batch of a step, the same whenever it is asked.
        steps: how many, those before the first checkpoint included.
        directory: of the checkpoints, which only the driver reads and writes; None: its memory.
        every: steps from checkpoint to checkpoint.
        keep: how many of them to keep in the directory.
        on_step: called as (i, output) after each step; for one that is made again, once more.

    Returns: the last state.

    Raises:
        ActorError: the same step failed three times.
        ValueError, OSError: as `jaxpp.checkpoint`.
    """
    like = fetched(state)
    failures: list[int] = []
    with _Memory() if directory is None else _Directory(directory, keep, like) as states:
        while True:
            found = states.latest()
            if found is None:
                found = 0, like
                states.save(*found)
            done, state = found
            try:
                for number in range(done, steps):
                    done = number
                    state, output = step(state, batch(number))
                    if on_step is not None:
                        on_step(number, output)
                    if (number + 1) % every == 0 or number + 1 == steps:
                        states.save(number + 1, fetched(state))
                return state
            except ActorError:
                failures.append(done)
                if failures.count(done) >= ATTEMPTS:
                    raise
                states.settle()
                cluster.recover()


class _Memory:
    """The last checkpoint, in the memory of the driver."""

    def __init__(self) -> None:
        self._last: tuple[int, Any] | None = None

    def latest(self) -> tuple[int, Any] | None:
        """The number of the checkpoint, and the state; None if there is none."""
        return self._last

    def save(self, step: int, state: Any) -> None:
        """Keep a state."""
        self._last = step, state

    def settle(self) -> None:
        """Wait until what was saved is safe."""

    def __enter__(self) -> "_Memory":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Directory:
    """Checkpoints in files; as `_Memory`."""

    def __init__(self, directory: str | os.PathLike[str], keep: int | None, like: Any) -> None:
        from jaxpp import checkpoint

        self._directory, self._like, self._files = directory, like, checkpoint
        self._saver = checkpoint.Saver(directory, keep=keep)
        self.save, self.settle = self._saver.save, self._saver.wait_until_finished

    def latest(self) -> tuple[int, Any] | None:
        step = self._files.latest_step(self._directory)
        return None if step is None else (step, self._files.restore(self._directory, self._like))

    def __enter__(self) -> "_Directory":
        return self

    def __exit__(self, *error: Any) -> None:
        self._saver.__exit__(*error)
