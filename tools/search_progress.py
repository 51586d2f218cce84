"""The progress of a search: a bar on a terminal, and lines now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Final, TextIO

from tqdm import tqdm

from jaxpp.schedules.search.history import proven_gap

_LOOKS: Final = 0.1
"""Seconds between two updates of a bar."""

_LINES: Final = 10.0
"""Seconds between two lines."""


@contextlib.contextmanager
def progress_of(stderr: TextIO) -> Generator[Callable[[float, float, float], None]]:
    """Yields a function that shows the progress, given the share of the search that is done, its value and bound."""
    with contextlib.ExitStack() as stack:
        bar = None
        if stderr.isatty():
            form = "{percentage:3.0f} %|{bar}| {elapsed} {postfix}"
            bar = stack.enter_context(tqdm(total=100, file=stderr, leave=False, bar_format=form))
        began = time.monotonic()
        told = began if bar is None else began - _LOOKS

        def tell(share: float, value: float, bound: float) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told < (_LINES if bar is None else _LOOKS):
                return
            told = now
            words = f"{value:.6g}, at least {bound:.6g}, gap {proven_gap(value, bound):.1%}"
            if bar is None:
                print(f"{share:4.0%} {now - began:4.0f} s: {words}", file=stderr, flush=True)
                return
            bar.set_postfix_str(words, refresh=False)
            bar.n = round(100 * min(share, 1.0))
            bar.refresh()

        yield tell
