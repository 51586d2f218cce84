"""The processes of a job meet: those that are missing, too many or different. Threads play the processes."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from importlib.metadata import version

import pytest

from jaxpp import _jobs, distributed
from jaxpp.runtime.processes import roll_call
from jaxpp.runtime.processes.handshake import Connection
from jaxpp.runtime.processes.membership import ProcessError


@pytest.fixture
def port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
    return found


def meet(port: int, *processes: tuple[int, int], seconds: float = 20) -> list[str]:
    """What each (number, of how many) is told; empty where all is well."""
    told = [""] * len(processes)

    def come(place: int, process: int, count: int) -> None:
        try:
            roll_call.roll_call(f"127.0.0.1:{port}", count, process, seconds).run(lambda seconds, look: None)
        except ProcessError as error:
            told[place] = str(error)

    threads = [threading.Thread(target=come, args=(place, *each)) for place, each in enumerate(processes)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return told


def test_all_come(port: int) -> None:
    assert meet(port, (0, 3), (1, 3), (2, 3)) == ["", "", ""]
    assert meet(port, (0, 1)) == [""]


def test_some_are_missing(port: int) -> None:
    expected = f"processes 1, 3 of 4 did not come to 127.0.0.1:{port} within 0.5 s; start all of them"
    assert meet(port, (0, 4), (2, 4), seconds=0.5) == [expected, expected]


def test_one_comes_twice(port: int) -> None:
    assert set(meet(port, (0, 3), (1, 3), (1, 3))) == {"two processes are process 1; give each its own number"}


def test_they_were_told_different_numbers(port: int) -> None:
    expected = "process 1 was told that there are 3 processes, process 0 that there are 2"
    assert meet(port, (0, 2), (1, 3)) == [expected, expected]
    assert meet(port, (2, 2)) == ["process 2 of 2: the numbers go from 0 to 1"]


def test_another_version_of_jax(port: int) -> None:
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(meet(port, (0, 2))))
    thread.start()
    answer = come(port, 1, {"processes": 2, "jax": "0.0.1", "jaxlib": "0.0.1"})
    thread.join()
    assert told[0].startswith("process 1 has jax 0.0.1, process 0 has ")
    assert answer == told[0]


def test_one_may_be_started_again(port: int) -> None:
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(meet(port, (0, 3))))
    thread.start()
    own = {"processes": 3, "jax": version("jax"), "jaxlib": version("jaxlib")}
    with pytest.raises(ConnectionError):
        come(port, 1, own, leaves=True)
    assert meet(port, (1, 3), (2, 3)) == ["", ""]
    thread.join()
    assert told == [""]


def framed(message: object) -> bytes:
    text = json.dumps(message).encode()
    return struct.pack(">I", len(text)) + text


NESTED = struct.pack(">I", 4000) + b"[" * 4000
CLAIM = {"process": 1, "host": "here", "pid": 1, "nonce": "", "use": "roll call"}
PROOF = framed({"proof": "0" * 64})


@pytest.mark.parametrize(
    "texts",
    [
        [
            b"GET / HTTP/1.1\r\n\r\n",
            b"[]\n",
            b"\xff\xfe\x80\n",
            struct.pack(">I", 4000) + NESTED,
            framed([]),
            framed({}),
        ],
        [framed(CLAIM | {"process": number}) + PROOF for number in (1, 77, -1, "1", 10**3000)],
        [b""] * 10,
        [struct.pack(">I", 1000)] * 10,
    ],
    ids=["garbage", "claims", "silence", "half a message"],
)
@pytest.mark.parametrize("secret", ["", "the secret"])
def test_strangers_are_passed_over(port: int, texts: list[bytes], secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_JOB_SECRET", secret)
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(meet(port, (0, 2))))
    thread.start()
    strangers = [dial(port) for _ in texts]
    for stranger, text in zip(strangers, texts, strict=True):
        stranger.sendall(text)
    begin = time.monotonic()
    assert meet(port, (1, 2)) == [""]
    assert time.monotonic() - begin < 4, "nobody waits for a stranger"
    thread.join()
    assert told == [""]
    for stranger in strangers:
        stranger.close()


def test_one_who_drips_does_not_stop_the_clock(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of process 0, nor that of those who take him for it."""
    monkeypatch.setattr("jaxpp.runtime.processes.roll_call.POLITE", 0.5)
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(meet(port, (0, 2), seconds=1.5)))
    thread.start()
    with dial(port) as stranger:
        drip(stranger, thread)
    thread.join()
    assert told[0].startswith("process 1 of 2 did not come to ")
    with socket.create_server(("127.0.0.1", port)) as other:
        thread = threading.Thread(target=lambda: told.extend(meet(port, (1, 2), seconds=0.5)))
        thread.start()
        with other.accept()[0] as stranger:
            drip(stranger, thread)
        thread.join()
    assert told[1].startswith(f"what listens at 127.0.0.1:{port} is no coordinator; ")


