"""A notebook without a kernel."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Output:
    """An output of a cell: the texts that it has shown, one in place of the other."""

    def __init__(self, text: str) -> None:
        self.texts = [text]

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.texts.append(data["text/plain"])


def in_a_notebook(monkeypatch: pytest.MonkeyPatch, kernel: Any = "a kernel") -> list[Output]:
    """Lets this process look like the kernel of a notebook; returns the outputs of its cells."""
    outputs: list[Output] = []

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Output:
        assert raw
        assert display_id
        outputs.append(Output(data["text/plain"]))
        return outputs[-1]

    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    vars(package)["get_ipython"] = lambda: SimpleNamespace(kernel=kernel)
    vars(module)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return outputs
