"""The driver's calls of its actors, and waits for these calls that end when an actor dies, freezes or fails."""

import collections
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jaxpp._system import tell
from jaxpp.ray.actor import Failed, Started
from jaxpp.runtime.processes.autopsy import ProcessState, explain, is_hang

TICK = 0.2
"""Seconds between two checks, during a wait, whether an actor failed."""

GRACE = 2.0
"""Seconds that the other actors have to report their own errors after one actor failed."""

AHEAD = 1
"""The number of steps that may still run when the driver begins the next one. This hides the latency of a call."""


class ActorError(RuntimeError):
    """An actor died, froze or failed, and so did the running step. `Cluster.recover` starts anew.

    actor: the actor's number; None if no actor failed.
    """

    def __init__(self, message: str, actor: int | None) -> None:
        super().__init__(message)
        self.actor = actor


PendingCall = tuple["Remote", Any]
"""An actor, and Ray's reference to the result of one of its methods."""


@dataclass
class Remote:
    """The driver's record of an actor.

    number: the actor's index among the actors that take part.
    starting: Ray's reference to the result of `Actor.start`.
    started: that result; None until the actor takes part.
    meshes: the meshes that the actor runs.
    ping, pinged: the heartbeat that is not answered yet, and when it was sent.
    heard: the last answer, which has the actor's waits, and when it came.
    """

    number: int
    handle: Any
    starting: Any = None
    started: Started | None = None
    meshes: Sequence[int] = ()
    ping: Any = None
    pinged: float = 0.0
    heard: tuple[float, Mapping[str, Any]] | None = None
    turn: int = 0

    def call(self, method: str, *args: Any) -> PendingCall:
        """Asks the actor to run a method after all its earlier calls."""
        self.turn += 1
        return self, self.handle.call.remote(self.turn - 1, method, *args)

    def __str__(self) -> str:
        known = [f"mesh {mesh}" for mesh in self.meshes]
        if self.started:
            known.append(f"process {self.started.pid} on {self.started.host}")
        return f"actor {self.number}" + (f" ({', '.join(known)})" if known else "")

    def alive(self, patience: float) -> bool:
        """Whether the last heartbeat was answered, or is younger than `patience` seconds; then sends another."""
        now = time.monotonic()
        if self.ping is None:
            self.ping, self.pinged = self.handle.ping.remote(), now
        elif ray.wait([self.ping], timeout=0)[0]:
            with suppress(RayError):  # the actor is dead: the wait for the call reports the death
                self.heard = now, ray.get(self.ping)
            self.ping = None
        return self.ping is None or now - self.pinged < patience


@dataclass
class Calls:
    """Waits for calls. After a failure all later waits raise the same error, until `failure` is reset.

    patience: seconds without an answered heartbeat after which an actor counts as frozen.
    """

    patience: float
    failure: ActorError | None = None
    steps: collections.deque[tuple[list[PendingCall], str]] = field(
        default_factory=collections.deque[tuple[list[PendingCall], str]]
    )
    """The steps that nobody has waited for yet: their calls, and their name in messages."""

    def check(self) -> None:
        """Raises the error of an earlier call that failed."""
        if self.failure is not None:
            raise ActorError(str(self.failure), self.failure.actor)

    def ahead(self, calls: list[PendingCall], what: str) -> None:
        """Lets a step run on without a wait. If more than AHEAD steps now run, waits for the oldest."""
        self.steps.append((calls, what))
        while len(self.steps) > AHEAD:
            self._wait(*self.steps.popleft())

    def get(self, calls: Sequence[PendingCall], what: str) -> list[Any]:
        """Returns the results of the calls, after waiting for all earlier steps.

        Raises ActorError, which names `what`, the actor, its meshes, the reason, and the errors of the other actors.
        """
        self.check()
        while self.steps:
            self._wait(*self.steps.popleft())
        return self._wait(calls, what)

    def _wait(self, calls: Sequence[PendingCall], what: str) -> list[Any]:
        refs = [ref for _, ref in calls]
        if ray.wait(refs, num_returns=len(refs), timeout=TICK)[1]:
            self._watch(calls, what)
        try:
            results = ray.get(refs)
        except RayError:
            raise self._failed(calls, what) from None
        if any(isinstance(result, Failed) for result in results):
            raise self._failed(calls, what)
        return results

    def _watch(self, calls: Sequence[PendingCall], what: str) -> None:
        """Waits until all calls have ended, and tells once why they don't if no actor moves for `patience` seconds.

        Raises ActorError if a call fails or an actor freezes.
        """
        actors = {remote.number: remote for remote, _ in calls}.values()
        for remote in actors:
            remote.ping = remote.heard = None
        refs = [ref for _, ref in calls]
        is_told = False
        while missing := ray.wait(refs, num_returns=len(refs), timeout=TICK)[1]:
            if any(error_of(ref) for ref in set(refs) - set(missing)):
                raise self._failed(calls, what)
            frozen = [remote for remote in actors if not remote.alive(self.patience)]
            if frozen:
                kill(frozen[0])
                raise self._failed(calls, what, frozen[0])
            now = time.monotonic()
            states = {each.number: ProcessState.of(each.heard[1], now - each.heard[0]) for each in actors if each.heard}
            if not is_told and len(states) == len(actors) and is_hang(states, self.patience):
                tell("\n  ".join(explain(states).lines))
                is_told = True

    def _failed(self, calls: Sequence[PendingCall], what: str, frozen: Remote | None = None) -> ActorError:
        """Returns the error of the first to fail: a frozen or dead actor, otherwise one that failed by itself."""
        refs = [ref for _, ref in calls]
        ray.wait(refs, num_returns=len(refs), timeout=GRACE)
        found = sorted(((error_of(ref), remote) for remote, ref in calls), key=lambda each: _rank(each[0]))
        error, remote = found[0]
        reason = f"failed: {error.message}" if isinstance(error, Failed) else "died"
        if frozen is not None:
            remote, reason = frozen, f"gave no sign of life for {self.patience:g} s"
        others = {
            each.number: f"\n  actor {each.number}: {other.message}"
            for other, each in found
            if isinstance(other, Failed) and each.number != remote.number
        }
        self.failure = ActorError(f"{what}: {remote} {reason}{''.join(others.values())}", remote.number)
        return self.failure


def error_of(ref: Any) -> Failed | RayError | None:
    """Returns the error of a call; None if the call succeeded or still runs."""
    try:
        result = ray.get(ref, timeout=0)
    except GetTimeoutError:
        return None
    except RayTaskError as error:  # Ray could not begin the call
        return Failed(str(error), False)
    except RayError as error:
        return error
    return result if isinstance(result, Failed) else None


def _rank(error: Failed | RayError | None) -> int:
    if error is None:
        return 3
    return 1 + error.follows if isinstance(error, Failed) else 0


def kill(remote: Remote) -> None:
    """Kills an actor's process, even a frozen one that would not react to Ray."""
    ray.kill(remote.handle)
    if remote.started is None:
        return
    place = NodeAffinitySchedulingStrategy(remote.started.node, soft=False)
    killing = _kill.options(num_cpus=0, scheduling_strategy=place).remote(remote.started.pid)
    try:
        ray.get(killing, timeout=10)
    except RayError:  # the whole machine may be gone
        pass


def kill_process(pid: int) -> None:
    """Kills a process of this machine, if it still runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


_kill = ray.remote(kill_process)
