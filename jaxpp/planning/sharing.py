"""When activities run that wait for one another and share processors."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Activity(NamedTuple):
    """What takes time.

    Attributes:
        seconds: that it takes alone.
        processor: which it shares with what else runs there; None of what needs none.
        after: the numbers of the activities that it waits for.
    """

    seconds: float
    processor: int | None
    after: Sequence[int]


@dataclass
class _Processor:
    """Divides its time equally among what runs on it."""

    now: float
    left: dict[int, float]
    """The seconds that each activity still needs."""
    changes: int = 0

    def advance(self, now: float) -> None:
        """Let time pass."""
        if self.left:
            share = (now - self.now) / len(self.left)
            for each in self.left:
                self.left[each] -= share
        self.now, self.changes = now, self.changes + 1

    def next_end(self) -> tuple[float, int]:
        """When the first of them ends, and which."""
        first = min(self.left, key=self.left.__getitem__)
        return self.now + self.left[first] * len(self.left), first


def times(activities: Sequence[Activity]) -> list[tuple[float, float]]:
    """The start and the end of each activity, each as soon as what it waits for has ended.

    What runs on one processor at the same time gets equal shares of it, as an operating system gives them. O(n log n)
    where few share one.

    Args:
        activities: in an order in which each comes after those that it waits for.
    """
    waits = [len(each.after) for each in activities]
    followers: list[list[int]] = [[] for _ in activities]
    for number, each in enumerate(activities):
        for before in each.after:
            followers[before].append(number)
    found = [(0.0, 0.0)] * len(activities)
    processors: dict[int, _Processor] = {}
    # (time, is a start, activity, changes of its processor): ends first; what a change has made wrong is passed by.
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
