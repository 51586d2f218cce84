"""Reports of the waits of a job: when nothing moves, on SIGUSR1, and for `jaxpp-run --autopsy`.

One thread per process makes them, so that a report needs neither the main thread nor a lock of jaxpp. A signal reaches
the thread over a pipe into which a handler in C writes, because a thread in XLA runs no handler in Python. The tool
reaches it over a Unix socket that is named by the process id, and that answers only its own user.
"""

import contextlib
import dataclasses
import faulthandler
import json
import os
import re
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jaxpp._system import tell
from jaxpp.runtime.processes import unix
from jaxpp.runtime.processes.autopsy import ProcessState, explain
from jaxpp.runtime.processes.waiting import in_a_line, own_state

ANSWER = 2.0
"""Seconds that a process has to answer a question for its state."""

ADDRESS = "autopsy of "
"""The name of the sockets, before the process id."""

SILENT = "look at it on its host: it is stopped, or a function in C holds Python's lock; or its host has vanished"

STOPPED = ("T", "t")
"""The states of a process that is stopped, as by SIGSTOP or a debugger."""

QUIET = 0.1
"""Seconds without a word from the handler after which it has ended: it writes piece by piece, for one report."""

SIGNAL = getattr(signal, "SIGUSR1", None)


class Reporter:
    """The reporter of this process.

    job: the address of the coordinator, the same in all processes of the job.
    me: the number of this process.
    """

    def __init__(self, job: str, me: int) -> None:
        self.job, self.me = job, me
        self.pause = 5.0
        self.stand_alone()
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._listener = unix.listen(f"{ADDRESS}{os.getpid()}")
        self._before = self._catch()
        os.register_at_fork(after_in_child=self._drop)
        threading.Thread(target=self._run, name="jaxpp-autopsy", daemon=True).start()

    def stand_alone(self) -> None:
        """Forgets the other processes, which this one does not hear any more."""
        self.gather = lambda: {self.me: own_state(self.me)}
        self.hang = lambda: None

    def follow(
        self,
        gather: Callable[[], Mapping[int, ProcessState]],
        hang: Callable[[], Mapping[int, ProcessState] | None],
        pause: float,
    ) -> None:
        """Reports on all processes from now on.

        gather: asks for their states.
        hang: called every `pause` seconds; returns their states if this process is to report a hang.
        """
        self.gather, self.hang, self.pause = gather, hang, pause

    def _catch(self) -> Any:
        """Begins to report on the signal, and returns its handler in Python. None: the signal has another use."""
        if SIGNAL is None:
            return None
        handler = signal.getsignal(SIGNAL)
        is_users = callable(handler)  # then it is kept, and runs too
        if is_users or (handler is signal.SIG_DFL and not _is_caught(SIGNAL)):
            faulthandler.register(SIGNAL, self._write, all_threads=False, chain=is_users)
            return handler
        tell("SIGUSR1 has another use here, so it prints no waits; jaxpp-run --autopsy prints them")
        return None

    def _drop(self) -> None:
        """Leaves the socket and the signal to the parent. A handler that the user has set since then stays."""
        if SIGNAL is not None and self._before is not None and signal.getsignal(SIGNAL) == self._before:
            faulthandler.unregister(SIGNAL)
        if self._listener is not None:
            self._listener.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if self._listener is not None:
                selector.register(self._listener, selectors.EVENT_READ)
            while True:
                try:
                    self._serve([key.fileobj for key, _ in selector.select(self.pause)])
                except Exception as error:  # of any kind: it must end neither the job nor the next report
                    tell(f"no report of the waits could be made: {in_a_line(error)}")
                    time.sleep(self.pause)

    def _serve(self, ready: list[Any]) -> None:
        if self._read in ready:
            with contextlib.suppress(BlockingIOError):
                for _ in range(20):
                    os.read(self._read, 1 << 16)
                    time.sleep(QUIET)
            _report(self.gather())
        if self._listener in ready and self._listener is not None:
            accepted, _ = self._listener.accept()
            with accepted:
                if unix.is_own(accepted):
                    accepted.settimeout(ANSWER)
                    states = {number: state.message() for number, state in self.gather().items()}
                    with contextlib.suppress(OSError):  # the tool has gone meanwhile
                        accepted.sendall(json.dumps({"job": self.job, "me": self.me, "states": states}).encode())
        if not ready and (states := self.hang()):
            _report(states)


