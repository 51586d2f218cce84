"""The launcher that `jaxpp-run` runs on each host: it starts processes, restarts dead ones, and keeps their states."""

import collections
import contextlib
import os
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jaxpp import _jobs
from jaxpp._system import keep_port, lend_port, tell
from jaxpp.healing.head import Head, Worker
from jaxpp.healing.member import HEAD, PLANS, SLOT
from jaxpp.healing.messages import Listener, MessageConnection, dial
from jaxpp.healing.store import Store
from jaxpp.runtime.processes.waiting import in_a_line

TICK = 0.05
GRACE = 10.0
"""Seconds that processes have to end after the job has ended."""
LAST_WORD = 2.0
"""Seconds that the head has to tell that the job is done, after a process has ended with exit code 0."""
STARTS = 3
"""The number of starts of a process that never joins, after which the job ends: its script must be wrong."""
SPARE_FIRST = 1.0
"""Seconds until a dead process is started anew in a job with spares. Its start would slow down the takeover."""
KEPT = 64
"""The number of ports of former services that are kept."""


class Agent:
    """The agent of one host, which runs the host's processes.

    head: the address host:port of the head.
    secret: the secret of the job.
    command: the command of each process.
    count: the number of processes.
    host: the address at which the Store listens.
    plans: a folder of this host, for the compiled steps of a job with spares.
    """

    def __init__(self, head: str, secret: bytes, command: Sequence[str], count: int, host: str, plans: str) -> None:
        self._command, self._head = command, head
        self._store = Store(host, secret)
        self._connection = dial(head, secret)
        self._connection.send(agent=self._store.address, count=count)
        first = self._connection.receive()
        if "refused" in first:
            raise ConnectionError(first["refused"])
        self._environment = {**os.environ, HEAD: head, "JAXPP_JOB_SECRET": secret.decode()}
        if first["spares"]:
            self._environment[PLANS] = plans
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._slots: Sequence[int] = first["slots"]
        self._starts = dict.fromkeys(self._slots, 0)
        self._rest = SPARE_FIRST if first["spares"] else 0.0
        self._to_start: dict[int, float] = {}
        """The slots whose processes are to be started anew, and when."""
        self._end: str | None = None
        self._ended = threading.Event()
        self._connection.beat()
        threading.Thread(target=self._listen, name="jaxpp-agent", daemon=True).start()

    def run(self) -> int:
        """Runs the processes until the job ends; returns the exit code."""
        failed = False
        try:
            for slot in self._slots:
                self._start(slot)
            while self._end is None and (self._children or self._to_start):
                time.sleep(TICK)
                for slot in [slot for slot, when in self._to_start.items() if when <= time.monotonic()]:
                    del self._to_start[slot]
                    self._start(slot)
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
        self._starts[slot] += 1

    def _restart(self, slot: int, child: "subprocess.Popen[bytes]") -> None:
        how = f"exit code {child.returncode}" if child.returncode >= 0 else f"signal {-child.returncode}"
        if child.returncode == 0 and self._starts[slot]:
            self._finish(f"the script has ended, in slot {slot}, and never called jaxpp.healing.train")
            return
        if self._starts[slot] >= STARTS:
            self._finish(f"the process of slot {slot} ended {STARTS} times before it trained: {how}")
            return
        tell(f"the process of slot {slot} (pid {child.pid}) ended by {how}, and is started anew")
        self._to_start[slot] = time.monotonic() + self._rest

    def _finish(self, why: str) -> None:
        """Ends the job."""
        self._end = why
        _send(self._connection, end=why)

    def _listen(self) -> None:
        try:
            while True:
                message = self._connection.receive()
                if "joined" in message:
                    self._starts[message["joined"]] = 0
                elif "drop" in message:
                    self._store.drop_before(*message["drop"])
                elif "end" in message:
                    self._end = message["end"]
                    self._ended.set()
                elif (child := self._children.get(message["kill"])) is not None and child.pid == message["pid"]:
                    child.kill()
        except (OSError, EOFError):
            self._connection.close()
            if self._end is None:
                self._end = f"jaxpp-run at {self._head} is gone, and the job with it: start it again from a checkpoint"


