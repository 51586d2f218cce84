"""The calls that processes of a `jax.distributed` job make together, to agree on a program, meet or gather texts."""

import collections
import dataclasses
import hashlib
import itertools
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import jax
from jax.sharding import Mesh

from jaxpp.runtime.processes import choice
from jaxpp.runtime.processes.autopsy import named
from jaxpp.runtime.processes.faults import ENDED_MESSAGE, PeerError
from jaxpp.runtime.processes.meetings import Meeting, MeetingKind, identity_of
from jaxpp.runtime.processes.membership import (
    ProcessError,
    endpoint,
    forgotten,
    guard,
    progress_seconds,
    publish,
    publish_text,
    published,
    watch,
    watch_all,
    withdraw,
)
from jaxpp.runtime.processes.transfer import Peers
from jaxpp.runtime.processes.waiting import WaitFor, Waiting, aside

Found = TypeVar("Found")

WIDTH = 100
"""The number of characters of a line that an error shows."""


def peers(
    submeshes: Sequence[Mesh], text: Callable[[], str], described: Callable[[], Sequence[str]] = lambda: ["step"]
) -> Peers | None:
    """Returns the processes that run a program on these submeshes; None if only this process runs the program.

    Every process that holds a device of the submeshes calls this function. The processes compare their programs.

    Args:
        submeshes: one per mesh of the program.
        text: makes the text of the program.
        described: makes the lines that describe the program in errors: the function's name, and one per argument.

    Raises:
        ProcessError: a process has another text, other settings of the transport, or other versions of jax, jaxlib or
            jaxpp. Also if another process holds all devices, or the transport needs processes that hold none.
        TransferError: a process does not compile a step for these processes now.
    """
    owners = [[device.process_index for device in mesh.devices.flat] for mesh in submeshes]
    together = sorted({owner for mesh in owners for owner in mesh})
    me = jax.process_index()
    if together == [me]:
        return None
    if me not in together and len(together) == 1:
        raise ProcessError(
            f"all devices of the mesh are on process {together[0]}, process {me} has none of them; "
            "make it of devices of several processes: jax.devices() has those of all"
        )
    if me not in together:
        return Peers(endpoint(), endpoint(), owners, b"", gather)
    others = [peer for peer in together if peer != me]
    if choice.transport().counts_all and len(together) < jax.process_count():
        raise ProcessError(
            f"on CPUs the transport 'device_put' needs all {jax.process_count()} processes of the job, the step is on "
            f"{named(together)}: take 'pair', or 'pull'"
        )
    watch(others)
    title = _title(described(), together)
    lines = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "jaxpp")]
    lines += [choice.described()]
    lines += [f"mesh {number} on processes {mesh}" for number, mesh in enumerate(owners)]
    program = agree("\n".join([*lines, text()]), together, title)
    publish_text(program[:16], title)
    exchange = partial(_exchange, Meeting(MeetingKind.LIMIT, program[:16], text=f"the memory of {title}"), together)
    found = Peers(endpoint(), choice.transport(), owners, program, gather, exchange, title)
    for peer in others:
        found.messages.connection(peer)
    return found


def agree_on(mesh: Mesh, settings: Mapping[str, str], described: Callable[[], Sequence[str]]) -> None:
    """Compares the settings of a step, which may change its program, its waits or its rounding.

    Every process that holds a device of the mesh calls this function, and then compiles or loads the step.

    Args:
        settings: the settings by name. An error shows a missing setting as "none".
        described: as for `peers`.

    Raises:
        ProcessError: a process has other settings. The message is the same in all processes.
        TransferError: a process does not compile or load a step for this mesh now.
    """
    together = sorted({device.process_index for device in mesh.devices.flat})
    if len(together) == 1 or jax.process_index() not in together:
        return
    watch([peer for peer in together if peer != jax.process_index()])
    agree(json.dumps(settings, sort_keys=True), together, _title(described(), together), _other_settings)


