"""Who may ask a process for its waits, and how: a signal beside handlers of others, and `jaxpp-run --autopsy`."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from unit.runtime.processes import forks

from jaxpp.runtime.processes import reporting, unix
from jaxpp.runtime.processes.autopsy import STILL
from jaxpp.runtime.processes.waiting import WaitFor
from jaxpp.tools import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Unix sockets without files")


def alone(number: str, before: str, job: str) -> None:
    """A process of a job, which knows only itself."""
    exec(before)
    reporting.reporter(job, int(number))
    with WaitFor("the roll call", (1 - int(number),)):
        print("ready", flush=True)
        threading.Event().wait()


def process(number: int = 0, before: str = "", job: str = "host0:1") -> AbstractContextManager[forks.Fork]:
    """A process that runs `alone`, after it has run `before`."""
    return forks.running(alone, str(number), before, job)


def test_a_signal_beside_the_users_handler() -> None:
    """Both run, once."""
    handler = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'mine\\n'))"
    with process(before=handler) as child:
        assert child.lines(1) == ["ready"]
        child.send_signal(signal.SIGUSR1)
        found = child.lines(4)
        assert "mine" in found
        said = "jaxpp: no process waits for another one; the job moves"
        assert said in found
        time.sleep(3 * reporting.QUIET)
        assert child.output.read_text().count(said) == 1
        assert child.poll() is None


IN_C = """
import ctypes, threading
from jaxpp.runtime.processes import reporting
reporting.reporter("host0:1", 0)
mutex = ctypes.create_string_buffer(64)
threading.Thread(target=print, args=("ready",), kwargs={"flush": True}).start()
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def test_a_signal_while_the_main_thread_is_in_c() -> None:
    """Where no handler of Python runs, as in a wait of XLA."""
    with process(before=IN_C) as child:
        assert child.lines(1) == ["ready"]
        time.sleep(0.1)
        child.send_signal(signal.SIGUSR1)
        assert child.lines(1) == ["jaxpp: no process waits for another one; the job moves"]


FORKS = """
import os, signal
from jaxpp.runtime.processes import reporting
reporting.reporter("host0:1", 0)
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"mine\\n"))
if (child := os.fork()) == 0:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fork_keeps_a_handler_that_the_user_has_set_later() -> None:
    with process(before=FORKS) as child:
        assert child.lines(2) == ["mine", "ready"]


@pytest.mark.parametrize(
    "before", ["faulthandler.register(signal.SIGUSR1)", "signal.signal(signal.SIGUSR1, signal.SIG_IGN)"]
)
def test_a_signal_that_has_another_use(before: str) -> None:
    with process(before=f"import faulthandler, signal; {before}") as child:
        assert child.lines(2) == [
            "jaxpp: SIGUSR1 has another use here, so it prints no waits; jaxpp-run --autopsy prints them",
            "ready",
        ]


FAILS_TO_START = """
from jaxpp import distributed
try:
    distributed.initialize("127.0.0.1:1", 2, 1, initialization_timeout=0.1)
except distributed.ProcessError:
    pass
"""


def test_the_tool_joins_what_the_processes_of_a_job_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a roll call, where no process hears the others yet; it keeps jobs apart, and users.

    A process that could not join one job belongs to the next one.
    """
    with process(0) as first, process(1, FAILS_TO_START) as second, process(0, job="host0:2") as other:
        for each in (first, second, other):
            assert each.lines(1) == ["ready"]
        time.sleep(STILL + 0.2)
        assert run.main(["--autopsy", str(second.pid)]) == 0
        found = capsys.readouterr().out
        assert found.startswith("processes 0, 1 wait for each other; nothing has moved for ")
        assert run.main(["--autopsy", str(forks._server().pid)]) == 0  # as if this were their `jaxpp-run`
        found = capsys.readouterr().out
        assert found.count("processes 0, 1 wait for each other") == found.count("process 1 has not been heard of") == 1
        second.send_signal(signal.SIGSTOP)
        assert run.main(["--autopsy", str(second.pid)]) == 0
        found = capsys.readouterr().out
        assert f", pid {second.pid}) is stopped\n  go on: kill -CONT {second.pid} lets it go on" in found
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(LookupError):
            reporting.autopsies(first.pid)


def test_processes_that_take_part_in_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*arguments: str) -> str:
        assert run.main(["--autopsy", *arguments]) == 1
        return capsys.readouterr().err

    highest = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert error(str(highest)) == (
        f"jaxpp-run: --autopsy: there is no process {highest} on this host; give one of a job, or none\n"
    )
    with subprocess.Popen(["sleep", "60"]) as other:
        assert error(str(other.pid)) == (
            f"jaxpp-run: --autopsy: process {other.pid} takes part in no job of jaxpp; give one of a job, or none\n"
        )
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert error(str(other.pid)) == (
            f"jaxpp-run: --autopsy: process {other.pid} is of another user; give one of a job of yours, or none\n"
        )
        other.kill()

    def nobody(_: str) -> list[str]:
        return []

    monkeypatch.setattr(unix, "listening", nobody)
    assert error() == "jaxpp-run: --autopsy: no process of yours takes part in a job of jaxpp on this host\n"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert error() == (
        "jaxpp-run: --autopsy: only Linux lets it ask the processes of a job: "
        "send one of them SIGUSR1, and look at its output\n"
    )
    with pytest.raises(SystemExit, match="2"):
        run.main(["--autopsy", "1", "train.py"])
    assert capsys.readouterr().err.endswith("jaxpp-run: error: --autopsy starts nothing, and takes no script\n")
