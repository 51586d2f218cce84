"""`train`: a training that goes on after actors die."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxpp.ray.calls import ActorError
from jaxpp.ray.cluster import Cluster
from jaxpp.runtime.processes.fetch import fetched

ATTEMPTS = 3
"""The number of failures of one step after which `train` gives up."""


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
    """Makes `steps` steps. Goes on from the last checkpoint whenever an actor dies, freezes or fails.

    Step i is `state, output = step(state, batch(i))`, and checkpoint i is the state before it. If `directory` has a
    checkpoint, the training goes on from there: a driver that died is simply started again. Steps after the last
    checkpoint are made again, from the same state and with the same batches, so failures do not change the result.
    `directory` needs `jaxpp[checkpoint]`. Without it the driver keeps the last checkpoint in its memory, which has to
    hold the whole state. With `every=1` a dead actor then costs one step.

    Args:
        cluster: the cluster that runs `step`.
        step: a step of `mpmd_jit_with_loop`, over a mesh of `cluster`.
        state: the first state. If there is a checkpoint, only its structure, shapes and dtypes count.
        batch: makes the batch of a step, the same at each call.
        steps: the number of steps, including those before a checkpoint.
        directory: the directory of the checkpoints, which only the driver reads and writes. None: its memory.
        every: the number of steps between two checkpoints.
        keep: the number of checkpoints to keep in the directory.
        on_step: called as (i, output) after each step, again if the step is made again.
        fewer: makes the step for a given number of actors, over a new mesh of `cluster`. Called once for each number.
            The training then goes on with the living actors, and new actors join after the step during which they
            have started. None: the training waits for all actors.
        least: with `fewer`, the least number of actors with which the training goes on; it waits if fewer live.

    Returns: the last state.

    Raises:
        ActorError: the same step failed three times.
        ValueError, OSError: as `jaxpp.checkpoint`. Also ValueError if `least` is not between 1 and the number of
            actors, or if a replacement of a dead actor does not start in time.
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
    """The arguments of `train`, and the progress of the training.

    made: the step for each number of actors.
    done: the number of finished steps.
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
        """Makes all steps; returns the last state."""
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
        """Makes steps from the last checkpoint on; returns (last state,), or None to let new actors join."""
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
        """Returns the step for the number of actors that take part now."""
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
        """Returns the number and the state of the checkpoint; None before the first."""
        return self._last

    def save(self, step: int, state: Any) -> None:
        """Keeps a state."""
        self._last = step, state

    def settle(self) -> None:
        """Does nothing: a state in memory needs no wait."""

    def __enter__(self) -> "_Memory":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Directory:
    """Checkpoints in files, with the interface of `_Memory`."""

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
