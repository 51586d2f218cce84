"""gpt.py's checkpoints: where a training goes on, when it is saved, and that it ends when it is told to."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jaxpp

EVERY, KEPT = 10, 2


def resume(directory: Path | None, state: Any) -> tuple[Any, int]:
    """The latest state that is saved there, in numpy, and the number of its steps; or this one, and 0."""
    done = jaxpp.checkpoint.latest_step(directory) if directory else None
    if directory is None or done is None:
        return state, 0
    try:
        return jaxpp.checkpoint.restore(directory, state, step=done), done
    except ValueError as error:
        sys.exit(f"--checkpoint: {error}")


@contextmanager
def saving(directory: Path | None, last: int) -> Generator[Callable[[int, Any], bool]]:
    """A function to call after each step, with the number of steps done and the state: whether to end.

    It saves every `EVERY` steps, after the last, and when the job is told to end (SIGTERM): after the same step in all
    processes.
    """
    if directory is None:
        yield lambda done, state: False
        return
    with jaxpp.checkpoint.Saver(directory, keep=KEPT) as saver, jaxpp.checkpoint.Preemption() as preemption:

        def after(done: int, state: Any) -> bool:
            is_told = preemption.reached(done)
            if is_told or done % EVERY == 0 or done == last:
                saver.save(done, state)
            return is_told

        yield after
