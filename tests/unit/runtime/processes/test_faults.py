"""Processes that die, freeze, are interrupted or don't agree: the others say so, and end."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from unit.runtime.processes import fault_jobs, forks, together

EXAMPLES = Path(__file__).parents[4] / "examples"


class Outcome:
    """How the processes of a job ended: exit codes, what they printed, and that as far as it was JSON."""

    def __init__(self, children: Sequence[forks.Fork], outputs: Sequence[str]) -> None:
        self.codes = [child.poll() for child in children]
        self.texts = [Path(output).read_text(encoding="utf-8") for output in outputs]
        self.told = [[json.loads(line) for line in text.splitlines() if line.startswith("{")] for text in self.texts]
        self.shown = "\n".join(f"--- {code}\n{text[-3000:]}" for code, text in zip(self.codes, self.texts, strict=True))

    def find(self, process: int, key: str) -> list[Any]:
        """What a process told under `key`."""
        return [each[key] for each in self.told[process] if key in each]


def run(
    job: str,
    processes: int,
    *,
    devices: int = 1,
    survivors: Sequence[int],
    act: Callable[[Sequence[Any], Sequence[str]], None] = lambda children, outputs: None,
    main: str = f"{fault_jobs.__name__}:main",
) -> Outcome:
    """Run a job of fault_jobs.py until the survivors have ended by themselves; the others are killed then."""
    with together.started([[job]] * processes, devices, main) as (children, outputs):
        act(children, outputs)
        end = time.monotonic() + 300
        while any(children[each].poll() is None for each in survivors) and time.monotonic() < end:
            time.sleep(0.02)
        found = Outcome(children, outputs)
    assert all(found.codes[each] is not None for each in survivors), f"a survivor hangs:\n{found.shown}"
    return found


def check_loss(found: Outcome, victim: int, waited: dict[int, str], seconds: float = 0.0) -> None:
    """Each survivor named the victim and what it waited for, in time, and ended well."""
    hit = found.find(victim, "hit")[0]
    for process, what in waited.items():
        assert found.find(process, "type") == ["PeerError"], found.shown
        assert re.fullmatch(what, found.find(process, "message")[0])
        assert found.codes[process] == 0, found.shown
        took = found.find(process, "at")[0] - hit - seconds
        print(f"process {process} raised {took:.2f} s after the other was to be missed")
        assert took < together.SOON


@pytest.mark.parametrize(
    ("blow", "message"),
    [
        (
            "SIGKILL",
            "process 1 {} has ended after all had come, and before JAX had started on all 3 processes; its own .*",
        ),
        (
            "SIGSTOP",
            "not all 3 processes have started JAX within . s after .*: nothing is heard of process 1 {}; start .*",
        ),
    ],
)
def test_one_is_hit_before_jax_starts(blow: str, message: str) -> None:
    """JAX would wait for it for minutes, and then abort the others."""
    main = f"{fault_jobs.__name__}:{fault_jobs.hit_before_jax_starts.__name__}"
    found = run(blow, 3, survivors=[0, 2], main=main)
    for process in (0, 2):
        assert found.find(process, "type") == ["ProcessError"], found.shown
        assert re.fullmatch(message.format(r"\(\S+, pid \d+\)"), found.find(process, "message")[0])
        assert found.find(process, "took")[0] < 30
        assert found.codes[process] == 0, found.shown


@pytest.mark.parametrize("job", ["one_is_killed", "one_is_killed_in_a_transfer"])
def test_a_killed_process(job: str) -> None:
    found = run(job, 3, survivors=[0, 2])
    assert found.codes[1] == -signal.SIGKILL
    dead = r"mesh 1 on process 1 \(\S+, pid \d+\) died; mesh {} waited for receive on channel \d+ "
    waited = {
        0: dead.format(0) + r"\(backward of stage 1, microbatch \d\) from process 1",
        2: dead.format(2) + r"\(forward of stage 1, microbatch \d+\) from process 1",
    }
    check_loss(found, 1, waited)
    assert [len(found.find(process, "losses")[0]) for process in (0, 2)] == [0, 1]


@pytest.mark.parametrize("job", ["one_is_stopped", "one_is_stopped_in_a_transfer"])
def test_a_stopped_process(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "2")
    found = run(job, 3, survivors=[0, 1])
    frozen = r"mesh 2 on process 2 \(\S+, pid \d+\) is frozen: it gave no sign of life for 2 s; "
    frozen += r"mesh {} waited for receive on channel \d+ "
    waited = {
        0: frozen.format(0) + r"\(backward of stage 1, microbatch \d\) from process 1",
        1: frozen.format(1) + r"\(backward of stage 2, microbatch \d\) from process 2",
    }
    check_loss(found, 2, waited, seconds=2)


@pytest.mark.parametrize("job", ["the_first_is_stopped_while_others_trace", "the_first_is_stopped_while_others_save"])
def test_the_first_is_stopped_between_steps(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "2")
    found = run(job, 3, survivors=[1, 2])
    frozen = r"(mesh 0 on )?process 0 \(\S+, pid \d+\) is frozen: it gave no sign of life for 2 s; .*"
    check_loss(found, 0, {1: frozen, 2: frozen}, seconds=2)


def test_a_stopped_process_of_a_shared_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPP_WATCHDOG_SECONDS", "2")
    found = run("one_of_a_mesh_is_stopped", 2, devices=2, survivors=[0])
    frozen = r"meshes 0, 1 on process 1 \(\S+, pid \d+\) is frozen: .*; mesh \d waited for .* with process 1"
    check_loss(found, 1, {0: frozen}, seconds=2)


def test_a_killed_process_of_a_shared_mesh() -> None:
    found = run("one_of_a_mesh_is_killed", 2, devices=2, survivors=[0])
    check_loss(found, 1, {0: r"meshes 0, 1 on process 1 \(\S+, pid \d+\) died; .*"})
    assert found.find(0, "stuck") == [False]


def test_a_failure_on_a_shared_mesh() -> None:
    """Collectives of the other process wait for the one that failed, which no error of a transfer could end."""
    found = run("one_of_a_mesh_fails", 2, devices=2, survivors=[0, 1])
    assert found.codes == [1, 1], found.shown
    failed = r"meshes 0, 1 on process 1 \(\S+, pid \d+\) failed: ValueError: no such expert; mesh \d waited "
    assert re.search(failed, found.texts[0]), found.shown
    assert "ValueError: no such expert" in found.texts[1]


def test_a_failure_on_a_shared_mesh_that_is_caught() -> None:
    """No step can be made on that mesh any more, and both processes are told why."""
    found = run("one_of_a_mesh_fails_and_goes_on", 2, devices=2, survivors=[0, 1])
    assert found.codes == [0, 0], found.shown
    assert found.find(0, "type") == ["PeerError", "TransferError"]
    assert found.find(1, "type") == ["ValueError", "TransferError"]
    for process, error in ((0, r"PeerError: meshes 0, 1 on process 1 .*"), (1, "ValueError: no such expert")):
        message = rf"collectives are matched by their order, and some were not made \({error}\): start the job again .*"
        assert re.fullmatch(message, found.find(process, "message")[1])


def test_a_failure_on_a_shared_mesh_whose_collective_cannot_be_interrupted() -> None:
    found = run("one_of_a_mesh_fails_while_another_is_in_xla", 2, devices=2, survivors=[0])
    assert found.codes[0] == 1, found.shown
    failed = (
        r"jaxpp: process 1 \(\S+, pid \d+\) failed: ValueError: no such expert; this process is in a program of XLA"
    )
    assert re.search(failed, found.texts[0]), found.shown


@pytest.mark.parametrize(
    ("job", "processes", "late"),
    [("one_sleeps", 3, 2), ("one_of_a_mesh_sleeps", 2, 1), ("one_does_not_compile", 2, 1)],
)
def test_a_process_that_lives_and_does_not_come(
    job: str, processes: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others name the one that nobody else keeps waiting, and the user's line that it is at."""
    monkeypatch.setenv("JAXPP_PROGRESS_SECONDS", "2")
    others = [process for process in range(processes) if process != late]
    found = run(job, processes, devices=2 if job == "one_of_a_mesh_sleeps" else 1, survivors=others)
    at = r"\S*/fault_jobs\.py:\d+, in nap; .*"
    message = rf".* waited 2 s \(JAXPP_PROGRESS_SECONDS\) for .*process \d: process {late} \(\S+, pid \d+\) is at "
    for process in others:
        assert found.find(process, "type") == ["TransferError"], found.shown
        assert re.fullmatch(message + at, found.find(process, "message")[0]), found.shown


