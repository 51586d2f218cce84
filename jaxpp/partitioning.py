"""`cuts` and `jaxpp.partition`: which layers of a step that marks all of them each stage has."""

from collections.abc import Sequence

from jaxpp.hlo_passes.loop.merge_stages import MergeStages
from jaxpp.schedules import Partition


def cuts_options(cuts: Partition | Sequence[int] | None) -> dict[str, str]:
    """The options of passes that say it: "cuts", and with a partition "schedule".

    Raises:
        TypeError: it is neither a partition nor a list of numbers.
        ValueError: a stage has no layer.
    """
    if cuts is None:
        return {}
    if isinstance(cuts, Partition):
        return {"cuts": _text(cuts.cuts), "schedule": str(cuts.schedule)}
    if not isinstance(cuts, list | tuple) or not all(type(size) is int for size in cuts):
        raise TypeError(f"cuts: expected the layers of each stage, such as [5, 5, 4, 2], found {cuts!r}")
    if not cuts or min(cuts) < 1:
        raise ValueError(f"cuts: each stage has at least one layer, found {cuts!r}")
    return {"cuts": _text(cuts)}


def _text(cuts: Sequence[int]) -> str:
    return MergeStages(",".join(map(str, cuts))).cuts
