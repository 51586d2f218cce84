"""Reads the data of pages, and finds what they show."""

import base64
import gzip
import json
import re
from typing import Any

from unit.browser import Browser


def data_of(page: bytes) -> dict[str, Any]:
    """Returns the data of a page."""
    found = re.search(rb'id="data">([^<]*)<', page)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def place(tab: Browser, step: int, time: float, mesh: int) -> tuple[float, float]:
    """Where the window shows a mesh at a time."""
    x, y = tab.evaluate(
        f"(() => {{ const step = data.steps[{step}], box = step.canvas.getBoundingClientRect(), y = {mesh} + 0.5;"
        f" return [box.left + xOf(step.canvas, {time} / data.quantum), box.top + AXIS + y * step.row]; }})()"
    )
    return x, y
