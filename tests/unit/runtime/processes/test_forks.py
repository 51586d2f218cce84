"""The process that others are forked of: what is left when tests are interrupted or killed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from unit.runtime.processes import forks

INTERRUPTED_THEN_KILLED = """
import os, signal, sys
from unit.runtime.processes import forks

environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
fork = forks.start("signal:pause", [], [], environment, sys.argv[1])
os.kill(forks._server().pid, signal.SIGINT)  # as a terminal does, to all
assert fork.poll() is None
print(forks._server().pid, fork.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_process_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED_THEN_KILLED, str(tmp_path / "output")]
    ran = subprocess.run(command, cwd=forks.TESTS, capture_output=True, text=True, timeout=60, check=False)
    places = [Path("/proc", pid) for pid in ran.stdout.split()]
    assert len(places) == 2, ran.stderr
    end = time.monotonic() + 20
    while any(place.exists() and "(zombie)" not in (place / "status").read_text() for place in places):
        assert time.monotonic() < end, "a process is left"
        time.sleep(0.01)


def says_its_name() -> None:
    print(__name__, flush=True)


def test_what_cannot_be_imported_fails_alone(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ModuleNotFoundError: No module named 'not_there'"):
        forks.start("signal:pause", [], ["not_there"], {}, str(tmp_path / "output"))
    with forks.running(says_its_name) as child:
        assert child.lines(1) == ["unit.runtime.processes.test_forks"]
