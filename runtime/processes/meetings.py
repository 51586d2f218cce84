"""The calls that processes make together: each begins with a message to the others that tells which call it is.

Every two processes exchange their messages in the order of their calls. So those that don't make the same calls find
out, instead of waiting for each other. A process reads a message when it first needs something from the other one, and
at the latest when its next call with it begins: it is never more than one call ahead.
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
"""How many numbers, each below 2**32, a message has at least. Digests of arguments follow them, if there are any."""

IDENTITY, COUNT, KIND, GIVEN, LEFT_OUT = slice(0, 4), 4, 5, 6, 7
"""Where in a message these are. GIVEN tells which arguments the digests are of, and how they were made."""

DIGESTS = 8000
"""Digests of arguments in a message at most."""

WIDTH = 100
"""How much of a line an error shows."""


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

    kind: what it is.
    identity: 16 bytes that are the same in all of them, and others for another step, tree or checkpoint.
    count: which step it is; of an exchange of texts the number of this process's, which others have of their own.
    text: what an error says of it: a title, such as "the step `train_step`", and a line for each array.
    names: those of the arguments that were given as arrays of the host, where these are compared.
    digests: of these arguments.
    sampling: how the digests were made, as of `digests.sampling`; only those that were made alike are compared.
    left_out: a digest of the tasks that a step leaves out; 0 for none.
    """

    kind: MeetingKind
    identity: bytes
    count: int = 0
    text: str = ""
    names: Sequence[str] = ()
    digests: Sequence[int] = ()
    sampling: str = ""
    left_out: int = 0

    def message(self) -> list[int]:
        """The numbers of the message to the others."""
        given = 0
        if self.names:
            given = zlib.crc32("\0".join((self.sampling, *self.names)).encode())
        identity = np.frombuffer(self.identity[:16], np.uint32).tolist()
        return [*identity, self.count % (1 << 32), int(self.kind), given, self.left_out, *self.digests[:DIGESTS]]


def identity_of(*parts: object) -> bytes:
    """Return 16 bytes that differ from call to call."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:16]


Describe = Callable[[int, bytes], str]
"""Called as (process, identity): the text of a Meeting of that process, empty where it is not known."""


class Meetings:
    """The messages between this process and the others.

    me: the number of this process.
    post: sends a message to each of these processes.
    fetch: the next message of a process, on its way: something that `wait` takes, and returns as an array.
    unread: by process, the messages that nobody has waited for yet, each with the Meeting that it should tell of, and
        the numbers that it should have; none where they are not compared.

    `describe` is asked about a message that is not the expected one; `membership.transport` sets it.
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
        """Tell the peers of a call, and hear of those that have not begun the last one. Raises as `check`."""
        message = meeting.message()
        self._post(peers, message)
        for peer in peers:
            self.unread[peer].append((self._fetch(peer), meeting, message))
        for peer in peers:
            while len(self.unread[peer]) > 1:
                self._read(Waiting(peer, owners=owners, is_message=True))

    def check(self, peer: int, owners: Sequence[Sequence[int]] = ()) -> int:
        """Wait for the peer's message, and return its count. Raises TransferError when it does something else."""
        count = 0
        while self.unread[peer]:
            count = self._read(Waiting(peer, owners=owners, is_message=True))
        return count

    def _read(self, waiting: Waiting) -> int:
        message, meeting, expected = self.unread[waiting.peer].popleft()
        found = np.asarray(self._wait(message, waiting)).tolist()
        if expected and found != expected:
            try:
                self._compare(waiting.peer, meeting, expected, found)
            except TransferError:
                self._excuse(meeting)
                raise
        return int(found[COUNT])

    def _excuse(self, failed: Meeting) -> None:
        """Compare no other message for a call that has failed: the next call would raise the same error again."""
        for messages in self.unread.values():
            for index, (message, meeting, _) in enumerate(messages):
                if meeting is failed:
                    messages[index] = message, meeting, []

    def _compare(self, peer: int, meeting: Meeting, expected: Sequence[int], found: Sequence[int]) -> None:
        """Raise TransferError for two messages that tell of different calls."""
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
            return  # the two were given other arguments on the host, or make digests otherwise: nothing to compare
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
"""What a process does in such a call, and to what."""


def _difference(processes: tuple[int, int], kinds: tuple[int, int], texts: tuple[str, str]) -> str:
    """The message for two processes that make different calls, as the first of them tells of the second.

    kinds, texts: of their calls.
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
