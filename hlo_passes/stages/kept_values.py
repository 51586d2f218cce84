"""Parses the user's choice of the values that a forward keeps for the recompute of its residuals."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxpp.ir.byte_counts import parse_bytes

INPUTS, SELECTIVE = "inputs", "selective"
EXPECTED = "expected 'inputs', 'selective', a share of a forward's FLOPs from 0 to 1, or bytes such as '4096B'"

Recompute = str | float | Mapping[int, str | float]
"""The user's choice for all stages, or for some: INPUTS, SELECTIVE, a share of a forward's FLOPs, or bytes."""

_ENTRY = re.compile(r"(?:(?P<stage>[0-9]{1,6}):)?(?P<keep>[^\s:]+)")


@dataclass(frozen=True)
class Keep:
    """The limits within which a stage's forward keeps values for its backward; a recompute makes the other residuals.

    Attributes:
        inputs: whether only the inputs of the stage are kept.
        budget: the most FLOPs of the recompute, as a share of the forward's FLOPs; None for no limit. If neither it nor
            `size` is given, no product with weights is recomputed.
        size: the most bytes that are kept of a microbatch, with the fewest FLOPs. None keeps as few bytes as the budget
            allows.
    """

    inputs: bool = False
    budget: float | None = None
    size: int | None = None

    @property
    def repeats_products(self) -> bool:
        """Whether products with weights may be recomputed."""
        return self.budget is not None or self.size is not None


def parse_keep(text: str) -> dict[int | None, Keep]:
    """Parses a text such as `selective` or `0:inputs 3:0.05`: an entry for all other stages (None), or one per stage.

    Raises:
        ValueError: the text has another form, or two entries for the same stages.
    """
    found: dict[int | None, Keep] = {}
    for word in text.split():
        match = _ENTRY.fullmatch(word)
        keep = _keep(match["keep"]) if match else None
        if match is None or keep is None:
            raise ValueError(f"keep is '{word}', {EXPECTED}, for all stages or as STAGE:KEEP")
        stage = None if match["stage"] is None else int(match["stage"])
        if stage in found:
            raise ValueError(f"keep names {'all stages' if stage is None else f'stage {stage}'} twice: '{text}'")
        found[stage] = keep
    return found


def keep_text(recompute: Recompute | None) -> str:
    """Formats `recompute` for `parse_keep`.

    Raises:
        TypeError: a stage or a choice has the wrong type.
        ValueError: a choice is none of the allowed ones.
    """
    if recompute is None:
        return ""
    each: Mapping[Any, Any] = recompute if isinstance(recompute, Mapping) else {None: recompute}
    for stage, keep in each.items():
        if isinstance(keep, bool) or not isinstance(keep, str | int | float) or not _is_stage(stage):
            raise TypeError(f"recompute is {recompute!r}, {EXPECTED}, or a mapping from stages to these")
        if _keep(str(keep)) is None:
            raise ValueError(f"recompute is {keep!r}, {EXPECTED}")
    return " ".join(
        f"{'' if stage is None else f'{stage}:'}{str(keep).replace(' ', '')}" for stage, keep in each.items()
    )


def _is_stage(stage: object) -> bool:
    return stage is None or (isinstance(stage, int) and not isinstance(stage, bool) and 0 <= stage < 10**6)


def _keep(text: str) -> Keep | None:
    if text == INPUTS:
        return Keep(inputs=True)
    if text == SELECTIVE:
        return Keep()
    if text.endswith("B"):
        size = parse_bytes(text)
        return None if size is None else Keep(size=size)
    try:
        budget = float(text)
    except ValueError:
        return None
    return Keep(budget=budget) if 0 <= budget <= 1 else None