def _report(states: Mapping[int, ProcessState]) -> None:
    tell("\n  ".join(explain(states).lines))


def unanswered(state: ProcessState, seconds: float) -> ProcessState:
    """Returns the state of a process that has not answered for so many seconds, and why if that can be seen here."""
    found = re.fullmatch(r".*\((.*), pid (\d+)\)", state.name)
    if found and found[1] == socket.gethostname() and _status(int(found[2]))[0] in STOPPED:
        return dataclasses.replace(state, problem="is stopped", remedy=f"kill -CONT {found[2]} lets it go on")
    return dataclasses.replace(state, problem=f"has not answered for {seconds:.0f} s", remedy=SILENT)


_reporters: list[Reporter] = []


def reporter(job: str, me: int) -> Reporter:
    """Returns the reporter of this process, started at the first call. The first job stays until it is set to ""."""
    if not _reporters:
        _reporters.append(Reporter(job, me))
    own = _reporters[0]
    own.job, own.me = own.job or job, me
    return own


def autopsies(pid: int | None = None) -> list[str]:
    """Returns for each job of this user with a process on this host the lines of its autopsy. Takes a few seconds.

    pid: a process of the only job that is wanted, or the `jaxpp-run` that started it.

    Raises:
        LookupError: there is no such job.
    """
    pids = [int(each) for each in unix.listening(ADDRESS) if each.isdigit()]
    with ThreadPoolExecutor(max(len(pids), 1)) as pool:
        answers = dict(zip(pids, pool.map(_asked, pids), strict=True))
    found: list[str] = []
    asked = [each for each in pids if pid in (None, each, int(_status(each)[1]))]
    for job in sorted({answers[each]["job"] for each in asked if answers[each]} - {""}):
        states = _merged([answer for answer in answers.values() if answer and answer["job"] == job])
        found.append("\n  ".join(explain(states).lines))
    for each in asked:
        if answers[each] is None and _is_mine(each):
            state = unanswered(ProcessState(f"the process of a job ({socket.gethostname()}, pid {each})"), ANSWER)
            found.append(f"{state.name} {state.problem}\n  go on: {state.remedy}")
    if not found:
        raise LookupError(_missing(pid))
    return found


def _asked(pid: int) -> Any:
    """Returns the answer of a process's reporter; None if it is stopped, silent, or another user's."""
    connected = None if _status(pid)[0] in STOPPED else unix.connect(f"{ADDRESS}{pid}", 2 * ANSWER)
    if connected is None:
        return None
    with connected, contextlib.suppress(OSError, ValueError), connected.makefile("rb") as answer:
        return json.load(answer)
    return None


def _merged(answers: Sequence[Any]) -> Mapping[int, ProcessState]:
    """Returns the states of a job's processes: for each the one that it tells of itself, otherwise that of another."""
    states: dict[int, ProcessState] = {}
    for answer in answers:
        states |= {int(each): ProcessState.of(state) for each, state in answer["states"].items()}
    own = [each for each in answers if str(each["me"]) in each["states"]]  # its number may have changed meanwhile
    return states | {each["me"]: ProcessState.of(each["states"][str(each["me"])]) for each in own}


def _missing(pid: int | None) -> str:
    if sys.platform != "linux":
        return "only Linux lets it ask the processes of a job: send one of them SIGUSR1, and look at its output"
    if pid is None:
        return "no process of yours takes part in a job of jaxpp on this host"
    if not os.path.exists(f"/proc/{pid}"):
        return f"there is no process {pid} on this host; give one of a job, or none"
    if not _is_mine(pid):
        return f"process {pid} is of another user; give one of a job of yours, or none"
    return f"process {pid} takes part in no job of jaxpp; give one of a job, or none"


def _is_mine(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    return False


def _status(pid: int) -> Sequence[str]:
    """Returns the fields of a process of this host: its state, its parent... Only Linux tells."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return "", "0"


def _is_caught(number: int) -> bool:
    """Whether a handler in C has this signal, of which Python knows nothing. Only Linux tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)
    return False
