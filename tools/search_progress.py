"""How a search goes on: a bar on a terminal, and lines now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Final, TextIO

from tqdm import tqdm

from jaxpp.schedules.search.history import proven_gap

_LOOKS: Final = 0.1
"""Seconds between two looks of a bar."""

_LINES: Final = 10.0
"""Seconds between two lines."""


@contextlib.contextmanager
def progress_of(stderr: TextIO) -> Generator[Callable[[float, float, float], None]]:
    """What to tell a search, for it to be seen: the best value, the bound, how far these are apart, the time."""
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
