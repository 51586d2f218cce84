"""The office, which connects the head of a job with the launchers and the processes."""

import collections
import contextlib
import dataclasses
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from jaxpp import _jobs
from jaxpp._system import keep_port, lend_port, tell
from jaxpp.healing.head import Head, JobOptions, Worker
from jaxpp.healing.messages import MessageConnection
from jaxpp.healing.store import StatePart
from jaxpp.runtime.processes.waiting import in_a_line

TICK = 0.05
KEPT = 64
"""The number of ports of former services that are kept."""
ROLL_CALL = 10.0
"""Seconds in which the other launchers come to a launcher that coordinates the job from now on."""


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A launcher of the job.

    address: the address of its Store.
    connection: its connection.
    slots: the slots of its processes.
    """

    address: str
    connection: MessageConnection
    slots: Sequence[int]


class Office:
    """The head with its connections. Each connection has a thread, and one more thread calls the head.

    options: the options of the job.
    host: the address at which it starts coordination services.
    own: the address of the launcher in this process.
    expected: the launchers to wait for, of a job that another head has coordinated before.
    """

    def __init__(self, options: JobOptions, host: str, own: str, expected: Collection[str] = ()) -> None:
        self._options, self._host, self._own = options, host, own
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._kept: collections.deque[socket.socket] = collections.deque()
        """The ports of former services: a process that still waits for one in C++ must not reach another service."""
        self._launchers: list[Launcher] = []
        self._head = Head(options, self._start_service, self._drop)
        self._expected, self._expects_until = {*expected}, time.monotonic() + ROLL_CALL
        if expected:
            self._head.rest(ROLL_CALL)
        threading.Thread(target=self._run, name="jaxpp-office", daemon=True).start()

    def _run(self) -> None:
        told = ""
        while True:
            try:
                with contextlib.suppress(queue.Empty):
                    self._todo.get(timeout=TICK)()
                self._end_roll_call()
                self._head.tick()
                if self._head.end is not None:
                    self._tell_agents(end=self._head.end)
            except Exception as error:  # of any kind: without this thread nothing would heal any more
                if in_a_line(error) != told:
                    told = in_a_line(error)
                    tell(f"the head of the job could not do something, and goes on: {told}")
                time.sleep(TICK)

    def _end_roll_call(self) -> None:
        """Ends a roll call, when all have come or it is late. Ends the job if those who came can't go on."""
        if not self._expected or (time.monotonic() < self._expects_until and not self._have_come()):
            return
        self._head.rest(0.0)
        self._expected = set[str]()
        if self._here < self._options.least:
            self._head.stop(
                f"the launchers that are left have {self._here} processes, and --least is {self._options.least}; start "
                "the job again from a checkpoint"
            )

    @property
    def _here(self) -> int:
        """The number of processes of the launchers that are connected."""
        return sum(len(each.slots) for each in self._launchers)

    def _have_come(self) -> bool:
        return self._expected <= {each.address for each in self._launchers}

    def end(self, reason: str) -> None:
        """Tells the other launchers that the job ends, before this process does."""
        for each in self._launchers:
            send(each.connection, end=reason)

    def serve(self, connection: MessageConnection, first: dict[str, Any] | None = None) -> None:
        """Serves a launcher or a process until it hangs up.

        first: its first message, if that was received.
        """
        if first is None:
            connection.beat()
            first = connection.receive()
        if "agent" in first:
            self._serve_agent(connection, first)
        else:
            self._serve_worker(connection, first["worker"], first["pid"])

    def _serve_agent(self, connection: MessageConnection, first: dict[str, Any]) -> None:
        address: str = first["agent"]
        slots: int | list[int] = first["slots"]
        parts = [StatePart(*each) for each in first["parts"]]
        was_safe: bool = first["was_safe"]
        self._todo.put(lambda: self._add_agent(connection, address, slots, parts, was_safe))
        why = "it hung up"
        try:
            while True:
                message = connection.receive()
                self._todo.put(partial(self._head.stop, message["end"]))
        except (OSError, EOFError) as error:
            why = str(error)
        finally:
            connection.close()
            self._todo.put(lambda: self._lose_agent(address, why))

    def _add_agent(
        self,
        connection: MessageConnection,
        address: str,
        slots: int | list[int],
        parts: Sequence[StatePart],
        was_safe: bool,
    ) -> None:
        """Adds a launcher, with so many free slots or with the slots that it had under another head."""
        taken = {slot for each in self._launchers for slot in each.slots}
        free = [slot for slot in range(self._options.slots) if slot not in taken]
        own = free[:slots] if isinstance(slots, int) else [slot for slot in slots if slot in free]
        wanted = slots if isinstance(slots, int) else len(slots)
        if wanted > len(own):
            left = f"{wanted} processes more: {len(free)} of {self._options.slots} are not started yet"
            send(connection, refused=left)
            return
        self._launchers.append(Launcher(address, connection, own))
        self._head.stores.append(address)
        self._head.found(address, parts, was_safe)
        send(connection, slots=own, options=dataclasses.asdict(self._options), was_safe=self._head.was_safe)
        self._tell_next()

    def _lose_agent(self, address: str, why: str) -> None:
        if address not in self._head.stores:  # the agent was refused
            return
        self._launchers = [each for each in self._launchers if each.address != address]
        self._head.lost_store(address)
        self._tell_next()
        if self._head.end is None:
            left = f"{len(self._launchers)} {'is' if len(self._launchers) == 1 else 'are'} left"
            tell(f"the launcher at {address} is gone, with what it held ({why}); {left}")
        for each in [each for each in self._head.workers if each.store == address]:
            each.kill()
            self._head.gone(each, "is lost with its launcher")
        gone = self._options.slots - self._here
        if self._head.generation and self._options.may_move and self._here < self._options.least <= gone:
            self._head.stop("the launchers that are lost may go on by themselves, if they live: join their job")

    def _tell_next(self) -> None:
        """Tells the launchers which of them coordinate the job after this one, in their order."""
        self._tell_agents(next=[each.address for each in self._launchers if each.address != self._own])

    def _serve_worker(self, connection: MessageConnection, slot: int, pid: int) -> None:
        worker = Worker(slot, "", partial(send, connection), connection.close)

        def join() -> None:
            launcher = next((each for each in self._launchers if slot in each.slots), None)
            if launcher is None:  # the agent is gone
                connection.close()
                return
            worker.store = launcher.address

            def kill() -> None:
                send(launcher.connection, kill=slot, pid=pid)
                connection.close()

            worker.kill = kill
            send(launcher.connection, joined=slot)
            self._head.joined(worker)

        self._todo.put(join)
        try:
            while True:
                message = connection.receive()
                self._todo.put(partial(self._hear, worker, message))
        except TimeoutError:
            self._todo.put(lambda: self._head.frozen(worker))
        finally:
            connection.close()
            self._todo.put(lambda: self._head.gone(worker))

    def _hear(self, worker: Worker, message: dict[str, Any]) -> None:
        if "held" in message:
            generation, step = message["held"]
            self._head.held(worker, generation, step, message["stores"])
        elif "ready" in message:
            self._head.ready(worker, message["ready"], message["lost"], message["unreachable"])
        elif "fails" in message:
            self._head.fails(worker, message["fails"])
        elif "leaves" in message:
            self._head.leaves(worker, message["leaves"])
        elif "done" in message:
            self._head.done(worker)

    def _start_service(self, count: int) -> tuple[Any, str]:
        kept = keep_port(self._host)
        lend_port(kept)
        self._kept.append(kept)
        if len(self._kept) > KEPT:
            self._kept.popleft().close()
        address = f"{self._host}:{kept.getsockname()[1]}"
        return _jobs.start_coordination(address, count), address

    def _drop(self, generation: int, step: int) -> None:
        self._tell_agents(drop=[generation, step])

    def _tell_agents(self, **message: Any) -> None:
        for each in self._launchers:
            send(each.connection, **message)


def send(connection: MessageConnection, **message: Any) -> None:
    """Sends a message. Ignores a lost connection, which the receiving thread notices."""
    with contextlib.suppress(OSError):
        connection.send(**message)
