"""Reports the progress of long work: a bar on a terminal, a live line in a notebook, otherwise lines on stderr."""

import sys
import time
from collections.abc import Callable, Collection
from typing import TextIO

import jax
from tqdm import tqdm

from jaxpp.runtime.execution.live import live_text

FIRST, EVERY = 10.0, 30.0
"""Seconds until the first line, and then between two lines. Shorter work prints no line."""
LIVE_FIRST, LIVE_EVERY = 1.0, 0.5
"""The same for a line that changes in place."""


class Story:
    """The lines that long work prints on stderr. In a notebook they are one output, which ends with its state."""

    def __init__(self, what: str) -> None:
        self._what, self._live = what, live_text()
        self._lines: list[str] = []

    def tell(self, line: str) -> None:
        """Tells what happened."""
        if self._live:
            self._lines.append(line)
            self.now("")
        else:
            print(f"jaxpp: {self._what}: {line}", file=sys.stderr, flush=True)

    def now(self, state: str) -> None:
        """Shows the state of the work in a notebook, in place of the last state; "" if it is done."""
        if self._live:
            self._live.show(
                "\n".join(f"jaxpp: {self._what}: {line}" for line in [*self._lines, *([state] if state else [])])
            )


class Progress:
    """The progress of `total` pieces of work, for a thread that waits for them.

    what: the name of the work, such as "compiling stage programs".
    stream: where to report; by default a notebook, or the standard error elsewhere.
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
        self._live = live_text() if stream is None else None
        self._stream = sys.stderr if stream is None else stream
        self._what, self._total, self._done = what, total, 0
        self._clock, self._start = clock, clock()
        self._first, self._every = (LIVE_FIRST, LIVE_EVERY) if self._live else (FIRST, EVERY)
        self._next = self._first
        # disable=None: there is no bar unless the stream is a terminal.
        self._bar = tqdm(total=total, desc=what, file=self._stream, leave=False, disable=None if bar else True)

    def wait(self) -> float | None:
        """Returns the seconds until `report` may say something, at least 0; None if there is a bar."""
        return None if self._is_bar else max(self._next - self._seconds, 0.0)

    def report(self, done: int, running: Collection[str]) -> None:
        """Reports how many pieces are done, and the names of the running ones."""
        self._bar.update(done - self._done)
        self._done = done
        if not self._is_bar and self._seconds >= self._next:
            self._next = self._seconds + self._every
            shown = ", ".join(sorted(running)[:3]) + (", ..." if len(running) > 3 else "")
            now = f", now {shown}" if shown else ""
            self._say(f"{self._what}: {done} of {self._total} after {self._seconds:.0f} s{now}")

    def close(self) -> None:
        """Ends the bar. After earlier lines, prints a last one if all pieces are done."""
        self._bar.close()
        if self._next > self._first and self._done == self._total:
            self._say(f"{self._what}: all {self._total} after {self._seconds:.0f} s")

    @property
    def _is_bar(self) -> bool:
        return not self._bar.disable

    @property
    def _seconds(self) -> float:
        return self._clock() - self._start

    def _say(self, text: str) -> None:
        process = f"process {jax.process_index()}: " if jax.process_count() > 1 else ""
        if self._live:
            self._live.show(f"jaxpp: {process}{text}")
        else:
            print(f"jaxpp: {process}{text}", file=self._stream, flush=True)