def drip(stranger: socket.socket, thread: threading.Thread) -> None:
    """Send zeros, slowly, until the thread has ended."""
    end = time.monotonic() + 20
    with contextlib.suppress(OSError):
        stranger.sendall(struct.pack(">I", 4000))
        while thread.is_alive() and time.monotonic() < end:
            stranger.sendall(b"0")
            time.sleep(0.05)
    thread.join(20)
    assert not thread.is_alive()


def test_another_secret(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = iter([b"one", b"another"])
    monkeypatch.setattr("jaxpp.runtime.processes.roll_call.job_secret", lambda: next(secrets))
    zero, one = meet(port, (0, 2), (1, 2), seconds=1)
    assert one == f"process 0 at 127.0.0.1:{port} has another job secret (JAXPP_JOB_SECRET)"
    assert zero == (
        f"process 1 of 2 did not come to 127.0.0.1:{port} within 1 s; start all of them "
        "(who came as 1 has another job secret, JAXPP_JOB_SECRET)"
    )


def dial(port: int) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), 20)


def come(port: int, process: int, own: Mapping[str, object], *, leaves: bool = False) -> str:
    """What a process is told that says this of itself. It may leave again after a moment."""
    with dial(port) as dialled:
        timer = threading.Timer(0.3, lambda: dialled.shutdown(socket.SHUT_RDWR))
        if leaves:
            timer.start()
        end = time.monotonic() + 20
        return roll_call._converse(Connection(dialled, True, roll_call.USE), process, own, end, 20)[0]


def test_no_coordinator(port: int) -> None:
    (told,) = meet(port, (1, 2), seconds=0.3)
    assert told.startswith(f"no coordinator at 127.0.0.1:{port} within 0.3 s (")
    assert told.endswith("refused); is process 0 started, and is that its address?")