def test_process_0_takes_the_others_with_it_but_says_so() -> None:
    """JAX's coordination service lives in process 0: without it JAX aborts the others, at any moment."""
    found = run("the_first_is_killed", 3, survivors=[1, 2])
    for process in (1, 2):
        assert found.codes[process] in {0, -signal.SIGABRT}, found.shown
        assert re.search(
            r"process 0 \(\S+, pid \d+\) died|JAX distributed service detected fatal", found.texts[process]
        )


@pytest.mark.parametrize(
    ("job", "how"),
    [
        ("one_fails_early", r"failed: FileNotFoundError: no vocabulary at /data/vocab\.json"),
        ("one_is_told_to_end_early", "died"),
    ],
)
def test_a_process_that_is_lost_before_all_have_listed_their_devices(job: str, how: str) -> None:
    begin = time.monotonic()
    found = run(job, 2, survivors=[0])
    assert time.monotonic() - begin < 60, "JAX alone takes minutes"
    assert found.codes[0] == 1, found.shown
    lost = rf"jaxpp: process 1 \(\S+, pid \d+\) {how}"
    ends = "; JAX waits for its devices here, so this process ends"
    assert re.search(rf"^{lost}\n{lost}{ends}$", found.texts[0], re.MULTILINE), found.shown


def test_a_process_that_fails_before_its_first_step() -> None:
    found = run("one_fails_before_it_compiles", 2, survivors=[0, 1])
    assert found.codes == [0, 1], found.shown
    assert found.find(0, "type") == ["PeerError"]
    message = r"process 1 \(\S+, pid \d+\) failed: MemoryError; this process waited for process 1"
    assert re.fullmatch(message, found.find(0, "message")[0])


