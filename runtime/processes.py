"""The processes of `jax.distributed`: what each of them holds, how they find each other, that they run one program."""

import atexit
import collections
import contextlib
import hashlib
import itertools
import os
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version

import jax
from jax.sharding import Mesh

from jaxpp import _compat
from jaxpp.runtime.faults import ENDED_MESSAGE, Guard, PeerError
from jaxpp.runtime.meetings import Meeting, MeetingKind, identity_of
from jaxpp.runtime.transfer import Peers, Transport
from jaxpp.runtime.waiting import Waiting
from jaxpp.runtime.wire import TICK

PATIENCE = 1800.0
"""Seconds that a process waits for another to trace the same step, which may be compiling the one before it. One that
is dead or frozen is noticed much sooner."""

WIDTH = 100
"""How much of a line a message shows."""


class ProcessError(RuntimeError):
    """Another process is missing, or runs something else."""


def peers(
    submeshes: Sequence[Mesh], text: Callable[[], str], described: Callable[[], Sequence[str]] = lambda: ["step"]
) -> Peers | None:
    """Who runs a program on these submeshes; None where this process does so alone.

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
        return Peers(transport(), owners, b"", gather)
    others = [peer for peer in together if peer != me]
    watch(others)
    name, *arguments = described()
    title = "\n".join([f"the step `{name}`", f"on processes {', '.join(map(str, together))}", *arguments])
    meet(others, Meeting(MeetingKind.COMPILE, identity_of(together, _agreements[tuple(together)]), text=title))
    lines = [f"{name} {version(name)}" for name in ("jax", "jaxlib", "jaxpp")]
    lines += [f"mesh {number} on processes {mesh}" for number, mesh in enumerate(owners)]
    program = agree("\n".join([*lines, text()]), together)
    _tell(program[:16], title)
    found = Peers(transport(), owners, program, gather, title)
    for peer in others:
        found.transport.connection(peer)
    return found


def meet(others: Sequence[int], meeting: Meeting) -> None:
    """Begin a call with these processes, and wait until they begin it too.

    Raises TransferError when one of them makes another call, or none within PATIENCE.
    """
    _tell(meeting.identity, meeting.text)
    transport().meetings.begin(others, meeting)
    for peer in others:
        transport().meetings.check(peer, patience=PATIENCE)


def meet_all(meeting: Meeting) -> None:
    """`meet` with all other processes of the job, which are watched from then on."""
    watch_all(PATIENCE)
    meet(_others(), meeting)


def interruptible(function: Callable[[], None]) -> None:
    """Call a function that waits for the other processes in a way that doesn't end when one of them is gone.

    Raises what it raises, and PeerError when one is gone. The function then goes on in a thread that nobody waits for.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="jaxpp-together", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(TICK)
        if thread.is_alive() and (loss := guard().first_loss()):
            thread.join(ENDED_MESSAGE if loss.ended else 0)  # it may have ended because it was done
            if thread.is_alive():
                raise PeerError(loss, Waiting(loss.peer))
    if errors:
        raise errors[0]


def begin(meeting: Meeting) -> list[int]:
    """Begin a call with all other processes of the job, without waiting for them; returns their numbers.

    Raises as `Meetings.begin`.
    """
    if meeting.identity not in _told:
        _tell(meeting.identity, meeting.text)
        _told.add(meeting.identity)
    others = _others()
    transport().meetings.begin(others, meeting)
    return others


def _others() -> list[int]:
    return [process for process in range(jax.process_count()) if process != jax.process_index()]


_told: set[bytes] = set()


def _tell(identity: bytes, text: str) -> None:
    """Let the others find the text of a Meeting of this process."""
    _put(f"jaxpp/call/{jax.process_index()}/{identity.hex()}", zlib.compress(text.encode()), allow_overwrite=True)


def _ask(process: int, identity: bytes) -> str:
    """The text of a Meeting of that process; empty if it is not there. A process tells it before it begins the call."""
    try:
        key = f"jaxpp/call/{process}/{identity.hex()}"
        return zlib.decompress(_compat.key_value_store().blocking_key_value_get_bytes(key, 1000)).decode()
    except jax.errors.JaxRuntimeError:
        return ""


_agreements: collections.Counter[tuple[int, ...]] = collections.Counter()


def agree(text: str, together: Sequence[int]) -> bytes:
    """Compare `text` with those that the processes `together`, this one among them, give in their calls.

    Returns a digest of it and of how often they have compared texts: no two calls return the same. Raises ProcessError,
    on each of them with the same message, when the texts differ: which processes have another one, and the first line
    that does.
    """
    me = jax.process_index()
    group = tuple(together)
    _agreements[group] += 1
    place = f"jaxpp/program/{'-'.join(map(str, group))}/{_agreements[group]}"
    digest = hashlib.sha256(text.encode())
    _put(f"{place}/digest/{me}", digest.digest())
    found = {process: _get(f"{place}/digest/{process}", process) for process in group}
    if len(set(found.values())) == 1:
        digest.update(place.encode())
        return digest.digest()
    _put(f"{place}/text/{me}", zlib.compress(text.encode()))
    most = collections.Counter(found.values()).most_common(1)[0][0]
    usual = [process for process in group if found[process] == most]
    other = [process for process in group if found[process] != most]
    texts = [zlib.decompress(_get(f"{place}/text/{each[0]}", each[0])).decode() for each in (usual, other)]
    verb = "runs" if len(other) == 1 else "run"
    raise ProcessError(f"{named(other)} {verb} another program than {named(usual)}{_difference(usual, other, texts)}")


