"""The calls that processes make together. Each begins with a message to the others that tells which call it is.

Every two processes exchange their messages in the order of their calls. So processes that make different calls get an
error instead of waiting for each other. A process reads a message when it first needs data from the other process, and
at the latest when its next call with that process begins. So it is never more than one call ahead.
"""

import collections
import dataclasses
import enum
import hashlib
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpp.runtime.processes.waiting import TransferError, Waiting

MESSAGE = 8
"""The least number of 32-bit numbers in a message. Digests of arguments follow them, if there are any."""

IDENTITY, COUNT, KIND, GIVEN, LEFT_OUT = slice(0, 4), 4, 5, 6, 7
"""The positions of these fields in a message. GIVEN is a hash of the arguments' names and the kind of their digests."""

DIGESTS = 8000
"""The largest number of argument digests in a message."""

WIDTH = 100
"""The number of characters of a line that an error shows."""


class MeetingKind(enum.IntEnum):
    """The kinds of calls that processes make together."""

    STEP = 1
    COMPILE = 2
    FETCH = 3
    GATHER = 4
    SAVE = 5
    LIMIT = 6
    LOAD = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """A call that several processes make together.

    kind: the kind of call.
    identity: 16 bytes that are the same in all processes, and differ for another step, tree or checkpoint.
    count: the number of the step. In an exchange of texts, the number of this process's call, which may differ in
        other processes.
    text: the description in errors: a title, such as "the step `train_step`", and a line for each array.
    names: the names of the arguments that were given as numpy arrays, if these are compared.
    digests: the digests of these arguments.
    sampling: how the digests were made, see `digests.sampling`. Digests are compared only if this agrees.
    left_out: a digest of the tasks that a step leaves out; 0 if there are none.
    """

    kind: MeetingKind
    identity: bytes
    count: int = 0
    text: str = ""
    names: Sequence[str] = ()
    digests: Sequence[int] = ()
    sampling: str = ""
    left_out: int = 0

    def __str__(self) -> str:
        return f"{_WORDS[self.kind][0]} {self.text.partition(chr(10))[0]}"

    def message(self) -> list[int]:
        """Returns the numbers of the message to the others."""
        given = 0
        if self.names:
            given = zlib.crc32("\0".join((self.sampling, *self.names)).encode())
        identity = np.frombuffer(self.identity[:16], np.uint32).tolist()
        return [*identity, self.count % (1 << 32), int(self.kind), given, self.left_out, *self.digests[:DIGESTS]]


