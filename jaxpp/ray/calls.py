"""The driver's calls of its actors, and waits for them that end when an actor dies, freezes or fails."""

import collections
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jaxpp.ray.actor import Failed, Started

TICK = 0.2
"""Seconds after which a wait looks whether an actor failed."""

GRACE = 2.0
"""Seconds that the others have to say what they miss, when one actor is gone."""

AHEAD = 1
"""Steps that are under way when the driver is asked for the next one. That hides what a call costs."""


class ActorError(RuntimeError):
    """An actor died, froze or failed, and the step under way with it. `Cluster.recover` starts anew.

    actor: its number; None when it was not an actor that failed.
    """

    def __init__(self, message: str, actor: int | None) -> None:
        super().__init__(message)
        self.actor = actor


PendingCall = tuple["Remote", Any]
"""An actor, and what Ray will hand out as the result of one of its methods."""


@dataclass
class Remote:
    """An actor as the driver knows it.

    number: among those that take part.
    starting: what Ray will hand out when it has started; started: that.
    meshes: those that it runs.
    """

    number: int
    handle: Any
    starting: Any = None
    started: Started | None = None
    meshes: Sequence[int] = ()
    ping: Any = None
    pinged: float = 0.0
    turn: int = 0

    def call(self, method: str, *args: Any) -> PendingCall:
        """Have the actor run a method, after all that it was called for before."""
        self.turn += 1
        return self, self.handle.call.remote(self.turn - 1, method, *args)

    def __str__(self) -> str:
        known = [f"mesh {mesh}" for mesh in self.meshes]
        if self.started:
            known.append(f"process {self.started.pid} on {self.started.host}")
        return f"actor {self.number}" + (f" ({', '.join(known)})" if known else "")

    def alive(self, patience: float) -> bool:
        """Whether it answered, within `patience` seconds, when it was last asked for a sign of life; asks again."""
        now = time.monotonic()
        if self.ping is None:
            self.ping, self.pinged = self.handle.ping.remote(), now
        elif ray.wait([self.ping], timeout=0)[0]:
            self.ping = None  # also when it is dead: the call that waits for it will say so
        return self.ping is None or now - self.pinged < patience


@dataclass
class Calls:
    """Waits for calls. One that fails fails all that follow, with the same error, until `failure` is reset.

    patience: seconds without a sign of life after which an actor is taken to be frozen.
    """

    patience: float
    failure: ActorError | None = None
    steps: collections.deque[tuple[list[PendingCall], str]] = field(
        default_factory=collections.deque[tuple[list[PendingCall], str]]
    )
    """The steps that nobody waited for yet: what is called, and what it is."""

    def check(self) -> None:
        """Raise the error of a call that failed."""
        if self.failure is not None:
            raise ActorError(str(self.failure), self.failure.actor)

    def ahead(self, calls: list[PendingCall], what: str) -> None:
        """Leave a step to itself, unless AHEAD others are under way: then wait for the first of them."""
        self.steps.append((calls, what))
        while len(self.steps) > AHEAD:
            self._wait(*self.steps.popleft())

    def get(self, calls: Sequence[PendingCall], what: str) -> list[Any]:
        """What the calls return. All steps before them are waited for too.

        Raises ActorError: `what`, the actor and its meshes, why, and what the others waited for at that time.
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
        """Return when all calls have ended."""
        actors = {remote.number: remote for remote, _ in calls}.values()
        for remote in actors:
            remote.ping = None
        refs = [ref for _, ref in calls]
        while missing := ray.wait(refs, num_returns=len(refs), timeout=TICK)[1]:
            if any(error_of(ref) for ref in set(refs) - set(missing)):
                raise self._failed(calls, what)
            frozen = [remote for remote in actors if not remote.alive(self.patience)]
            if frozen:
                kill(frozen[0])
                raise self._failed(calls, what, frozen[0])

    def _failed(self, calls: Sequence[PendingCall], what: str, frozen: Remote | None = None) -> ActorError:
        """The error of the first to fail: of a frozen or dead actor, else of one that failed by itself."""
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
    """What a call failed with; None when it did not, or not yet."""
    try:
        result = ray.get(ref, timeout=0)
    except GetTimeoutError:
        return None
    except RayTaskError as error:  # the call never began
        return Failed(str(error), False)
    except RayError as error:
        return error
    return result if isinstance(result, Failed) else None


def _rank(error: Failed | RayError | None) -> int:
    if error is None:
        return 3
    return 1 + error.follows if isinstance(error, Failed) else 0


def kill(remote: Remote) -> None:
    """End an actor's process, also one that is frozen and could not do so itself."""
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
    """End a process of this machine, if it still runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


_kill = ray.remote(kill_process)
