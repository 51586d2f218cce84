"""The reaction to SIGTERM: all processes stop after the same step."""

import signal
from functools import partial
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

from jaxpp import _jobs
from jaxpp.runtime.processes import job


class Preemption:
    """A watch for SIGTERM that tells every process to end after the same step.

        with Preemption() as preemption:
            for step in range(steps):
                state, loss = train_step(state, batch)
                if preemption.reached(step):
                    saver.save(step, state)
                    break

    In several processes it is enough that one of them gets the signal. JAX's preemption service (on by default after
    `jax.distributed.initialize`) agrees on the step. In one process the context sets a handler of the signal while it
    lasts, so the main thread must enter the context.
    """

    def __init__(self) -> None:
        self._asked = False
        self._previous: Any = None

    def __enter__(self) -> "Preemption":
        if jax.process_count() == 1:
            self._previous = signal.signal(signal.SIGTERM, self._note)
        else:
            _jobs.start_preemption_service()
        return self

    def __exit__(self, *_: object) -> None:
        if jax.process_count() == 1:
            # None stands for a handler that was not set from Python, which can't be set again.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

    def reached(self, step: int) -> bool:
        """Whether to save after this step, and then to end.

        Args:
            step: the index of the step, one more at each call. In several processes all must ask after every step,
                with the same indices.

        Raises:
            RuntimeError: in several processes, JAX's preemption service is switched off.
            PeerError: one of the processes is gone.
        """
        if jax.process_count() == 1:
            return self._asked
        reached = partial(multihost_utils.reached_preemption_sync_point, step)
        return job.interruptible(reached, f"all processes to ask for SIGTERM after step {step}", job.other_processes())

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True
