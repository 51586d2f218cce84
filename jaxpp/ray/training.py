"""`train`: a training that outlives its actors."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxpp.ray.calls import ActorError
from jaxpp.ray.cluster import Cluster
from jaxpp.runtime.processes.fetch import fetched

ATTEMPTS = 3
"""How often one step may fail before it is taken for its own fault."""


TrainStep = Callable[[Any, Any], tuple[Any, Any]]


def train(
    cluster: Cluster,
    step: TrainStep,
    state: Any,
    batch: Callable[[int], Any],
    steps: int,
    *,
    directory: str | os.PathLike[str] | None = None,
    every: int = 100,
    keep: int | None = 2,
    on_step: Callable[[int, Any], None] | None = None,
    fewer: Callable[[int], TrainStep] | None = None,
    least: int = 1,
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
        fewer: makes the step for so many actors, over a new mesh of `cluster`, which then has as many; called once for
            each number. With it the training goes on with the actors that are left while those that died are started
            anew, and takes them in after the step during which they are ready. None: it waits for them.
        least: with how many actors it goes on, given `fewer`; it waits for others where fewer are left.

    Returns: the last state.

    Raises:
        ActorError: the same step failed three times.
        ValueError, OSError: as `jaxpp.checkpoint`; ValueError also when `least` is not between 1 and the actors of the
            cluster, and when a dead actor is waited for that does not start.
    """
    count = len(cluster.processes)
    if not 1 <= least <= count:
        raise ValueError(f"least must be between 1 and the {count} actors of the cluster, not {least}")
    like = fetched(state)
    with _Memory() if directory is None else _Directory(directory, keep, like) as states:
        if states.latest() is None:
            states.save(0, like)
            states.settle()
        shown: Callable[[int, Any], None] = on_step or (lambda number, output: None)
        return _ActorTraining(cluster, {count: step}, batch, steps, every, shown, fewer, least, states).run()


@dataclass
class _ActorTraining:
    """What `train` was given, and how far it is.

    made: the step for each number of actors.
    done: the steps that were made.
    """

    cluster: Cluster
    made: dict[int, TrainStep]
    batch: Callable[[int], Any]
    steps: int
    every: int
    on_step: Callable[[int, Any], None]
    fewer: Callable[[int], TrainStep] | None
    least: int
    states: "_Memory | _Directory"
    done: int = 0

    def run(self) -> Any:
        """Make all steps; returns the last state."""
        failures: list[int] = []
        recovers = False
        while True:
            try:
                if recovers:
                    self.cluster.recover(self.least if self.fewer else None)
                recovers = True
                if (last := self._run_until_actors_return()) is not None:
                    return last[0]
            except ActorError:
                failures.append(self.done)
                if failures.count(self.done) >= ATTEMPTS:
                    raise
            self.states.settle()

    def _run_until_actors_return(self) -> tuple[Any] | None:
        """Go on from the last checkpoint; the last state alone in a tuple, if all steps are made."""
        found = self.states.latest()
        assert found is not None  # `train` has saved the first
        self.done, state = found
        step = self._step()
        for number in range(self.done, self.steps):
            self.done = number
            state, output = step(state, self.batch(number))
            self.on_step(number, output)
            is_last = number + 1 == self.steps
            returns = self.fewer is not None and not is_last and self.cluster.has_newcomers()
            if returns or is_last or (number + 1) % self.every == 0:
                self.states.save(number + 1, fetched(state))
            if returns:
                return None
        return (state,)

    def _step(self) -> TrainStep:
        """The step for as many actors as take part now."""
        count = len(self.cluster.processes)
        if count not in self.made:
            assert self.fewer is not None  # without it `recover` waits for all
            self.made[count] = self.fewer(count)
        return self.made[count]


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
