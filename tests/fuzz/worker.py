"""A process that tries seeds, so that a crash or a hang is found and ends nothing else."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")
SEEDS_EACH = 60
"""The seeds after which a process is replaced: XLA keeps what it compiled."""

Serve = Callable[[Connection], None]
"""What a process of a worker does: it tries each seed that arrives, and sends what came of it."""


class Worker:
    """A process in which `serve` tries seeds, and which is replaced when it dies or hangs."""

    def __init__(self, serve: Serve, timeout: float) -> None:
        """`timeout` has the seconds after which a seed counts as one that never ends."""
        self._serve, self._timeout = serve, timeout
        self.start()

    def start(self) -> None:
        """Start a process."""
        self.connection, child = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=self._serve, args=(child,))
        self.process.start()
        child.close()
        self.left = SEEDS_EACH

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()

    def run(self, seed: int) -> dict[str, Any]:
        """Returns the fields of the outcome of a seed."""
        if not self.left:
            self.stop()
            self.start()
        self.left -= 1
        try:
            self.connection.send(seed)
            if self.connection.poll(self._timeout):
                return self.connection.recv()
            problem = f"it did not end within {self._timeout:.0f} s"
        except (EOFError, OSError):
            self.process.join(10)
            problem = f"the process died with code {self.process.exitcode}"
        self.stop()
        self.start()
        return {"seed": seed, "wrong": problem}