def named(processes: Sequence[int]) -> str:
    """`process 3`, or `processes 3, 4`."""
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


def _difference(usual: Sequence[int], other: Sequence[int], texts: Sequence[str]) -> str:
    """Where two texts start to differ, with that line of both."""
    lines = itertools.zip_longest(*(text.splitlines() for text in texts), fillvalue="(nothing)")
    number, pair = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
    column = next((i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair)))
    start = max(0, column - WIDTH // 2)
    shown = [f"{'...' if start else ''}{line[start : start + WIDTH].strip()}" for line in pair]
    return f", from line {number} on:\n  process {usual[0]}: {shown[0]}\n  process {other[0]}: {shown[1]}"


_gathered = itertools.count()
_GATHER = Meeting(MeetingKind.GATHER, identity_of("gather"), text="a step")


def gather(text: str) -> list[str]:
    """What each process gives, by its number, in all of them. All of them call it, and so wait for each other.

    Raises ProcessError when one of them doesn't come.
    """
    place = f"jaxpp/gather/{next(_gathered)}"
    others = begin(_GATHER)
    _put(f"{place}/{jax.process_index()}", zlib.compress(text.encode()))
    for process in others:
        transport().meetings.check(process, patience=PATIENCE)
    return [zlib.decompress(_get(f"{place}/{process}", process)).decode() for process in range(jax.process_count())]


@cache
def transport() -> Transport:
    """This process's end of all transfers, made when it is first needed. The others find its address."""
    own = guard()
    made = Transport(own.me, jax.local_devices()[0], _find, own.host)
    made.meetings.describe = _ask
    _put(f"jaxpp/transfer/{made.me}", made.address.encode())
    own.attach(made)
    return made


def watchdog_seconds() -> float:
    """JAXPP_WATCHDOG_SECONDS. Raises ProcessError when that is no number of seconds."""
    seconds = os.environ.get("JAXPP_WATCHDOG_SECONDS", "60")
    if not seconds.replace(".", "", 1).isdigit() or float(seconds) == 0:
        raise ProcessError(f"JAXPP_WATCHDOG_SECONDS is {seconds!r}; give seconds, as 60")
    return float(seconds)


@cache
def guard() -> Guard:
    """What ends the waits of this process when another one is gone. Needs no device. Raises as `watchdog_seconds`."""
    seconds = watchdog_seconds()
    me, _ = _compat.process_numbers()
    found = Guard(me, _host(), _secret(), seconds)
    _put(f"jaxpp/watchdog/{me}", found.watchdog.address.encode())
    atexit.register(found.leave)
    return found


def watch_all(seconds: float) -> None:
    """Notice from now on when any process of the job dies.

    All of them call this. Raises ProcessError when one of them doesn't within so many seconds, and for a stranger.
    """
    me, count = _compat.process_numbers()
    watch([process for process in range(count) if process != me], seconds)


def watch(processes: Sequence[int], seconds: float = PATIENCE) -> None:
    """Notice from now on when any of these processes dies. They all call this. Raises as `watch_all`."""
    own = guard()
    new = [process for process in processes if process not in own.watchdog.wires]
    addresses = {process: _get(f"jaxpp/watchdog/{process}", process, seconds).decode() for process in new}
    try:
        own.connect(addresses)
    except ConnectionError as error:
        raise ProcessError(str(error)) from None


def job_secret() -> bytes:
    """JAXPP_JOB_SECRET; empty where it is not set."""
    return os.environ.get("JAXPP_JOB_SECRET", "").encode()


def _secret() -> bytes:
    """What the processes of this job know: JAXPP_JOB_SECRET, or else what the first of them has thought of."""
    if given := job_secret():
        return given
    store = _compat.key_value_store()
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first
        store.key_value_set_bytes("jaxpp/secret", secrets.token_bytes(32))
    return bytes(store.blocking_key_value_get_bytes("jaxpp/secret", 10_000))


def _find(process: int) -> str:
    return _get(f"jaxpp/transfer/{process}", process).decode()


def _host() -> str:
    """JAXPP_TRANSFER_ADDRESS, or this machine's address on the network of the coordinator: loopback where that is.

    Raises ProcessError when the former is no address of this machine.
    """
    if given := os.environ.get("JAXPP_TRANSFER_ADDRESS"):
        family = socket.AF_INET6 if ":" in given else socket.AF_INET
        try:
            socket.create_server((given.strip("[]"), 0), family=family).close()
        except OSError as error:
            raise ProcessError(f"JAXPP_TRANSFER_ADDRESS is {given!r}, no address of this host ({error})") from None
        return given
    host, port = _compat.coordinator_address().rsplit(":", 1)
    host = host.strip("[]")
    family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing: only picks the interface
        own = str(probe.getsockname()[0])
    return f"[{own}]" if ":" in own else own


def _put(key: str, value: bytes, allow_overwrite: bool = False) -> None:
    _compat.key_value_store().key_value_set_bytes(key, value, allow_overwrite)


def _get(key: str, process: int, patience: float = PATIENCE) -> bytes:
    """What `process` put under `key`, waiting for it; Ctrl-C ends the wait. Raises ProcessError after so long."""
    store = _compat.key_value_store()
    start = time.monotonic()
    while (seconds := time.monotonic() - start) < patience:
        guard().look(Waiting(process, is_message=True), seconds)
        try:
            return bytes(store.blocking_key_value_get_bytes(key, 200))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise ProcessError(f"process {process} can't be asked: {error}") from None
    raise ProcessError(f"process {process} did not come within {patience:.0f} s")