def _title(described: Sequence[str], together: Sequence[int]) -> str:
    """Returns the text that describes a step in errors."""
    name, *arguments = described
    return "\n".join([f"the step `{name}`", f"on processes {', '.join(map(str, together))}", *arguments])


def meet(others: Sequence[int], meeting: Meeting) -> dict[int, int]:
    """Begins a call with these processes, and waits until they begin it too. Returns the count from each message.

    Raises:
        TransferError: a process makes another call, or none.
    """
    publish_text(meeting.identity, meeting.text)
    meetings = endpoint().meetings
    meetings.begin(others, meeting)
    return {peer: meetings.check(peer) for peer in others}


def meet_all(meeting: Meeting) -> None:
    """Begins to watch all other processes of the job, and calls `meet` with them."""
    watch_all(progress_seconds())
    meet(other_processes(), meeting)


def interruptible(
    function: Callable[[], Found], what: str, peers: Sequence[int] | None = None, remedy: str = ""
) -> Found:
    """Calls a function whose wait for the other processes would not end after the loss of a process.

    Returns the function's result, and raises the function's errors.

    what, peers, remedy: the wait of the function, as in `Wait`.

    Raises:
        PeerError: a process is gone. The function then goes on in another thread.
    """
    seen: list[float] = []

    def look(seconds: float) -> None:
        if loss := guard().first_loss():
            seen.append(seconds)
            if not loss.ended or seconds - seen[0] > ENDED_MESSAGE:  # a peer may end after its part of the call
                raise PeerError(loss, Waiting(loss.peer))

    with WaitFor(what, peers, remedy):
        return aside(function, look)


def begin(meeting: Meeting) -> list[int]:
    """Begins a call with all other processes of the job, without waiting for them; returns their numbers.

    Raises as `Meetings.begin`.
    """
    if meeting.identity not in _told:
        publish_text(meeting.identity, meeting.text)
        _told.add(meeting.identity)
    others = other_processes()
    endpoint().meetings.begin(others, meeting)
    return others


def other_processes() -> list[int]:
    """Returns the numbers of all other processes of the job."""
    return [process for process in range(jax.process_count()) if process != jax.process_index()]


_told: set[bytes] = set()

Difference = Callable[[Sequence[int], Sequence[int], Sequence[str]], str]
"""Called as (processes, others, one text of each group). Returns the error for texts that differ."""


def agree(text: str, together: Sequence[int], title: str, difference: "Difference | None" = None) -> bytes:
    """Compares the texts of the processes `together`, which include this process.

    Args:
        text: the text of this process.
        together: the numbers of the processes. All of them make this call.
        title: the text that describes the step in errors, from `_title`.
        difference: makes the error. The default, `_other_program`, says that the programs differ.

    Returns:
        A digest of the text and of this exchange. No two calls return the same digest.

    Raises:
        ProcessError: the texts differ. The message is the same in all processes.
        TransferError: as in `_exchange`.
    """
    group = tuple(together)
    meeting = Meeting(MeetingKind.COMPILE, identity_of("compile", *group), text=title)
    digest = hashlib.sha256(text.encode())
    keys = _begin_exchange(meeting, group, digest.hexdigest())
    found = {process: _text(process, key) for process, key in zip(group, keys, strict=True)}
    if len(set(found.values())) == 1:
        digest.update("\n".join(keys).encode())
        return digest.digest()
    most = collections.Counter(found.values()).most_common(1)[0][0]
    usual = [process for process in group if found[process] == most]
    other = [process for process in group if found[process] != most]
    places = dict(zip(group, _begin_exchange(meeting, group, text), strict=True))
    texts = [_text(each[0], places[each[0]]) for each in (usual, other)]
    raise ProcessError((difference or _other_program)(usual, other, texts))


