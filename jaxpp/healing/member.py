"""The member of a job that heals: a process's connections to the head and to the Stores."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxpp import _jobs
from jaxpp._system import tell
from jaxpp.healing.messages import MessageConnection, dial
from jaxpp.healing.state import HeldShard
from jaxpp.healing.store import FullError, Shard, StatePart, get, put, shards_of
from jaxpp.runtime.processes import choice, membership
from jaxpp.runtime.processes.autopsy import in_slot
from jaxpp.runtime.processes.reporting import reporter
from jaxpp.runtime.processes.waiting import WaitFor, aside

HEAD, SLOT, PLANS = "JAXPP_RUN_HEAD", "JAXPP_RUN_SLOT", "JAXPP_RUN_PLANS"
"""The variables by which `jaxpp-run` gives a process the address of the head, and the process's slot. In a job with
spares also a folder for compiled steps."""

ANSWER_SECONDS = 3.0
"""Seconds that a launcher has to give a part of a state, before the next one that holds it is asked."""

AGAIN_SECONDS = 5.0
"""Seconds until a launcher that did not take a copy is tried again."""

START_SECONDS = 60.0
"""Seconds that a generation has to begin. Its processes get the start from the head at the same time."""

TOO_FEW = "start more processes, or give a smaller --least"
NOT_HELD = "see whether all processes make this step, and whether their launchers reach each other"

RESTART = 75
"""The exit code of a process that is to be started again."""


class BrokenError(Exception):
    """The generation has ended: another process is gone, or failed."""


class EndError(RuntimeError):
    """The job that heals has ended, and could not prevent it."""


@dataclass(frozen=True)
class Go:
    """The head's message that begins a generation.

    go: the number of the generation.
    number, count: this process's number in it, and the number of its processes.
    coordinator: the address of its coordination service.
    stores: the addresses of the Stores that keep this process's part of the state.
    resume: the state to resume from: its generation and step, and by owner the Stores that hold its parts. None: the
        first state.
    prepares: whether the generation only compiles the step for its number of processes.
    """

    go: int
    number: int
    count: int
    coordinator: str
    stores: Sequence[str]
    resume: Mapping[str, Any] | None
    prepares: bool = False


class Membership:
    """The connection of this process to the head, and its copies of states in Stores."""

    def __init__(self) -> None:
        self._secret = membership.job_secret()
        reporter(os.environ[HEAD], in_slot(int(os.environ[SLOT])))
        self._head = dial(os.environ[HEAD], self._secret)
        self._changed = threading.Condition()
        self._go: Go | None = None
        self._stop: str | None = None
        self._end: str | None = None
        self._safe, self._regroups = -1, False
        self._spare = 0
        """The number of processes of a generation for which this process is to prepare as a spare; 0: none."""
        self._stores: dict[str, MessageConnection] = {}  # only for the thread `jaxpp-keep`
        self._not_kept: dict[str, tuple[float, Exception]] = {}
        """The Stores that took no copy, when each is tried again, and why. Only for the thread `jaxpp-keep`."""
        self._asked: dict[str, MessageConnection] = {}
        self._unreachable: list[str] = []
        """The launchers that did not give a part of the state to resume from."""
        self._to_keep: queue.SimpleQueue[tuple[StatePart, Sequence[tuple[Shard, memoryview]], Sequence[str]]]
        self._to_keep = queue.SimpleQueue()
        self.generation: Go | None = None
        threading.Thread(target=self._listen, name="jaxpp-head", daemon=True).start()
        threading.Thread(target=self._keep, name="jaxpp-keep", daemon=True).start()
        self._head.send(worker=int(os.environ[SLOT]), pid=os.getpid())
        self._head.beat()

    def join(self, prepare: Callable[[int], None]) -> Go:
        """Waits for the next generation, and joins its job of `jax.distributed`.

        prepare: called with the number of processes if this process waits as a spare.
        Raises EndError if the job has failed, SystemExit if the job is done without this process, and BrokenError if
        another process is gone before all have joined.
        """
        own = self._next(prepare)
        choice.choose(None)
        connect = partial(_jobs.connected_client, own.coordinator, own.number, int(START_SECONDS))
        try:
            client = aside(connect, lambda _: self._look())
        except ConnectionError as error:
            raise BrokenError(str(error)) from None
        _jobs.join_coordination(client, own.coordinator, own.number, own.count)
        membership.watch_all(START_SECONDS, self._look)
        return own

    def _next(self, prepare: Callable[[int], None]) -> Go:
        waits = WaitFor("jaxpp-run to begin again with the processes that it has", remedy=TOO_FEW)
        while True:
            with waits, self._changed:
                self._changed.wait_for(lambda: self._go is not None or self._end is not None or self._spare > 0)
                if self._go is not None:
                    self.generation, self._go = self._go, None
                    return self.generation
                if self._end is not None:
                    raise EndError(self._end) if self._end else SystemExit(0)
                count, self._spare = self._spare, 0
            prepare(count)
            waits = WaitFor("a process to take the place of")

    def _look(self) -> None:
        """Raises BrokenError if the generation has ended, and EndError if the job has failed."""
        with self._changed:
            if self._end:
                raise EndError(self._end)
            if self._stop is not None:
                raise BrokenError(self._stop)

    def leave(self, error: str = "", lost: Sequence[int] = ()) -> None:
        """Leaves the generation. JAX starts anew in the next one.

        On accelerators this process exits instead, and is started again, because it was never tried to make their
        clients twice. It also exits if a thread waits in XLA for a process that is gone.

        error: the error because of which it leaves. lost: the processes that it found dead or frozen.
        """
        if membership.is_stuck() or not _jobs.started_platforms() <= {"cpu"}:
            self._head.send(leaves=error or "it is started again")
            tell("this process is started again, as its backend can't be")
            os._exit(RESTART)
        membership.leave_job()
        reporter("", in_slot(int(os.environ[SLOT])))
        _jobs.leave_coordination()
        self._head.send(ready=error, lost=list(lost), unreachable=self._unreachable)
        self._unreachable = []

    def fail(self, error: str) -> None:
        """Tells the head of an error with which this process is about to end."""
        with contextlib.suppress(OSError):
            self._head.send(fails=error)

    def keep(self, step: int, shards: Sequence[tuple[Shard, memoryview]]) -> None:
        """Begins to copy this process's part of the state after `step` steps to the Stores. Returns at once."""
        own = self.generation
        assert own is not None  # it has joined
        self._to_keep.put((StatePart(own.go, step, own.number, own.count), shards, own.stores))

    def wait_until_safe(self, step: int) -> bool:
        """Waits until the whole state after `step` steps is held; returns whether to leave the generation then.

        Raises BrokenError if another process is gone.
        """
        own = self.generation
        others = sorted({*range(own.count)} - {own.number}) if own else None
        with WaitFor(f"the launchers to hold the state after {step} steps", others, NOT_HELD), self._changed:
            self._changed.wait_for(lambda: self._safe >= step or self._stop is not None or self._end)
            if self._safe < step:
                self._look()
            return self._regroups

    def held(self) -> list[HeldShard]:
        """Returns the shards of the state to resume from."""
        own = self.generation
        assert own is not None  # this process has joined
        assert own.resume is not None  # there is a state
        found: list[HeldShard] = []
        held = own.resume["holders"]
        for owner, holders in enumerate(held):
            part = StatePart(own.resume["generation"], own.resume["step"], owner, len(held))
            ask = partial(self._ask, holders)
            for number, shard in enumerate(ask(shards_of, part)):
                found.append((shard, partial(ask, get, part, number, shard)))
        return found

    def done(self) -> None:
        """Tells the head that this process has made all steps."""
        self._head.send(done=True)

    def _ask(self, holders: Sequence[str], function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function with each Store that holds a part, until one answers. Raises BrokenError if none does."""
        problems: dict[str, Exception] = {}
        for patience in (ANSWER_SECONDS, self._head.patience):  # Stores that answer fast come before slow ones
            for address in holders:
                try:
                    if address not in self._asked:
                        self._asked[address] = dial(address, self._secret, patience)
                    self._asked[address].patience = patience
                    return function(self._asked[address], *arguments)
                except (OSError, EOFError) as error:
                    problems[address] = error
                    self._hang_up(self._asked, address)
        self._unreachable = list(holders)
        told = "; ".join(f"{address}: {error}" for address, error in problems.items())
        raise BrokenError(f"no launcher gives a part of the state that it holds ({told})")

    def _keep(self) -> None:
        while True:
            part, shards, stores = self._to_keep.get()
            kept = [address for address in stores if self._put(address, part, shards)]
            if (problem := self._no_copies(stores, kept)) is not None:
                tell(f"{problem}, and so this process ends")
                with contextlib.suppress(OSError):
                    self._head.send(leaves=problem)
                os._exit(1)
            with contextlib.suppress(OSError):
                self._head.send(held=[part.generation, part.step], stores=kept)

    def _no_copies(self, stores: Sequence[str], kept: Sequence[str]) -> str | None:
        """Returns why this process can't go on if only the Stores in `kept` have its part; None if it can."""
        if stores[0] not in kept and not isinstance(self._not_kept[stores[0]][1], FullError):
            return f"the launcher of this host, at {stores[0]}, is gone"
        if not kept:
            return "no launcher has memory for the state of this process"
        return None

    def _put(self, address: str, part: StatePart, shards: Sequence[tuple[Shard, memoryview]]) -> bool:
        """Copies a part to the Store at an address; returns whether it has it. Replaces a broken connection once."""
        if address in self._not_kept and time.monotonic() < self._not_kept[address][0]:
            return False
        reason: Exception = ConnectionError("it hung up")
        for _ in range(2):
            is_new = address not in self._stores
            try:
                if is_new:
                    self._stores[address] = dial(address, self._secret)
                put(self._stores[address], part, shards)
            except FullError as error:
                reason = error
                break
            except (OSError, EOFError) as error:
                reason = error
                self._hang_up(self._stores, address)
                if is_new or isinstance(error, TimeoutError):
                    break
            else:
                if self._not_kept.pop(address, None) is not None:
                    tell(f"the state of this process is kept at {address} again")
                return True
        if address not in self._not_kept:
            tell(f"the state of this process has a copy less: it can't be kept at {address} ({reason})")
        self._not_kept[address] = time.monotonic() + AGAIN_SECONDS, reason
        return False

    @staticmethod
    def _hang_up(connections: dict[str, MessageConnection], address: str) -> None:
        if (connection := connections.pop(address, None)) is not None:
            connection.close()

    def _listen(self) -> None:
        try:
            while True:
                self._hear(self._head.receive())
        except (OSError, EOFError) as error:
            if self._end is None:
                tell(f"jaxpp-run is gone, or has given this process up, which ends ({error})")
                os._exit(RESTART)

    def _hear(self, message: dict[str, Any]) -> None:
        with self._changed:
            if "go" in message:  # earlier messages were about the former generation
                self._stop, self._safe, self._regroups, self._spare = None, -1, False, 0
                self._go = Go(**message)
            elif "safe" in message:
                self._safe, self._regroups = message["safe"], message["regroup"]
            elif "spare" in message:
                self._spare = message["spare"]
            elif "stop" in message:
                self._stop = message["stop"]
            elif "end" in message:
                self._end = message["end"]
            self._changed.notify_all()
