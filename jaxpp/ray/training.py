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
    directory: str | os.PathLike[str],
    every: int = 100,
    keep: int | None = 2,
    on_step: Callable[[int, Any], None] | None = None,
) -> Any:
    """Make `steps` steps, going on from the last checkpoint whenever an actor dies, freezes or fails.

    Step i is `state, output = step(state, batch(i))`; checkpoint i is the state before it. With a checkpoint in
    `directory` the training goes on from there, so a driver that died is simply started again. Steps after the last
    checkpoint are made again, from the same state and with the same batches: the result is that of a run in which
    nothing happened. Needs `jaxpp[checkpoint]`.

    Args:
        cluster: where `step` runs.
        step: of `mpmd_jit_with_loop`, over a mesh of `cluster`.
        state: the first; where there is a checkpoint only its structure, shapes and dtypes count.
        batch: makes the batch of a step, the same whenever it is asked.
        steps: how many, those before the first checkpoint included.
        directory: of the checkpoints, which only the driver reads and writes.
        every: steps from checkpoint to checkpoint.
        keep: how many of them to keep.
        on_step: called as (i, output) after each step; for one that is made again, once more.

    Returns: the last state.

    Raises:
        ActorError: the same step failed three times.
        ValueError, OSError: as `jaxpp.checkpoint`.
    """
    from jaxpp import checkpoint

    like = fetched(state)
    failures: list[int] = []
    with checkpoint.Saver(directory, keep=keep) as saver:
        while True:
            done = checkpoint.latest_step(directory)
            if done is None:
                done, state = 0, like
                saver.save(0, state)
            else:
                state = checkpoint.restore(directory, like)
            try:
                for number in range(done, steps):
                    done = number
                    state, output = step(state, batch(number))
                    if on_step is not None:
                        on_step(number, output)
                    if (number + 1) % every == 0 or number + 1 == steps:
                        saver.save(number + 1, fetched(state))
                return state
            except ActorError:
                failures.append(done)
                if failures.count(done) >= ATTEMPTS:
                    raise
                saver.wait_until_finished()
                cluster.recover()
