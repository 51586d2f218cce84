"""The calls that processes of a `jax.distributed` job make together: they agree on a program, meet, gather texts."""

import collections
import hashlib
import itertools
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version

import jax
from jax.sharding import Mesh

from jaxpp.runtime.processes import choice
from jaxpp.runtime.processes.faults import ENDED_MESSAGE, PeerError
from jaxpp.runtime.processes.meetings import Meeting, MeetingKind, identity_of
from jaxpp.runtime.processes.membership import (
    PATIENCE,
    ProcessError,
    endpoint,
    forgotten,
    guard,
    named,
    publish,
    publish_text,
    published,
    watch,
    watch_all,
)
from jaxpp.runtime.processes.transfer import Peers
from jaxpp.runtime.processes.waiting import Waiting, aside

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
    _meet_to_compile(others, together, title)
    lines = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "jaxpp")]
    lines += [choice.described()]
    lines += [f"mesh {number} on processes {mesh}" for number, mesh in enumerate(owners)]
    program = agree("\n".join([*lines, text()]), together)
    publish_text(program[:16], title)
    exchange = partial(_exchange, Meeting(MeetingKind.LIMIT, program[:16], text=f"the memory of {title}"), together)
    found = Peers(endpoint(), choice.transport(), owners, program, gather, exchange, title)
    for peer in others:
        found.messages.connection(peer)
    return found


def agree_on(mesh: Mesh, what: str, text: str, described: Callable[[], Sequence[str]]) -> None:
    """Compare what a step was given before it becomes a program: it may be another one then, or none at all.

    Every process that holds a device of the mesh calls this, and then compiles the step.

    what, text: what differs where the texts do, such as "other limits", and the text of this process.
    described: as for `peers`.
    Raises ProcessError, with the same message everywhere, when a process has another text; TransferError when one does
    not compile a step for this mesh now.
    """
    together = sorted({device.process_index for device in mesh.devices.flat})
    if len(together) == 1 or jax.process_index() not in together:
        return
    others = [peer for peer in together if peer != jax.process_index()]
    watch(others)
    _meet_to_compile(others, together, _title(described(), together))
    agree(text, together, what)


def _meet_to_compile(others: Sequence[int], together: Sequence[int], title: str) -> None:
    identity = identity_of(together, _agreements[tuple(together)])
    meet(others, Meeting(MeetingKind.COMPILE, identity, text=title))


def _title(described: Sequence[str], together: Sequence[int]) -> str:
    """What errors say of a step."""
    name, *arguments = described
    return "\n".join([f"the step `{name}`", f"on processes {', '.join(map(str, together))}", *arguments])


def meet(others: Sequence[int], meeting: Meeting) -> None:
    """Begin a call with these processes, and wait until they begin it too.

    Raises TransferError when one of them makes another call, or none within PATIENCE.
    """
    publish_text(meeting.identity, meeting.text)
    endpoint().meetings.begin(others, meeting)
    for peer in others:
        endpoint().meetings.check(peer, patience=PATIENCE)


def meet_all(meeting: Meeting) -> None:
    """`meet` with all other processes of the job, which are watched from then on."""
    watch_all(PATIENCE)
    meet(_others(), meeting)


def interruptible(function: Callable[[], None]) -> None:
    """Call a function that waits for the other processes in a way that doesn't end when one of them is gone.

    Raises what the function raises, and PeerError when a process is gone. The function then goes on in a thread of its
    own.
    """
    seen: list[float] = []

    def look(seconds: float) -> None:
        if loss := guard().first_loss():
            seen.append(seconds)
            if not loss.ended or seconds - seen[0] > ENDED_MESSAGE:  # one that has ended may have done so when done
                raise PeerError(loss, Waiting(loss.peer))

    aside(function, look)


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

_agreements: collections.Counter[tuple[int, ...]] = collections.Counter()


def agree(text: str, together: Sequence[int], what: str = "") -> bytes:
    """Compare `text` with those that the processes `together`, this one among them, give in their calls.

    what: what differs where the texts do, such as "other limits"; by default the program.
    Returns a digest of it and of how often they have compared texts: no two calls return the same. Raises ProcessError,
    on each of them with the same message, when the texts differ: which processes have another one, and the first line
    that does.
    """
    me = jax.process_index()
    group = tuple(together)
    _agreements[group] += 1
    place = f"jaxpp/program/{'-'.join(map(str, group))}/{_agreements[group]}"
    digest = hashlib.sha256(text.encode())
    publish(f"{place}/digest/{me}", digest.digest())
    found = {process: published(f"{place}/digest/{process}", process) for process in group}
    if len(set(found.values())) == 1:
        digest.update(place.encode())
        return digest.digest()
    publish(f"{place}/text/{me}", zlib.compress(text.encode()))
    most = collections.Counter(found.values()).most_common(1)[0][0]
    usual = [process for process in group if found[process] == most]
    other = [process for process in group if found[process] != most]
    texts = [zlib.decompress(published(f"{place}/text/{each[0]}", each[0])).decode() for each in (usual, other)]
    one, several = ("has", "have") if what else ("runs", "run")
    verb, differs = one if len(other) == 1 else several, what or "another program"
    raise ProcessError(f"{named(other)} {verb} {differs} than {named(usual)}{_difference(usual, other, texts)}")


def _difference(usual: Sequence[int], other: Sequence[int], texts: Sequence[str]) -> str:
    """Say where two texts start to differ, with this line of both."""
    lines = itertools.zip_longest(*(text.splitlines() for text in texts), fillvalue="(nothing)")
    number, pair = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
    column = next((i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair)))
    start = max(0, column - WIDTH // 2)
    shown = [f"{'...' if start else ''}{line[start : start + WIDTH].strip()}" for line in pair]
    where = f", from line {number} on" if any("\n" in text for text in texts) else ""
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


_exchanged: collections.Counter[bytes] = collections.Counter()


def _exchange(meeting: Meeting, together: Sequence[int], text: str) -> list[str]:
    """The texts of these processes, this one among them, in their order; all of them make this call.

    Raises ProcessError when one of them doesn't come, and TransferError when it makes another call.
    """
    _exchanged[meeting.identity] += 1
    place = f"jaxpp/exchange/{meeting.identity.hex()}/{_exchanged[meeting.identity]}"
    publish(f"{place}/{jax.process_index()}", zlib.compress(text.encode()))
    meet([process for process in together if process != jax.process_index()], meeting)
    return [zlib.decompress(published(f"{place}/{process}", process)).decode() for process in together]


def _forget() -> None:
    for each in (_told, _agreements, _exchanged):
        each.clear()


forgotten(_forget)
