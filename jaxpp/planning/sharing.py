"""Simulates activities that wait for one another and share processors."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Activity(NamedTuple):
    """An activity that takes time, such as a task or a message.

    Attributes:
        seconds: its duration if it has its processor for itself.
        processor: the index of the processor that it runs on; None if it needs no processor.
        after: the indices of the activities that must end before it starts.
    """

    seconds: float
    processor: int | None
    after: Sequence[int]


@dataclass
class _Processor:
    """A processor that divides its time equally among the activities that run on it.

    Attributes:
        now: the time up to which it was simulated.
        left: the seconds that each running activity still needs.
        changes: how often the set of running activities has changed.
    """

    now: float
    left: dict[int, float]
    changes: int = 0

    def advance(self, now: float) -> None:
        """Simulates it up to the time `now`, and counts a change."""
        if self.left:
            share = (now - self.now) / len(self.left)
            for each in self.left:
                self.left[each] -= share
        self.now, self.changes = now, self.changes + 1

    def next_end(self) -> tuple[float, int]:
        """Returns the time at which the first running activity ends, and its index."""
        first = min(self.left, key=self.left.__getitem__)
        return self.now + self.left[first] * len(self.left), first


def times(activities: Sequence[Activity]) -> list[tuple[float, float]]:
    """Returns the start and the end of each activity; each one starts as soon as those it waits for have ended.

    Activities that run on one processor at the same time get equal shares of it, as from an operating system. The
    simulation takes O(n log n) if few activities share a processor.

    Args:
        activities: the activities; each one comes after those that it waits for.
    """
    waits = [len(each.after) for each in activities]
    followers: list[list[int]] = [[] for _ in activities]
    for number, each in enumerate(activities):
        for before in each.after:
            followers[before].append(number)
    found = [(0.0, 0.0)] * len(activities)
    processors: dict[int, _Processor] = {}
    # (time, whether it is a start, activity, changes of its processor). At equal times, ends come before starts. An end
    # is skipped if its processor has changed since then: another end was pushed.
    heap = [(0.0, 1, number, 0) for number, each in enumerate(activities) if not each.after]
    heapq.heapify(heap)

    def look(processor: _Processor) -> None:
        if processor.left:
            end, number = processor.next_end()
            heapq.heappush(heap, (end, 0, number, processor.changes))

    while heap:
        now, is_start, number, changes = heapq.heappop(heap)
        activity = activities[number]
        processor = None
        if activity.processor is not None:
            processor = processors.setdefault(activity.processor, _Processor(now, {}))
        if is_start:
            found[number] = now, now
            if processor is None:
                heapq.heappush(heap, (now + activity.seconds, 0, number, 0))
            else:
                processor.advance(now)
                processor.left[number] = activity.seconds
                look(processor)
            continue
        if processor is not None:
            if changes != processor.changes:
                continue
            processor.advance(now)
            del processor.left[number]
            look(processor)
        found[number] = found[number][0], now
        for follower in followers[number]:
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(heap, (now, 1, follower, 0))
    return found
