"""The launcher that `jaxpp-run` runs on each host: it starts processes, restarts dead ones, and keeps their states."""

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from jaxpp._system import tell
from jaxpp.healing.head import JobOptions
from jaxpp.healing.member import HEAD, PLANS, RESTART, SLOT
from jaxpp.healing.messages import Listener, MessageConnection, dial
from jaxpp.healing.office import TICK, Office, send
from jaxpp.healing.store import Store
from jaxpp.runtime.processes.membership import watchdog_seconds

GRACE = 10.0
"""Seconds that processes have to end after the job has ended."""
LAST_WORD = 2.0
"""Seconds that the head has to tell that the job is done, after a process has ended with exit code 0."""
STARTS = 3
"""The number of starts after which the job ends, if a process dies each time before it joins."""
SPARE_FIRST = 1.0
"""Seconds until a dead process is started anew in a job with spares. Its start would slow down the takeover."""
LIVES = 2.0
"""Seconds in which a head that lives takes a connection."""


class Agent:
    """The agent of one host, which runs the host's processes. It coordinates the job if the first host is lost.

    secret: the secret of the job.
    command: the command of each process.
    host: the address at which the Store listens.
    plans: a folder of this host, for the compiled steps of a job with spares.
    """

    def __init__(self, secret: bytes, command: Sequence[str], host: str, plans: str) -> None:
        self._secret, self._command, self._host, self._plans = secret, command, host, plans
        self._store = Store(host, secret, self._serve)
        self._office: Office | None = None
        """The office of the job, if it is in this process."""
        self._became_head = threading.Event()
        self._next: Sequence[str] = ()
        """The launchers that coordinate the job after the head, in their order."""
        self._was_safe = False
        """Whether a state was ever held as a whole."""
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._starts: dict[int, int] = {}
        """The starts of each slot since its process joined, or the job began."""
        self._to_start: dict[int, float] = {}
        """The slots whose processes are to be started anew, and when."""
        self._is_moving = False
        """Whether this launcher looks for the next head. Then it starts no process."""
        self._end: str | None = None
        self._ended = threading.Event()

    def begin(self, options: JobOptions, port: int, count: int) -> None:
        """Begins a job, which this launcher coordinates, with `count` of its processes. Raises OSError for the port."""
        self._office = Office(options, self._host, self._store.address)
        self.join(Listener(self._host, self._secret, self._office.serve, port).address, count)

    def join(self, head: str, slots: int | Sequence[int]) -> None:
        """Joins the job of the head at host:port, with so many processes or with those of these slots.

        Raises ConnectionError if it can't.
        """
        self._head, self._connection = head, dial(head, self._secret)
        self._connection.send(
            agent=self._store.address, slots=slots, parts=self._store.parts(), was_safe=self._was_safe
        )
        first = self._connection.receive()
        if "refused" in first:
            raise ConnectionError(first["refused"])
        self._options, self._slots = JobOptions(**first["options"]), first["slots"]
        self._was_safe = first["was_safe"]
        self._rest = SPARE_FIRST if self._options.spares else 0.0
        self._environment = {**os.environ, HEAD: head, "JAXPP_JOB_SECRET": self._secret.decode()}
        if self._options.spares:
            self._environment[PLANS] = self._plans
        self._connection.beat()
        threading.Thread(target=self._listen, args=[self._connection], name="jaxpp-agent", daemon=True).start()

    def run(self) -> int:
        """Runs the processes until the job ends; returns the exit code."""
        failed = False
        try:
            self._to_start = dict.fromkeys(self._slots, 0.0)
            while self._end is None and (self._children or self._to_start):
                for slot in [slot for slot, when in self._to_start.items() if when <= time.monotonic()]:
                    if not self._is_moving:
                        del self._to_start[slot]
                        self._start(slot)
                time.sleep(TICK)
                for slot, child in list(self._children.items()):
                    if child.poll() is not None:
                        if child.returncode == 0:  # it has made all steps, or its script has ended before
                            self._ended.wait(LAST_WORD)
                        del self._children[slot]
                        if self._end is None:
                            self._restart(slot, child)
            patience = time.monotonic() + GRACE
            while self._children and (self._end == "" or time.monotonic() < patience):
                time.sleep(TICK)
                for slot, child in list(self._children.items()):
                    if child.poll() is not None:
                        failed = failed or child.returncode != 0
                        del self._children[slot]
            if self._end and self._office is not None:  # otherwise another launcher would take over
                self._office.end(self._end)
        except BaseException:
            if self._office is not None:
                self._office.end(f"jaxpp-run at {self._head} was ended, and the job with it")
            raise
        finally:
            self._end_children()
        if self._end:
            tell(self._end)
        return int(failed or bool(self._end))

    def _end_children(self) -> None:
        """Ends the remaining processes by SIGTERM. After GRACE seconds, or at a second interrupt, by SIGKILL."""
        children = list(self._children.values())
        try:
            for child in children:
                child.terminate()
            patience = time.monotonic() + GRACE
            while any(child.poll() is None for child in children) and time.monotonic() < patience:
                time.sleep(TICK)
        finally:
            for child in children:
                child.kill()
            for child in children:
                child.wait()

    def _start(self, slot: int) -> None:
        environment = {**self._environment, SLOT: str(slot)}
        self._children[slot] = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, env=environment)
        self._starts[slot] = self._starts.get(slot, 0) + 1

    def _restart(self, slot: int, child: "subprocess.Popen[bytes]") -> None:
        how = f"exit code {child.returncode}" if child.returncode >= 0 else f"signal {-child.returncode}"
        is_error = 0 < child.returncode != RESTART and not self._is_moving
        if is_error and self._starts[slot] and not self._was_safe:  # the script has never trained
            said = "what it said stands above; the script is not started again"
            self._finish(f"the process of slot {slot} ended by {how} before it called jaxpp.healing.train: {said}")
            return
        if child.returncode == 0 and self._starts[slot]:
            self._finish(f"the script has ended, in slot {slot}, and never called jaxpp.healing.train")
            return
        if self._starts[slot] >= STARTS:
            self._finish(f"the process of slot {slot} ended {STARTS} times before it trained: {how}")
            return
        tell(f"the process of slot {slot} (pid {child.pid}) ended by {how}, and is started anew")
        self._to_start[slot] = time.monotonic() + (0.0 if self._is_moving else self._rest)

    def _finish(self, why: str) -> None:
        """Ends the job."""
        self._end = why
        send(self._connection, end=why)

    def _listen(self, connection: MessageConnection) -> None:
        try:
            while True:
                self._hear(connection.receive())
        except (OSError, EOFError):
            connection.close()
            if self._end is None:
                self._move()

    def _hear(self, message: dict[str, Any]) -> None:
        if "joined" in message:
            self._starts[message["joined"]] = 0
        elif "drop" in message:
            self._was_safe = True
            self._store.drop_before(*message["drop"])
        elif "next" in message:
            self._next = message["next"]
        elif "end" in message:
            self._end = message["end"]
            self._ended.set()
        elif (child := self._children.get(message["kill"])) is not None and child.pid == message["pid"]:
            child.kill()

    def _move(self) -> None:
        """Finds the launcher that coordinates the job from now on, which may be this one; otherwise ends the job."""
        lost = f"jaxpp-run at {self._head} is gone"
        gone = f"{lost}, and the job with it"
        try:
            dial(self._head, self._secret, LIVES).close()
            self._end = f"jaxpp-run at {self._head} has given this launcher up: start it again"
        except ConnectionError:
            if not self._options.may_move:
                half = f"--least {self._options.least} of {self._options.slots} processes is not more than half"
                self._end = f"{gone}, as {half}: start it again from a checkpoint"
        if self._end is not None:
            return
        self._is_moving = True
        for child in list(self._children.values()):  # it has lost the head, too
            child.kill()
        for number, address in enumerate(self._next):
            if address == self._store.address:
                self._office = Office(self._options, self._host, address, self._next[number:])
                self._became_head.set()
            try:
                self.join(address, self._slots)
            except (OSError, EOFError):
                continue
            if self._became_head.is_set():
                tell(f"this launcher coordinates the job now: other hosts join it by --join {address}")
            else:
                tell(f"{lost}; the launcher at {address} coordinates the job now")
            self._is_moving = False
            return
        self._end = f"{gone}: start it again from a checkpoint"

    def _serve(self, connection: MessageConnection, first: dict[str, Any]) -> None:
        """Serves what belongs to the head, as soon as this launcher coordinates the job."""
        connection.beat()
        if self._became_head.wait(watchdog_seconds()) and self._office is not None:
            self._office.serve(connection, first)
        else:
            connection.send(refused=f"the launcher at {self._store.address} has not lost jaxpp-run at {self._head}")