def test_somebody_else_listens(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as other:
        (told,) = meet(port, (0, 2))
        assert told == f"port {port} is in use on this host; choose another one for the coordinator"
        thread = threading.Thread(target=lambda: other.accept()[0].close())
        thread.start()
        (told,) = meet(port, (1, 2))
        thread.join()
        assert told.startswith(f"what listens at 127.0.0.1:{port} is no coordinator; all processes have to call ")


def test_what_listens_says_nothing(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of the whole start, also where a connection is taken and never answered."""
    monkeypatch.setattr("jaxpp.runtime.processes.roll_call.POLITE", 0.5)
    with socket.create_server(("127.0.0.1", port)):
        begin = time.monotonic()
        (told,) = meet(port, (1, 2), seconds=2)
        assert time.monotonic() - begin < 4
    assert told.startswith(f"what listens at 127.0.0.1:{port} is no coordinator; ")


def test_no_address() -> None:
    with pytest.raises(ProcessError, match=r"^the coordinator's address is 'host0'; give host:port of process 0$"):
        roll_call.roll_call("host0", 2, 0, 1)


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_no_such_port(port: str) -> None:
    with pytest.raises(ProcessError) as error:
        roll_call.roll_call(f"host0:{port}", 2, 0, 1)
    assert str(error.value) == f"the coordinator's address is 'host0:{port}'; ports go from 1 to 65535"


def test_an_address_that_process_0_does_not_have(port: int) -> None:
    """It says so to those that reach it by another one."""
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(meet(port, (1, 2))))
    thread.start()
    with pytest.raises(ProcessError) as error:  # 192.0.2.1 is of no host: for documentation (RFC 5737)
        roll_call.roll_call(f"192.0.2.1:{port}", 2, 0, 1)
    thread.join()
    assert str(error.value) == (
        f"process 0 was not reached at 192.0.2.1:{port} within 1 s, and its host can't listen there "
        "([Errno 99] Cannot assign requested address); give all processes an address of the host of process 0"
    )
    assert told == [str(error.value)]


def test_a_name_of_no_host(port: int) -> None:
    with pytest.raises(ProcessError, match=rf"^process 0 was not reached at nowhere.invalid:{port} within 0.5 s"):
        roll_call.roll_call(f"nowhere.invalid:{port}", 1, 0, 0.5)
    with pytest.raises(ProcessError, match=rf"^no coordinator at nowhere.invalid:{port} within 0.5 s \("):
        roll_call.roll_call(f"nowhere.invalid:{port}", 2, 1, 0.5)


def test_a_name_that_takes_long_to_resolve(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def resolve(*_: object, **__: object) -> None:
        over.wait(60)
        raise OSError("late")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    begun = time.monotonic()
    for process in (0, 1):
        with pytest.raises(ProcessError, match=r"no answer within|was not reached at"):
            roll_call.roll_call(f"slow.example:{port}", 2, process, 0.5)
    assert time.monotonic() - begun < 20
    over.set()


def test_an_address_that_passes_on_to_process_0(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a load balancer: process 0 listens at all its addresses then, and so does JAX."""

    def dial_another(address: tuple[str, int], timeout: float) -> socket.socket:
        return dialled(("127.0.0.1", address[1]), timeout)

    dialled = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", dial_another)
    found: list[str] = []

    def come(process: int) -> None:
        joint = roll_call.roll_call(f"192.0.2.1:{port}", 2, process, 20)
        joint.run(lambda seconds, look: None)
        found.append(joint.bind_address)

    threads = [threading.Thread(target=come, args=[process]) for process in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == ["", ""]


def test_an_address_to_bind(port: int) -> None:
    with pytest.raises(ProcessError, match=rf"^process 0 can't listen at 192.0.2.1:{port}: "):
        roll_call.roll_call(f"127.0.0.1:{port}", 2, 0, 1, f"192.0.2.1:{port}")
    with pytest.raises(ProcessError, match=r"^coordinator_bind_address is 'host0'; give host:port of process 0$"):
        roll_call.roll_call(f"127.0.0.1:{port}", 2, 0, 1, "host0")
    joint = roll_call.roll_call(f"192.0.2.1:{port}", 1, 0, 1, f"127.0.0.1:{port}")
    joint.run(lambda seconds, look: None)
    assert joint.bind_address == f"127.0.0.1:{port}"


def test_the_port_is_kept_for_jax(port: int) -> None:
    """No other job gets it between the roll call and JAX's start."""

    def start(seconds: float, look: object) -> None:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with pytest.raises(ProcessError, match=rf"^port {port} is in use on this host; "):
            roll_call.roll_call(f"127.0.0.1:{port}", 1, 0, 1)
        _jobs.start_coordination(f"127.0.0.1:{port}", 1).shutdown()

    roll_call.roll_call(f"127.0.0.1:{port}", 1, 0, 1).run(start)


def test_slurm_says_who_takes_part(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX alone would wait for who is missing, and then abort this process."""
    slurm = {"JOB_ID": "7", "STEP_NODELIST": "localhost", "NTASKS": "2", "PROCID": "0", "LOCALID": "0"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("JAX_COORDINATOR_PORT", str(port))
    expected = rf"^process 1 of 2 did not come to localhost:{port} within 0.3 s; start all of them$"
    with pytest.raises(ProcessError, match=expected):
        distributed.initialize(initialization_timeout=0.3)
    with pytest.raises(ProcessError, match=rf"^process 1 of 2 did not come to 127.0.0.1:{port} within 0.3 s;"):
        distributed.initialize(f"127.0.0.1:{port}", 2, initialization_timeout=0.3)


def test_nothing_says_who_takes_part() -> None:
    with pytest.raises(ProcessError, match=r"^nothing here says who takes part: give coordinator_address, num_"):
        distributed.initialize(cluster_detection_method="deactivate")


def test_it_is_called_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jobs, "key_value_store", object)
    with pytest.raises(
        ProcessError, match=r"^this process takes part in a job already: jaxpp.distributed.initialize is"
    ):
        distributed.initialize(f"127.0.0.1:{port}", 1, 0)