def test_a_step_that_cannot_be_interrupted_ends_with_its_process() -> None:
    died = r"jaxpp: process 1 \(\S+, pid \d+\) died"
    ends = r"; this process is in a program of XLA that waits for it, and ends"
    for silent, printed in (("", rf"{died}\n{died}{ends}\n"), ("silent", "")):
        with forks.running(fault_jobs.last_resort, silent) as child:
            assert child.wait() == 1
            assert re.fullmatch(printed, child.output.read_text(encoding="utf-8"))


def test_processes_that_disagree() -> None:
    found = run("processes_that_disagree", 2, survivors=[0, 1])
    assert found.codes == [0, 0], found.shown
    assert found.find(0, "type") == ["ProcessError", "ProcessError"]
    assert found.find(1, "type") == ["ProcessError", "ProcessError", "ProcessError", "TransferError"]
    another_schedule, another_version = found.find(0, "message")
    another_mesh, *same, ended = found.find(1, "message")
    assert same == [another_schedule, another_version]
    assert another_mesh == (
        "all devices of the mesh are on process 0, process 1 has none of them; "
        "make it of devices of several processes: jax.devices() has those of all"
    )
    assert re.match(r"process 1 runs another program than process 0, from line \d+ on:\n", another_schedule)
    assert re.search(r"from line 1 on:\n  process 0: jax [\d.]+\n  process 1: jax 0.0.1$", another_version)
    assert ended == "waiting for process 0: process 0 has ended"


