"""What a forward keeps for the recompute of its residuals, as the user says it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxpp.ir.byte_counts import parse_bytes

INPUTS, SELECTIVE = "inputs", "selective"
EXPECTED = "expected 'inputs', 'selective', a share of a forward's FLOPs from 0 to 1, or bytes such as '4096B'"

Recompute = str | float | Mapping[int, str | float]
"""What users say of all stages, or of some: INPUTS, SELECTIVE, a share of a forward's FLOPs, or bytes."""

_ENTRY = re.compile(r"(?:(?P<stage>[0-9]{1,6}):)?(?P<keep>[^\s:]+)")


@dataclass(frozen=True)
class Keep:
    """What the forward of a stage keeps of what its backward reads; the rest is computed again.

    Attributes:
        inputs: the inputs of the stage, and nothing else.
        budget: the FLOPs of the recompute, at most, as a share of the forward's; None: any number, but no product of
            activations with weights.
        size: the bytes that are kept at most, for the fewest FLOPs, in place of a budget; None: as few as it takes.
    """

    inputs: bool = False
    budget: float | None = None
    size: int | None = None

    @property
    def repeats_products(self) -> bool:
        """Whether products with weights may be done again."""
        return self.budget is not None or self.size is not None


def parse_keep(text: str) -> dict[int | None, Keep]:
    """What each stage keeps; under None what all others keep, if the text says it: `selective`, `0:inputs 3:0.05`.

    Raises:
        ValueError: the text is not of that form.
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
    """What `parse_keep` reads. Raises ValueError, or TypeError, for what says no such thing."""
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
