"""Activations that wait for their backward on another mesh, so that all meshes keep similar numbers of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from jaxpp.schedules.engine.activations import waiting
from jaxpp.schedules.engine.timeline import Life, Timeline, timelines
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.schedule import Schedule, check_type
from jaxpp.schedules.model.task import Task


def evict(schedule: Schedule, limit: int | None = None, peers: Sequence[int] | None = None) -> Schedule:
    """Lets meshes that keep many activations send some to meshes that keep few (BPipe, Kim et al., ICML 2023).

    An activation leaves right after its forward, and comes back one cell before its backward. Both moves use the `net`
    resource, beside the tasks of the meshes. In 1F1B mesh i keeps p - i activations. If it evicts to mesh p - 1 - i,
    each mesh keeps at most ceil((p + 2) / 2). The time is the same if a move takes no longer than a forward.

    No more activations leave than the limit requires. An activation that leaves counts on its mesh until the end of the
    cell after its forward, and then on its peer until it comes back. If a stage is recomputed, the input that the
    recompute reads leaves, and comes back one cell before the recompute. The limit counts it like an activation.

    Activations that go to the host (`offload`) still do so, and are not evicted. An activation also stays if the peer
    holds its stage, too.

    Args:
        schedule: a schedule without evicted activations.
        limit: the most activations that a mesh may keep, in (stage, microbatch) pairs. None: for each pair of peers
            half of the activations that both keep, plus one half, rounded up.
        peers: for each mesh the mesh that takes its evicted activations. None: mesh p - 1 - i for mesh i.

    Raises:
        ScheduleError: when the peers are no meshes, activations are already evicted, or the limit can't be kept.
    """
    check_type(schedule)
    meshes = schedule.meshes
    takers = _checked_peers(peers, meshes)
    evicted = next((task for task in schedule if task.kind == "evict"), None)
    if evicted is not None:
        raise ScheduleError(f"evict: {schedule.name} has {evicted.words} already")
    if limit is not None:
        whole_number(limit, "the limit of evict", least=2)
    kept = waiting(schedule)
    offloaded = {task.unit for task in schedule if task.kind == "offload"}
    homes = schedule.placement.homes
    rows = [
        replace(
            row, lives=[each for each in row.lives if each.unit not in offloaded and peer not in homes[each.unit[0]]]
        )
        for row, peer in zip(timelines(schedule), takers, strict=True)
    ]
    before: list[dict[int, list[Task]]] = [{} for _ in range(meshes)]
    for mesh, peer in enumerate(takers):
        for life in _evicted(schedule.name, (mesh, peer), rows, limit, kept):
            before[mesh].setdefault(life.read - 1, []).append(Task("load", *life.unit))
            arrives = rows[peer].first_after(rows[mesh].ends[life.made])
            before[peer].setdefault(arrives, []).append(Task("evict", *life.unit))
    cells = [row.with_tasks(tasks) for row, tasks in zip(rows, before, strict=True)]
    made = Schedule.of(schedule.name, schedule.placement, cells, schedule.kinds, schedule.skipped)
    check(made)
    most = max(waiting(made))
    if limit is not None and most > limit:  # several meshes may have one peer
        raise ScheduleError(f"evict: {schedule.name} keeps {most} activations on a mesh, with these peers, not {limit}")
    return made


def _checked_peers(peers: Sequence[int] | None, meshes: int) -> list[int]:
    if peers is None:
        return list(reversed(range(meshes)))
    found = [whole_number(peer, "a peer", least=0) for peer in peers]
    if len(found) != meshes or any(peer >= meshes for peer in found):
        raise ScheduleError(f"evict: expected the peer of each of {meshes} meshes, found {list(peers)}")
    return found


def _evicted(
    name: str, pair: tuple[int, int], rows: Sequence[Timeline], limit: int | None, kept: Sequence[int]
) -> list[Life]:
    """Returns the fewest activations that the first mesh of a pair must send to the second so that both keep the limit.

    Without a limit it finds the lowest possible limit. The search begins at half of the activations that both meshes
    keep. It goes on to higher limits where that is impossible, for example because activations are offloaded.
    """
    home, peer = pair
    least = limit or (kept[home] + kept[peer] + 2) // 2
    if kept[home] <= least:
        return []
    for most in range(least, least + 1 if limit else max(rows[home].alive)):
        found = _fewest(rows[home], rows[peer], most)
        if found is not None:
            return found
    if limit is None:
        return []
    raise ScheduleError(
        f"evict: meshes {home} and {peer} of {name} cannot keep to {limit} activations: give a higher limit"
    )


def _fewest(home: Timeline, peer: Timeline, limit: int) -> list[Life] | None:
    """Returns the fewest activations that must leave a mesh for a peer so that both keep the limit; None if they can't.

    It solves an integer program. For each cell of the mesh it requires a number of activations to be away, and for each
    cell of the peer it allows a number. An activation is away in consecutive cells, so that the relaxation mostly has
    an integer solution, without a search.
    """
    lives = home.lives
    must = _members([range(life.made + 2, life.read - 1) for life in lives], len(home.alive))
    there = [(home.ends[life.made], home.starts[life.read - 1]) for life in lives]
    may = _members(
        [range(bisect_right(peer.ends, at), bisect_left(peer.starts, end)) for at, end in there], len(peer.alive)
    )
    rows = [(row, alive - limit, len(row)) for row, alive in zip(must, home.alive, strict=True) if alive > limit]
    rows += [(row, 0, limit - alive) for row, alive in zip(may, peer.alive, strict=True) if len(row) + alive > limit]
    if any(least > most for _, least, most in rows):
        return None
    if not any(least for _, least, _ in rows):
        return []
    import numpy as np  # imported here, like scipy, for a faster start
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    columns = [number for row, *_ in rows for number in row]
    starts = np.cumsum([0, *(len(row) for row, *_ in rows)])
    matrix = csr_matrix((np.ones(len(columns)), columns, starts), shape=(len(rows), len(lives)))
    least, most = (cast("Any", np.array([row[place] for row in rows], float)) for place in (1, 2))
    found = milp(
        np.arange(len(lives)) + float(len(lives) ** 2),  # among equally few, prefers the earliest
        constraints=LinearConstraint(matrix, least, most),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(lives)),
        options={"mip_rel_gap": 0.0},
    )
    return None if found.x is None else [life for life, away in zip(lives, found.x, strict=True) if away > 0.5]


def _members(cells: Iterable[range], count: int) -> list[list[int]]:
    """Returns for each of `count` cells the indices of the ranges that contain it."""
    members: list[list[int]] = [[] for _ in range(count)]
    for number, each in enumerate(cells):
        for at in each:
            members[at].append(number)
    return members
