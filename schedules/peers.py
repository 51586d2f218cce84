"""Activations that wait for their backward on another mesh, so that all meshes keep about as many."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from jaxpp.schedules.check import check
from jaxpp.schedules.errors import ScheduleError, whole_number
from jaxpp.schedules.memory import waiting
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Task
from jaxpp.schedules.timeline import Life, Timeline, timelines


def evict(schedule: Schedule, limit: int | None = None, peers: Sequence[int] | None = None) -> Schedule:
    """Let meshes that keep many activations hand some to meshes that keep few (BPipe, Kim et al., ICML 2023).

    An activation leaves right after its forward, and comes back one cell before its backward, both on the net track,
    beside the tasks of the meshes. In 1F1B mesh i keeps p - i activations. If it evicts to mesh p - 1 - i each of them
    keeps at most ceil((p + 2) / 2), in the same time as long as a copy takes no longer than a forward.

    What leaves is as few activations as the limit asks for. One that leaves is counted on its mesh until the end of the
    cell after its forward, and on its peer from there on, until it comes back. Of one that is recomputed it is what the
    recompute reads that leaves, and comes back one cell before that; the limit counts it like any other. Those that go
    to the memory of the host (`offload`) still do, and only what stays may leave.

    Args:
        schedule: without evicted activations so far; each mesh runs backwards in the order of its forwards.
        limit: the most that a mesh may keep, in (stage, microbatch) pairs; None: for each pair of peers half of what
            both keep, and a half more, rounded up.
        peers: for each mesh the one that takes what it evicts; None: the last for the first, and so on inwards.

    Raises:
        ScheduleError: the peers are no meshes, activations are evicted already, or the limit can't be kept.
    """
    meshes = schedule.meshes
    takers = _checked_peers(peers, meshes)
    evicted = next((task for task in schedule if task.kind == "evict"), None)
    if evicted is not None:
        raise ScheduleError(f"evict: {schedule.name} has {evicted.words} already")
    if limit is not None:
        whole_number(limit, "the limit of evict", least=2)
    kept = waiting(schedule)
    offloaded = {task.unit for task in schedule if task.kind == "offload"}
    rows = [
        replace(row, lives=[life for life in row.lives if life.unit not in offloaded]) for row in timelines(schedule)
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
    """The activations that leave the first mesh of a pair for the second, as few as keep both to the limit.

    Without a limit to the least that is possible, from half of what both keep on: less than that can't be done where
    some are offloaded.
    """
    home, peer = pair
    least = limit or (kept[home] + kept[peer] + 2) // 2
    if kept[home] <= least:
        return []
    lives = rows[home].lives
    if any(one.read > two.read for one, two in itertools.pairwise(lives)):
        raise ScheduleError(f"evict: mesh {home} of {name} does not run its backwards in the order of its forwards")
    limits = range(least, least + 1 if limit else max(rows[home].alive))
    # What keeps to a limit keeps to higher ones.
    index = bisect_left(limits, True, key=lambda most: _fewest(rows[home], rows[peer], most) is not None)
    if index < len(limits):
        return _fewest(rows[home], rows[peer], limits[index]) or []
    if limit is None:
        return []
    raise ScheduleError(
        f"evict: meshes {home} and {peer} of {name} cannot keep to {limit} activations: give a higher limit"
    )


def _fewest(home: Timeline, peer: Timeline, limit: int) -> list[Life] | None:
    """As few activations of a mesh as must leave it for a peer, so that both keep to the limit; None if they can't.

    Let S(k) be how many of the first k activations leave. Backwards run in the order of forwards, so those that may be
    away in a cell are neighbours. Thus each cell of either mesh bounds a difference S(b) - S(a), and the shortest paths
    over these bounds are the S with the least S(n).
    """
    lives = home.lives
    made, read = [life.made for life in lives], [life.read for life in lives]
    leaves, returns = [home.ends[at] for at in made], [home.starts[at - 1] for at in read]
    bounds = [bound for k in range(len(lives)) for bound in ((k, k + 1, 1), (k + 1, k, 0))]
    for at in range(len(home.starts)):
        first, last = bisect_right(read, at + 1), bisect_left(made, at - 1)  # those with made + 1 < at < read - 1
        if home.alive[at] > limit:
            bounds.append((max(first, last), first, limit - home.alive[at]))
    for at, (start, end) in enumerate(zip(peer.starts, peer.ends, strict=True)):
        first, last = bisect_right(returns, start), bisect_left(leaves, end)
        if first < last:
            bounds.append((first, last, limit - peer.alive[at]))
    counts = _shortest_paths(sorted(bounds, reverse=True), len(lives))
    return None if counts is None else [life for k, life in enumerate(lives) if counts[k] < counts[k + 1]]


def _shortest_paths(bounds: Sequence[tuple[int, int, int]], source: int) -> list[int] | None:
    """The lengths of the shortest paths from the last node, `source`, over edges (from, to, length).

    None where a cycle has a length below 0 (Bellman-Ford).
    """
    lengths = [math.inf] * source + [0]
    for _ in range(source + 2):
        changed = False
        for start, end, length in bounds:
            if lengths[start] + length < lengths[end]:
                lengths[end] = lengths[start] + length
                changed = True
        if not changed:
            return [int(length) for length in lengths]
    return None