def identity_of(*parts: object) -> bytes:
    """Returns a hash of `parts` of 16 bytes."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:16]


Describe = Callable[[int, bytes], str]
"""Called as (process, identity). Returns the text of a Meeting of that process; empty if it is not known."""


class Meetings:
    """The messages between this process and the others.

    me: the number of this process.
    post: sends a message to each of these processes.
    fetch: asks for the next message of a process; returns a handle for `wait`.
    wait: waits for such a handle, and returns the message as an array.
    unread: by process, the messages that nobody has waited for yet: each with this process's Meeting, and the expected
        numbers, which are empty if they are not to be compared.

    `describe` is called for a message that differs from the expected one; `membership.endpoint` sets it.
    """

    def __init__(
        self,
        me: int,
        post: Callable[[Sequence[int], Sequence[int]], None],
        fetch: Callable[[int], Any],
        wait: Callable[[Any, Waiting], Any],
    ) -> None:
        self.me, self._post, self._fetch, self._wait = me, post, fetch, wait
        self.describe: Describe = lambda process, identity: ""
        self.unread: dict[int, collections.deque[tuple[Any, Meeting, list[int]]]] = collections.defaultdict(
            collections.deque
        )

    def begin(self, peers: Sequence[int], meeting: Meeting, owners: Sequence[Sequence[int]] = ()) -> None:
        """Tells the peers of a call, and checks that they have begun the last one. Raises as `check`."""
        message = meeting.message()
        self._post(peers, message)
        for peer in peers:
            self.unread[peer].append((self._fetch(peer), meeting, message))
        for peer in peers:
            while len(self.unread[peer]) > 1:
                self._read(peer, owners)

    def check(self, peer: int, owners: Sequence[Sequence[int]] = ()) -> int:
        """Waits for the peer's message, and returns its count. Raises TransferError if the peer makes another call."""
        count = 0
        while self.unread[peer]:
            count = self._read(peer, owners)
        return count

    def _read(self, peer: int, owners: Sequence[Sequence[int]]) -> int:
        message, meeting, expected = self.unread[peer].popleft()
        waiting = Waiting(peer, owners=owners, is_message=True, call=meeting)
        found = np.asarray(self._wait(message, waiting)).tolist()
        if expected and found != expected:
            try:
                self._compare(peer, meeting, expected, found)
            except TransferError:
                self._excuse(meeting)
                raise
        return int(found[COUNT])

    def _excuse(self, failed: Meeting) -> None:
        """Skips the comparison of messages of a call that failed. Otherwise the next call raises the same error."""
        for messages in self.unread.values():
            for index, (message, meeting, _) in enumerate(messages):
                if meeting is failed:
                    messages[index] = message, meeting, []

    def _compare(self, peer: int, meeting: Meeting, expected: Sequence[int], found: Sequence[int]) -> None:
        """Raises TransferError if two messages describe different calls."""
        if found[IDENTITY] != expected[IDENTITY] or found[KIND] != expected[KIND]:
            identity = np.array(found[IDENTITY], np.uint32).tobytes()
            texts = meeting.text, self.describe(peer, identity)
            raise TransferError(_difference((self.me, peer), (meeting.kind, found[KIND]), texts))
        if found[COUNT] != expected[COUNT] and meeting.kind == MeetingKind.STEP:
            raise TransferError(
                f"process {peer} is at step {found[COUNT]}, process {self.me} at step {expected[COUNT]}"
            )
        if found[LEFT_OUT] != expected[LEFT_OUT]:
            raise TransferError(
                f"process {peer} leaves out other weight gradients than process {self.me}: "
                "give `jaxpp.frozen` the same stages in every process"
            )
        if found[GIVEN] != expected[GIVEN]:
            return  # the two processes have digests of different arguments, or make them differently: can't compare
        pairs = zip(meeting.names, expected[MESSAGE:], found[MESSAGE:], strict=False)
        different = [name for name, own, other in pairs if own != other]
        if different:
            more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
            raise TransferError(
                f"argument `{different[0]}`{more} has other numbers in process {peer} than in process {self.me}: "
                "give the whole array, with the same numbers, in every process"
            )


_WORDS: dict[int, tuple[str, str]] = {
    MeetingKind.STEP: ("calls", "program"),
    MeetingKind.COMPILE: ("compiles", "step"),
    MeetingKind.FETCH: ("fetches", "tree"),
    MeetingKind.GATHER: ("traces", "step"),
    MeetingKind.SAVE: ("saves", "checkpoint"),
    MeetingKind.LIMIT: ("limits", "memory"),
    MeetingKind.LOAD: ("loads", "step"),
}
"""The verb and the object that describe a call of each kind in errors."""


def _difference(processes: tuple[int, int], kinds: tuple[int, int], texts: tuple[str, str]) -> str:
    """Returns the error for two processes that make different calls. The first process raises it.

    kinds, texts: the kinds and the texts of their calls.
    """
    me, peer = processes
    own, other = (text.split("\n") if text else ["something else"] for text in texts)
    pairs = list(itertools.zip_longest(own, other, fillvalue="(nothing)"))
    verbs = [_WORDS[kind][0] if kind in _WORDS else "does" for kind in kinds]
    if kinds[0] == kinds[1]:
        error = f"process {peer} {verbs[1]} another {_WORDS[kinds[1]][1]} than process {me}"
    else:
        does = [f"{verb} {text[0]}" for verb, text in zip(verbs, (own, other), strict=True)]
        error = f"process {peer} {does[1]}, process {me} {does[0]}"
        pairs = pairs[1:] if {*kinds} == {MeetingKind.STEP, MeetingKind.COMPILE} else []
    different = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if not texts[1] or different is None:
        return error
    lines = sorted(zip(processes, different, strict=True))
    return f"{error}:" + "".join(f"\n  process {process}: {line[:WIDTH]}" for process, line in lines)