class Office:
    """The head with its connections. Each connection has a thread, and one more thread calls the head.

    processes, least, wait, prepares, spares: see Head.
    host, port: the address to listen at.
    """

    def __init__(
        self,
        processes: int,
        least: int,
        wait: float,
        host: str,
        port: int,
        secret: bytes,
        *,
        prepares: bool = False,
        spares: int = 0,
    ) -> None:
        self._host = host
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._kept: collections.deque[socket.socket] = collections.deque()
        """The ports of former services: a process that still waits for one in C++ must not reach another service."""
        self._agents: list[tuple[str, MessageConnection, Sequence[int]]] = []
        self._head = Head(processes, least, wait, self._start_service, self._drop, prepares=prepares, spares=spares)
        self.address = Listener(host, secret, self._serve, port).address
        threading.Thread(target=self._run, name="jaxpp-office", daemon=True).start()

    def _run(self) -> None:
        told = ""
        while True:
            try:
                with contextlib.suppress(queue.Empty):
                    self._todo.get(timeout=TICK)()
                self._head.tick()
                if self._head.end is not None:
                    self._tell_agents(end=self._head.end)
            except Exception as error:  # of any kind: without this thread nothing would heal any more
                if in_a_line(error) != told:
                    told = in_a_line(error)
                    tell(f"the head of the job could not do something, and goes on: {told}")
                time.sleep(TICK)

    def _serve(self, connection: MessageConnection) -> None:
        connection.beat()
        first = connection.receive()
        if "agent" in first:
            self._serve_agent(connection, first["agent"], first["count"])
        else:
            self._serve_worker(connection, first["worker"], first["pid"])

    def _serve_agent(self, connection: MessageConnection, address: str, count: int) -> None:
        self._todo.put(lambda: self._add_agent(connection, address, count))
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

    def _add_agent(self, connection: MessageConnection, address: str, count: int) -> None:
        taken = {slot for _, _, slots in self._agents for slot in slots}
        slots = sorted(self._head.order)
        free = [slot for slot in slots if slot not in taken]
        if count > len(free):
            left = f"{count} processes more: {len(free)} of {len(slots)} are not started yet"
            _send(connection, refused=left)
            return
        self._agents.append((address, connection, free[:count]))
        self._head.stores.append(address)
        _send(connection, slots=free[:count], spares=len(slots) - self._head.processes)

    def _lose_agent(self, address: str, why: str) -> None:
        if address not in self._head.stores:  # the agent was refused
            return
        self._agents = [each for each in self._agents if each[0] != address]
        self._head.lost_store(address)
        if self._head.end is None:
            left = f"{len(self._agents)} {'is' if len(self._agents) == 1 else 'are'} left"
            tell(f"the launcher at {address} is gone, with what it held ({why}); {left}")
        for each in [each for each in self._head.workers if each.store == address]:
            each.kill()
            self._head.gone(each, "is lost with its launcher")

    def _serve_worker(self, connection: MessageConnection, slot: int, pid: int) -> None:
        worker = Worker(slot, "", partial(_send, connection), connection.close)

        def join() -> None:
            launcher = next((each for each in self._agents if slot in each[2]), None)
            if launcher is None:  # the agent is gone
                connection.close()
                return
            worker.store, agent, _ = launcher

            def kill() -> None:
                _send(agent, kill=slot, pid=pid)
                connection.close()

            worker.kill = kill
            _send(agent, joined=slot)
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
        for _, connection, _ in self._agents:
            _send(connection, **message)


def _send(connection: MessageConnection, **message: Any) -> None:
    """Sends a message. Ignores a lost connection, which the receiving thread notices."""
    with contextlib.suppress(OSError):
        connection.send(**message)
