"""The messages of two processes, played by two objects that hand them to each other."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxpp.runtime.processes.meetings import MESSAGE, Meeting, MeetingKind, Meetings, identity_of
from jaxpp.runtime.processes.waiting import TransferError

STEP = Meeting(MeetingKind.STEP, identity_of("step"), 1, "the step `train`\nbatch[0]: float32[4]\nbatch[1]: float32[4]")
OTHER_SHAPE = Meeting(
    MeetingKind.COMPILE, identity_of("compile"), 0, "the step `train`\nbatch[0]: float32[4]\nbatch[1]: int8[2]"
)
GIVEN = dataclasses.replace(STEP, names=["a", "b", "c"], digests=[1, 2, 3], sampling="sample")


def pair(cut: bool = False) -> tuple[Meetings, Meetings]:
    """Meetings of processes 0 and 1. cut: what a message has beyond its first numbers is lost, as without a wire."""
    queues: list[collections.deque[Any]] = [collections.deque(), collections.deque()]
    told: dict[tuple[int, bytes], str] = {}

    def make(me: int) -> Meetings:
        def post(peers: Sequence[int], message: Sequence[int]) -> None:
            assert list(peers) == [1 - me]
            queues[1 - me].append(np.array(message[: MESSAGE if cut else None], np.uint32))

        found = Meetings(me, post, lambda peer: queues[me], lambda queue, waiting: queue.popleft())
        found.describe = lambda process, identity: told.get((process, identity), "")
        return found

    told.update({(1, each.identity): each.text for each in (STEP, OTHER_SHAPE)})
    return make(0), make(1)


def errors(own: Meeting, other: Meeting, cut: bool = False) -> list[str]:
    """What process 0 and process 1 are told when they make these calls; empty where they agree."""
    both = pair(cut)
    for each, meeting in zip(both, (own, other), strict=True):
        each.begin([1 - each.me], meeting)
    found: list[str] = []
    for each in both:
        try:
            each.check(1 - each.me)
            found.append("")
        except TransferError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("meeting", [STEP, OTHER_SHAPE, GIVEN])
def test_calls_that_agree(meeting: Meeting) -> None:
    assert errors(meeting, meeting) == ["", ""]
    assert errors(meeting, meeting, cut=True) == ["", ""]


def test_messages_are_read_in_their_order() -> None:
    """One that needs nothing of the other process reads its message when the next call begins, whatever that is."""
    first, second = pair()
    second.begin([0], OTHER_SHAPE)
    first.begin([1], OTHER_SHAPE)
    second.begin([0], STEP)
    first.begin([1], STEP)
    assert len(first.unread[1]) == 1
    first.check(1)
    assert not first.unread[1]


def test_calls_that_differ() -> None:
    lines = ":\n  process 0: batch[1]: float32[4]\n  process 1: batch[1]: int8[2]"
    told, unknown = errors(STEP, OTHER_SHAPE)
    assert told == f"process 1 compiles the step `train`, process 0 calls the step `train`{lines}"
    assert unknown == "process 0 calls something else, process 1 compiles the step `train`"
    other = dataclasses.replace(STEP, identity=identity_of("another"))
    assert errors(other, STEP)[0] == "process 1 calls another program than process 0"
    late = dataclasses.replace(STEP, count=2)
    assert errors(STEP, late)[0] == "process 1 is at step 2, process 0 at step 1"


def test_arguments_that_differ() -> None:
    other = dataclasses.replace(GIVEN, digests=[1, 5, 7])
    told = "argument `b` (and 1 more) has other numbers in process 1 than in process 0: "
    assert errors(GIVEN, other)[0].startswith(told)
    assert errors(GIVEN, other, cut=True) == ["", ""]


@pytest.mark.parametrize("change", [{"names": ["a", "b", "d"]}, {"sampling": "all"}, {"names": [], "digests": []}])
def test_what_cannot_be_compared(change: dict[str, Any]) -> None:
    other = dataclasses.replace(GIVEN, **{"digests": [4, 5, 6], **change})
    assert errors(GIVEN, other) == ["", ""]


def test_steps_that_leave_out_other_tasks() -> None:
    one, other = (dataclasses.replace(GIVEN, left_out=number) for number in (0, 7))
    assert errors(one, other) == [
        f"process {1 - me} leaves out other weight gradients than process {me}: "
        "give `jaxpp.frozen` the same stages in every process"
        for me in (0, 1)
    ]


def test_an_exchange_tells_the_number_of_the_other_process() -> None:
    """Each process numbers its texts by itself: one that has failed in between is behind."""
    first, second = pair()
    for meetings, number in ((first, 3), (second, 7)):
        meetings.begin([1 - meetings.me], dataclasses.replace(OTHER_SHAPE, count=number))
    assert [first.check(1), second.check(0)] == [7, 3]


def test_a_call_that_fails_with_several_processes_is_told_once() -> None:
    sent = {
        peer: collections.deque([np.array(each.message(), np.uint32) for each in (OTHER_SHAPE, STEP)])
        for peer in (1, 2)
    }
    meetings = Meetings(0, lambda peers, message: None, sent.__getitem__, lambda queue, waiting: queue.popleft())
    meetings.begin([1, 2], STEP)
    with pytest.raises(TransferError, match="process 1 compiles something else, process 0 calls the step"):
        meetings.check(1)
    meetings.begin([1, 2], dataclasses.replace(STEP))
    assert [meetings.check(peer) for peer in (1, 2)] == [1, 1]
