"""The colours of kinds of tasks, the same in pictures and on pages."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

# Colour-blind readers can tell forward from backward tasks, in all shades.
_COLOURS: Final = {
    "forward": "#0072b2",
    "backward": "#d55e00",
    "input_grad": "#d9b600",
    "weight_grad": "#009e73",
    "offload": "#cc79a7",
    "reload": "#8c4a9e",
    "recompute": "#aa3377",
}
_OTHERS: Final = ("#44546a", "#8c564b", "#56b4e9", "#999933", "#ee6677")


def colours_of(kinds: Collection[str]) -> dict[str, str]:
    """Returns the colour of each kind; the kinds of the library come first."""
    others = sorted(kind for kind in kinds if kind not in _COLOURS)
    extra = {kind: _OTHERS[number % len(_OTHERS)] for number, kind in enumerate(others)}
    return {kind: colour for kind, colour in _COLOURS.items() if kind in kinds} | extra
