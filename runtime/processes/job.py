"""The calls that processes of a `jax.distributed` job make together: they agree on a program, meet, gather texts."""

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
from jaxpp.runtime.processes.faults import ENDED_MESSAGE, PeerError
from jaxpp.runtime.processes.meetings import Meeting, MeetingKind, identity_of
from jaxpp.runtime.processes.membership import (
    ProcessError,
    endpoint,
    forgotten,
    guard,
    named,
    progress_seconds,
    publish,
    publish_text,
    published,
    watch,
    watch_all,
    withdraw,
)
from jaxpp.runtime.processes.transfer import Peers
from jaxpp.runtime.processes.waiting import Waiting, aside

Found = TypeVar("Found")

WIDTH = 100
"""How much of a line a message shows."""


def peers(
    submeshes: Sequence[Mesh], text: Callable[[], str], described: Callable[[], Sequence[str]] = lambda: ["step"]
) -> Peers | None:
    """Return the processes that run a program on these submeshes; None if this process does so alone.

    Every process that holds a device of them calls this, and they compare what they are about to run.

    submeshes: one per mesh of the program.
    text: makes the text of the program.
    described: what errors say of it: the name of the function, and a line for each argument.
    Raises ProcessError when a process has another text, or other versions of jax, jaxlib or jaxpp, and where all
    devices are another process's; TransferError when one does not compile a step for these processes now.
    """
    owners = [[device.process_index for device in mesh.devices.flat] for mesh in submeshes]
    together = sorted({owner for mesh in owners for owner in mesh})
    me = jax.process_index()
    if together == [me]:
        return None
    if me not in together and len(together) == 1:
        raise ProcessError(
            f"all devices of the mesh are on process {together[0]}, process {me} has none of them; "
            "make it of jax.devices(), which are those of all processes, not of the devices of one"
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
    """Compare the settings of a step: with others it may become another program, wait, or round otherwise.

    Every process that holds a device of the mesh calls this, and then compiles or loads the step.

    settings: by their names; one that is not there is none.
    described: as for `peers`.
    Raises ProcessError, with the same message everywhere, when a process has other settings; TransferError when one
    does not compile or load a step for this mesh now.
    """
    together = sorted({device.process_index for device in mesh.devices.flat})
    if len(together) == 1 or jax.process_index() not in together:
        return
    watch([peer for peer in together if peer != jax.process_index()])
    agree(json.dumps(settings, sort_keys=True), together, _title(described(), together), _other_settings)


def _title(described: Sequence[str], together: Sequence[int]) -> str:
    """What errors say of a step."""
    name, *arguments = described
    return "\n".join([f"the step `{name}`", f"on processes {', '.join(map(str, together))}", *arguments])


def meet(others: Sequence[int], meeting: Meeting) -> dict[int, int]:
    """Begin a call with these processes, and wait until they begin it too. Returns the count that each tells.

    Raises TransferError when one of them makes another call, or none.
    """
    publish_text(meeting.identity, meeting.text)
    meetings = endpoint().meetings
    meetings.begin(others, meeting)
    return {peer: meetings.check(peer) for peer in others}


def meet_all(meeting: Meeting) -> None:
    """`meet` with all other processes of the job, which are watched from then on."""
    watch_all(progress_seconds())
    meet(_others(), meeting)


def interruptible(function: Callable[[], Found]) -> Found:
    """Call a function that waits for the other processes in a way that doesn't end when one of them is gone.

    Returns what it returns. Raises what it raises, and PeerError when a process is gone. The function then goes on in a
    thread of its own.
    """
    seen: list[float] = []

    def look(seconds: float) -> None:
        if loss := guard().first_loss():
            seen.append(seconds)
            if not loss.ended or seconds - seen[0] > ENDED_MESSAGE:  # one that has ended may have done so when done
                raise PeerError(loss, Waiting(loss.peer))

    return aside(function, look)


def begin(meeting: Meeting) -> list[int]:
    """Begin a call with all other processes of the job, without waiting for them; returns their numbers.

    Raises as `Meetings.begin`.
    """
    if meeting.identity not in _told:
        publish_text(meeting.identity, meeting.text)
        _told.add(meeting.identity)
    others = _others()
    endpoint().meetings.begin(others, meeting)
    return others


def _others() -> list[int]:
    return [process for process in range(jax.process_count()) if process != jax.process_index()]


_told: set[bytes] = set()

Difference = Callable[[Sequence[int], Sequence[int], Sequence[str]], str]
"""Called as (processes, others, a text of each): the error for texts that differ."""


def agree(text: str, together: Sequence[int], title: str, difference: "Difference | None" = None) -> bytes:
    """Compare `text` with those that the processes `together`, this one among them, give in their calls.

    title: what errors say of a step, as `_title`.
    difference: makes the error; by default it tells of another program.
    Returns a digest of it and of this exchange: no two calls return the same. Raises
    ProcessError, on each of them with the same message, when the texts differ; TransferError as `_exchange`.
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
    """Say where two programs start to differ, with this line of both."""
    lines = itertools.zip_longest(*(text.splitlines() for text in texts), fillvalue="(nothing)")
    number, pair = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
    column = next((i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair)))
    start = max(0, column - WIDTH // 2)
    shown = [f"{'...' if start else ''}{line[start : start + WIDTH].strip()}" for line in pair]
    runs = "runs" if len(other) == 1 else "run"
    where = f"{named(other)} {runs} another program than {named(usual)}, from line {number} on"
    return f"{where}:\n  process {usual[0]}: {shown[0]}\n  process {other[0]}: {shown[1]}"


def _other_settings(usual: Sequence[int], other: Sequence[int], texts: Sequence[str]) -> str:
    """Name the settings that differ, with the values of both."""
    both: list[dict[str, str]] = [json.loads(text) for text in texts]
    names = [name for name in sorted(both[0] | both[1]) if both[0].get(name) != both[1].get(name)]
    shown = [", ".join(f"{name}={each.get(name, 'none')}" for name in names) for each in both]
    has = "has" if len(other) == 1 else "have"
    where = f"{named(other)} {has} other settings than {named(usual)}"
    return f"{where}:\n  process {usual[0]}: {shown[0]}\n  process {other[0]}: {shown[1]}"


_LOAD = Meeting(MeetingKind.LOAD, identity_of("load"), text="a saved step")


def gather_loading(problem: str) -> list[str]:
    """What keeps each process from loading a saved step, empty where nothing does; all of them call this.

    Raises as `gather`, and TransferError when one of them compiles a step.
    """
    return _exchange(_LOAD, range(jax.process_count()), problem)


_GATHER = Meeting(MeetingKind.GATHER, identity_of("gather"), text="a step")


def gather(text: str) -> list[str]:
    """The texts of all processes, by their numbers. All of them call this, and so wait for each other.

    Raises ProcessError when one of them doesn't come.
    """
    return _exchange(_GATHER, range(jax.process_count()), text)


_numbers = itertools.count()
"""The numbers of this process's texts. Each process counts its own: one that failed in a call is behind."""

_offered: dict[tuple[int, ...], list[str]] = {}
"""By the processes that may still read them, the keys of this process's texts."""


def _exchange(meeting: Meeting, together: Sequence[int], text: str) -> list[str]:
    """The texts of these processes, this one among them, in their order; all of them make this call.

    Raises TransferError when one of them makes another call, or none.
    """
    keys = _begin_exchange(meeting, tuple(together), text)
    return [_text(process, key) for process, key in zip(together, keys, strict=True)]


def _begin_exchange(meeting: Meeting, group: tuple[int, ...], text: str) -> list[str]:
    """Wait until all have begun an exchange, and return where the text of each is. Raises as `_exchange`.

    A text is there before a message tells its number. Whoever sends that has read what the exchange before had, which
    is then deleted: the coordinator holds one text of a process, however many there were.
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
