"""SIGTERM: the step at which all processes stop."""

import signal
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

from jaxpp import _jobs
from jaxpp.runtime.processes import job


class Preemption:
    """Notes that the job was asked to end (SIGTERM), and tells every process after the same step.

        with Preemption() as preemption:
            for step in range(steps):
                state, loss = train_step(state, batch)
                if preemption.reached(step):
                    saver.save(step, state)
                    break

    In several processes it is enough that one of them gets the signal: JAX's preemption service (on by default after
    `jax.distributed.initialize`) agrees on the step. In one process a handler of the signal is set for as long as the
    context lasts: enter it in the main thread.
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
            # None stands for a handler that was not set from Python: there is no way to set it again.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

    def reached(self, step: int) -> bool:
        """Whether to save after this step, and to end.

        Args:
            step: one more each time. In several processes all ask, each after every step, with the same numbers.

        Raises:
            RuntimeError: in several processes, JAX's preemption service is switched off.
            PeerError: one of the processes is gone.
        """
        if jax.process_count() == 1:
            return self._asked
        return job.interruptible(lambda: multihost_utils.reached_preemption_sync_point(step))

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True
