"""The start of JAX on all processes of a job, which hear each other over the connections of the roll call.

JAX's own start waits for all processes in C++, and nothing ends that wait. At its timeout it aborts the process. So it
runs in a separate thread. Each process tells process 0 that it has started, or why not. Process 0 tells all others the
outcome. A process that hangs up before the outcome is gone.
"""

import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from jaxpp.runtime.processes.autopsy import named
from jaxpp.runtime.processes.handshake import LONGEST, Connection
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.runtime.processes.waiting import WaitFor, aside, in_a_line
from jaxpp.runtime.processes.wire import TICK

POLITE = 5.0
"""The least number of seconds for a part of the start, even if the last process came at the last moment."""

BEAT = 0.5
"""Seconds between two heartbeats."""

SILENT = 2.0
"""The error names a process as missing if it has sent no message for this many seconds."""

LAST = 1.0
"""Seconds that a process waits at the end for the others to read its last message."""

JAX_START = "see whether every process reaches the coordinator's address; there may be a firewall"

MESSAGE = 600
"""The largest number of characters of an error in a message."""


class JointStart:
    """Starts JAX on all processes.

    me: the number of this process. count: the number of processes.
    others: the connections by process. Process 0 has one to each other process. Each other process has one to
        process 0.
    seconds: the largest duration of the start.
    kept: the socket that keeps the port of the coordinator for JAX.
    bind_address: the address at which JAX's coordinator listens; empty for all addresses of the host.
    """

    def __init__(
        self,
        me: int,
        count: int,
        others: Mapping[int, Connection],
        seconds: float,
        kept: socket.socket | None = None,
        bind_address: str = "",
    ) -> None:
        self.me, self.count, self.others, self.seconds, self.bind_address = me, count, others, seconds, bind_address
        self._kept = kept
        self._end = time.monotonic() + seconds
        self._said = 0.0
        self._started: set[int] = set()
        self._is_over = self._is_told = self._is_given_up = False
        self._ended = threading.Event()
        self._ended.set()

    def run(self, start: Callable[[float, Callable[[], None]], None]) -> None:
        """Calls a function that starts JAX, and returns when all processes have started.

        start: gets the seconds that it may take, and a function to call during its waits, whose error ends them.
        Raises the errors of `start`, and ProcessError if another process fails or ends, or the start takes too long.
        """
        with contextlib.ExitStack() as opened:
            for each in self.others.values():
                opened.enter_context(each.socket)
                each.socket.setblocking(False)
                each.heard = time.monotonic()
            if self._kept is not None:
                opened.enter_context(self._kept)
            selector = opened.enter_context(selectors.DefaultSelector())
            for number, each in self.others.items():
                selector.register(each.socket, selectors.EVENT_READ, number)
            try:
                self._run(start, selector)
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._hang_up()
                self._ended.wait(LAST / 2)

    def _run(self, start: Callable[[float, Callable[[], None]], None], selector: selectors.BaseSelector) -> None:
        for number in self.others:  # messages that came together with the outcome of the roll call
            self._hear(number, came=False)
        self._ended.clear()
        with WaitFor("JAX to start on all processes", None, JAX_START):
            aside(partial(self._start, start), lambda _: self._look(selector, 0.0))
        self._started.add(self.me)
        self._say(started=True)
        with WaitFor("JAX to start on the other processes", (0,)) as wait:
            while not self._is_over:
                if self.me == 0 and len(self._started) == self.count:
                    self._say(problem="")
                    return
                wait.peers = (0,) if self.me else tuple({*range(self.count)} - self._started)
                self._look(selector, TICK)

    def _start(self, start: Callable[[float, Callable[[], None]], None]) -> None:
        try:
            start(self.seconds, self._look_aside)
        finally:
            self._ended.set()

    def _fail(self, error: BaseException) -> None:
        """Tells the others of an error that they don't know yet."""
        self._is_given_up = True
        if not self._is_told:
            self._say(problem=f"process {self.me} could not start: {in_a_line(error)}"[:MESSAGE])

    def _hang_up(self) -> None:
        """Hangs up, after waiting at most LAST seconds for the others to do so. Otherwise they lose unread messages."""
        end = time.monotonic() + LAST
        for each in self.others.values():
            with contextlib.suppress(OSError):
                each.socket.shutdown(socket.SHUT_WR)
        for each in self.others.values():
            with contextlib.suppress(OSError):
                each.socket.settimeout(max(end - time.monotonic(), TICK))
                while each.socket.recv(LONGEST):
                    pass

    def _look_aside(self) -> None:
        """Ends a wait of the thread that starts JAX, if the start was given up. Python can't exit during C++."""
        if self._is_given_up:
            raise ProcessError("the start was given up")

    def _look(self, selector: selectors.BaseSelector, seconds: float) -> None:
        """Reads the messages of the others, and sends a heartbeat. Raises ProcessError as `run`."""
        for key, _ in selector.select(seconds):
            self._hear(key.data)
        now = time.monotonic()
        if now - self._said > BEAT:
            self._said = now
            self._say()
        if now > self._end + (SILENT if self.me else TICK):  # process 0 knows more, so its deadline comes first
            self._give_up(now)

    def _hear(self, number: int, *, came: bool = True) -> None:
        connection = self.others[number]
        try:
            for text in connection.receive() if came else connection.taken_apart():
                message = json.loads(text)
                if message.get("problem"):
                    self._agree(str(message["problem"]))
                self._is_over = self._is_over or "problem" in message
                if "started" in message:
                    self._started.add(number)
        except (OSError, ValueError):
            if not self._is_over:
                self._agree(
                    f"{connection.name} has ended after all had come, and before JAX had started on all {self.count} "
                    "processes; its own output says why: start all of them again"
                )

    def _give_up(self, now: float) -> None:
        silent = [number for number, each in self.others.items() if now - each.heard > SILENT]
        took = f"not all {self.count} processes have started JAX within {self.seconds:.0f} s after they had come"
        if silent:
            names = ", ".join(self.others[number].name for number in silent)
            self._agree(f"{took}: nothing is heard of {names}; start all of them again")
        missing = sorted({*range(self.count)} - self._started) if self.me == 0 else [self.me]
        self._agree(f"{took}: {named(missing)} did not; start all of them again, with a longer initialization_timeout")

    def _agree(self, problem: str) -> None:
        """Raises a problem. Process 0 first tells all others."""
        if self.me == 0:
            self._say(problem=problem)
        self._is_told = True
        raise ProcessError(problem)

    def _say(self, **message: object) -> None:
        for each in self.others.values():
            with contextlib.suppress(OSError):  # a broken connection is noticed when it is read
                each.send(message)
