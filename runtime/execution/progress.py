"""Reports the progress of long work on stderr: as a bar on a terminal, otherwise as a line now and then."""

import sys
import time
from collections.abc import Callable, Collection
from typing import TextIO

import jax
from tqdm import tqdm

FIRST, EVERY = 10.0, 30.0
"""Seconds until the first line, and then between two lines. Shorter work prints no line."""


class Progress:
    """The progress of `total` pieces of work, for a thread that waits for them.

    what: the name of the work, such as "compiling stage programs".
    bar: whether to draw a bar if the stream is a terminal. Otherwise lines are printed there too.
    """

    def __init__(
        self,
        what: str,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        bar: bool = True,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._what, self._total, self._done = what, total, 0
        self._clock, self._start = clock, clock()
        self._next = FIRST
        # disable=None: there is no bar unless the stream is a terminal.
        self._bar = tqdm(total=total, desc=what, file=self._stream, leave=False, disable=None if bar else True)

    def wait(self) -> float | None:
        """Returns the seconds until `report` may print a line, at least 0; None if there is a bar."""
        return None if self._is_bar else max(self._next - self._seconds, 0.0)

    def report(self, done: int, running: Collection[str]) -> None:
        """Reports how many pieces are done, and the names of the running ones."""
        self._bar.update(done - self._done)
        self._done = done
        if not self._is_bar and self._seconds >= self._next:
            self._next = self._seconds + EVERY
            shown = ", ".join(sorted(running)[:3]) + (", ..." if len(running) > 3 else "")
            now = f", now {shown}" if shown else ""
            self._say(f"{self._what}: {done} of {self._total} after {self._seconds:.0f} s{now}")

    def close(self) -> None:
        """Ends the bar. After earlier lines, prints a last one if all pieces are done."""
        self._bar.close()
        if self._next > FIRST and self._done == self._total:
            self._say(f"{self._what}: all {self._total} after {self._seconds:.0f} s")

    @property
    def _is_bar(self) -> bool:
        return not self._bar.disable

    @property
    def _seconds(self) -> float:
        return self._clock() - self._start

    def _say(self, text: str) -> None:
        process = f"process {jax.process_index()}: " if jax.process_count() > 1 else ""
        print(f"jaxpp: {process}{text}", file=self._stream, flush=True)
