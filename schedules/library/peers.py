"""Schedules that keep activations on the meshes of others."""

from __future__ import annotations

from dataclasses import replace

from jaxpp.schedules.library.classic import one_f_one_b
from jaxpp.schedules.peers import evict
from jaxpp.schedules.schedule import Schedule


def bpipe(meshes: int, microbatches: int) -> Schedule:
    """1F1B whose first meshes keep some of their activations on the last ones (BPipe, Kim et al., ICML 2023).

    Mesh i and mesh p - 1 - i keep p + 1 activations together: at most ceil((p + 2) / 2) each, in the time of 1F1B as
    long as an activation moves in the time of a forward.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    return replace(evict(one_f_one_b(meshes, microbatches)), name="bpipe")