def _other_program(usual: Sequence[int], other: Sequence[int], texts: Sequence[str]) -> str:
    """Returns the error for two programs that differ, with the first different line of both."""
    lines = itertools.zip_longest(*(text.splitlines() for text in texts), fillvalue="(nothing)")
    number, pair = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
    column = next((i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair)))
    start = max(0, column - WIDTH // 2)
    shown = [f"{'...' if start else ''}{line[start : start + WIDTH].strip()}" for line in pair]
    runs = "runs" if len(other) == 1 else "run"
    where = f"{named(other)} {runs} another program than {named(usual)}, from line {number} on"
    return f"{where}:\n  process {usual[0]}: {shown[0]}\n  process {other[0]}: {shown[1]}"


def _other_settings(usual: Sequence[int], other: Sequence[int], texts: Sequence[str]) -> str:
    """Returns the error for settings that differ, with the names and both values of these settings."""
    both: list[dict[str, str]] = [json.loads(text) for text in texts]
    names = [name for name in sorted(both[0] | both[1]) if both[0].get(name) != both[1].get(name)]
    shown = [", ".join(f"{name}={each.get(name, 'none')}" for name in names) for each in both]
    has = "has" if len(other) == 1 else "have"
    where = f"{named(other)} {has} other settings than {named(usual)}"
    return f"{where}:\n  process {usual[0]}: {shown[0]}\n  process {other[0]}: {shown[1]}"


_LOAD = Meeting(MeetingKind.LOAD, identity_of("load"), text="a saved step")


def gather_loading(problem: str) -> list[str]:
    """Returns for each process the problem that keeps it from loading a saved step; empty if there is no problem.

    All processes of the job call this function.

    problem: the problem of this process.

    Raises as `gather`, and TransferError if a process compiles a step.
    """
    return _exchange(_LOAD, range(jax.process_count()), problem)


_GATHER = Meeting(MeetingKind.GATHER, identity_of("gather"), text="a step")


def gather(text: str) -> list[str]:
    """Returns the texts of all processes, in the order of their numbers. Waits until all of them call this function.

    Raises:
        ProcessError: a text cannot be read, or not in time.
        TransferError: a process makes another call, or none.
    """
    return _exchange(_GATHER, range(jax.process_count()), text)


_numbers = itertools.count()
"""The numbers of this process's texts. Counts may differ between processes, because a call may fail in one of them."""

_offered: dict[tuple[int, ...], list[str]] = {}
"""For each group of processes, the keys of this process's texts that the group may still read."""


def _exchange(meeting: Meeting, together: Sequence[int], text: str) -> list[str]:
    """Returns the texts of the processes `together`, in that order. They include this process, and all make this call.

    Raises:
        TransferError: a process makes another call, or none.
    """
    keys = _begin_exchange(meeting, tuple(together), text)
    return [_text(process, key) for process, key in zip(together, keys, strict=True)]


def _begin_exchange(meeting: Meeting, group: tuple[int, ...], text: str) -> list[str]:
    """Waits until all processes have begun an exchange; returns the key of each text. Raises as `_exchange`.

    Each process publishes its text before it sends the text's number. A process that sends a number has read the texts
    of the last exchange. So this process then deletes its earlier texts, and the coordinator holds one for each group.
    """
    me, number = jax.process_index(), next(_numbers)
    publish(_key(me, number), zlib.compress(text.encode()))
    before = _offered.get(group, [])
    _offered[group] = [*before, _key(me, number)]
    numbers = meet([process for process in group if process != me], dataclasses.replace(meeting, count=number))
    for key in before:
        withdraw(key)
        _offered[group].remove(key)
    return [_key(process, {**numbers, me: number}[process]) for process in group]


def _key(process: int, number: int) -> str:
    return f"jaxpp/exchange/{process}/{number}"


def _text(process: int, key: str) -> str:
    return zlib.decompress(published(key, process)).decode()


def _forget() -> None:
    global _numbers
    _numbers = itertools.count()
    _told.clear()
    _offered.clear()


forgotten(_forget)
