"""A text in the output of a notebook's cell, which changes in place."""

import importlib
import sys
from typing import Any


class LiveText:
    """A text in the output of the cell that runs when it is first shown."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Shows a text in place of the last one."""
        data = {"text/plain": text}
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def live_text() -> LiveText | None:
    """Returns a text for the notebook in which this process runs; None elsewhere, as in IPython on a terminal."""
    module = sys.modules.get("IPython")  # a kernel has imported it
    shell = module.get_ipython() if module else None
    return None if getattr(shell, "kernel", None) is None else LiveText()