@pytest.fixture(scope="module", params=["steps_without_end", "shared_steps_without_end"])
def interrupted(request: pytest.FixtureRequest) -> tuple[Outcome, float, list[str]]:
    """Two processes, the second of which gets Ctrl-C: how they ended, after how many seconds; where they listened."""
    struck: list[float] = []
    listened: list[str] = []
    devices = 2 if request.param.startswith("shared") else 1

    def interrupt(children: Sequence[Any], outputs: Sequence[str]) -> None:
        end = time.monotonic() + 200
        while '"steps"' not in Path(outputs[1]).read_text(encoding="utf-8") and time.monotonic() < end:
            time.sleep(0.05)
        for child in children:
            listened.extend(listening(child.pid))
        children[1].send_signal(signal.SIGINT)
        struck.append(time.monotonic())

    found = run(request.param, 2, devices=devices, survivors=[0, 1], act=interrupt)
    return found, time.monotonic() - struck[0], listened


def listening(pid: int) -> list[str]:
    """The addresses where a process listens, as Linux writes them: hexadecimal, of 32-bit words in host order."""
    files: set[str] = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            files.add(os.readlink(each))
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in files]


def test_ctrl_c_in_one_process_ends_the_other(interrupted: tuple[Outcome, float, list[str]]) -> None:
    found, took, _ = interrupted
    print(f"all ended {took:.2f} s after Ctrl-C")
    assert found.codes[1] in {-signal.SIGINT, 130}, found.shown
    assert found.codes[0] == 1, found.shown
    assert re.search(r"process 1( \(\S+, pid \d+\))? (failed: KeyboardInterrupt|has ended)", found.texts[0]), (
        found.shown
    )
    assert took < together.SOON


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_all_of_it_listens_on_loopback(interrupted: tuple[Outcome, float, list[str]]) -> None:
    _, _, listened = interrupted
    assert len(listened) >= 2 * 4, "two transports, their server, and the watchdog of each process"
    loopback = {f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}", "0" * 16 + "FFFF00000100007F"}
    assert set(listened) <= loopback


def copy_launcher(folder: Path) -> None:
    """Copies gpt_processes.py to a folder where it finds no JAX, which `start` does not need."""
    shutil.copy(EXAMPLES / "gpt_processes.py", folder)
    (folder / "jax.py").touch()
    (folder / "jaxpp.py").write_text("distributed = None\n", encoding="utf-8")


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_launcher(blow: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "gpt.py"  # what is started instead: it says who it is, and waits
    script.write_text(
        "import os, sys, threading, time, gpt_processes\n"
        "threading.Thread(target=gpt_processes.end_with_launcher, daemon=True).start()\n"
        "open(sys.argv[-1], 'w').write(str(os.getpid())); time.sleep(60)"
    )
    copy_launcher(tmp_path)
    command = [sys.executable, "-c", "import gpt_processes; gpt_processes.start(2, [])"]
    numbers = [tmp_path / str(number) for number in range(2)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as starter:
        end = time.monotonic() + 60
        while not all(each.exists() and each.read_text() for each in numbers) and time.monotonic() < end:
            time.sleep(0.02)
        starter.send_signal(blow)
        assert starter.wait(together.SOON) in {-blow, 130}
    end = time.monotonic() + together.SOON
    while any(is_running(int(each.read_text())) for each in numbers) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(is_running(int(each.read_text())) for each in numbers)


def is_running(pid: int) -> bool:
    """Whether there is such a process, which is no zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_wrong_variables_and_where_it_listens() -> None:
    found = run("wrong_variables", 2, survivors=[0, 1])
    assert found.codes == [0, 0], found.shown
    for process in (0, 1):
        assert found.find(process, "type") == ["ProcessError"] * 3
        seconds, address, secret = found.find(process, "message")
        assert seconds == "JAXPP_WATCHDOG_SECONDS is 'a minute'; give seconds, as 60"
        assert address.startswith("JAXPP_TRANSFER_ADDRESS is '192.0.2.1', no address of this host (")
        message = rf"process {1 - process} at 127.0.0.1:\d+ has another job secret \(JAXPP_JOB_SECRET\)"
        assert re.fullmatch(message, secret)
        assert all(each.startswith("127.0.0.1:") for each in found.find(process, "addresses")[0])
