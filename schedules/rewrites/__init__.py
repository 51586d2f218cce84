"""Changes of a finished schedule. Each returns a new, checked schedule."""

from __future__ import annotations

from jaxpp.schedules.rewrites.fill import bubbles_used, fill
from jaxpp.schedules.rewrites.freezing import freeze_ratios
from jaxpp.schedules.rewrites.host import offload
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import freeze, insert, recompute, split_backward, subdivide

__all__ = [
    "bubbles_used",
    "evict",
    "fill",
    "freeze",
    "freeze_ratios",
    "insert",
    "offload",
    "recompute",
    "split_backward",
    "subdivide",
]
