"""Predicts a step of which several meshes share a processor: `predict` of `jaxpp.planning`, with shared processors.

On a machine with more processes than cores, a task takes longer while another one runs on its core.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxpp.ir.program import Place, Program, Receive, Send
from jaxpp.planning import Link
from jaxpp.planning.estimate import Network, busiest_bytes, call_seconds, message_seconds
from jaxpp.runtime.execution.order import merged_order


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


def shared_step(
    program: Program, seconds: Sequence[Sequence[float]], network: Network, ends: Link, processors: Sequence[int]
) -> float:
    """Returns the seconds of a step.

    Args:
        program: the program of the step.
        seconds: the seconds of the calls of each mesh, in its order, if nothing else runs on its processor.
        network: the links of the messages.
        ends: how long a message keeps the processor busy at each end, at most half of its time.
        processors: the index of the processor that runs each mesh.
    """
    activities: list[Activity] = []
    lines: dict[object, int] = {}
    makers: dict[Place, int] = {}
    sent: dict[int, int] = {}
    of_calls = [iter(each) for each in seconds]

    def add(seconds: float, processor: int | None, after: Iterable[int], line: object) -> int:
        number = len(activities)
        before = dict.fromkeys((*after, *([lines[line]] if line in lines else ())))
        activities.append(Activity(seconds, processor, tuple(before)))
        lines[line] = number
        return number

    for mesh, each in merged_order(program):
        if isinstance(each, Receive):
            makers[mesh, each.result] = sent[each.channel]
        elif isinstance(each, Send):
            made = [makers[mesh, each.operand]] if (mesh, each.operand) in makers else []
            taken = message_seconds(program, each.channel, network)
            end = min(ends.latency + busiest_bytes(program, each.channel) / ends.bandwidth, taken / 2)
            offered = add(end, processors[mesh], made, ("end", mesh))
            number = add(taken - 2 * end, None, (offered,), (mesh, each.destination))
            sent[each.channel] = add(end, processors[each.destination], (number,), ("end", each.destination))
        else:
            made = [makers[mesh, register] for register in each.operands if (mesh, register) in makers]
            taken, line = call_seconds(program, mesh, each, {each.function: next(of_calls[mesh])}, network)
            number = add(taken, processors[mesh] if line == mesh else None, made, line)
            makers.update(((mesh, register), number) for register in each.results)
    return max(end for _, end in times(activities))
