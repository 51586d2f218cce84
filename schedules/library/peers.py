"""Schedules that keep activations on other meshes."""

from __future__ import annotations

from dataclasses import replace

from jaxpp.schedules.library.classic import one_f_one_b
from jaxpp.schedules.peers import evict
from jaxpp.schedules.schedule import Schedule


def bpipe(meshes: int, microbatches: int) -> Schedule:
    """1F1B whose first meshes keep some of their activations on the last ones (BPipe, Kim et al., ICML 2023).

    Mesh i and mesh p - 1 - i together keep p + 1 activations, and each keeps at most ceil((p + 2) / 2). The schedule
    takes as long as 1F1B if the transfer of an activation takes no longer than a forward.

    Args:
        meshes: number of meshes p, at least 1.
        microbatches: at least 1.

    Raises:
        ScheduleError: a count is below 1.
    """
    return replace(evict(one_f_one_b(meshes, microbatches)), name="bpipe")
