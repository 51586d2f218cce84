"""`Pool`: the actors of a cluster, their programs and arrays, and replacements for dead actors."""

import collections
import dataclasses
import logging
import secrets
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from jaxpp.ray.actor import Actor, ProgramPart, versions
from jaxpp.ray.calls import ActorError, Calls, PendingCall, Remote, error_of, kill, kill_process

OLDEST = (2, 53)
"""The oldest version of Ray that works; pyproject.toml names it too."""

PLATFORMS = ("cpu", "cuda")

RECOVERY = 30.0
"""Seconds that living actors have to finish their current computation when another actor is replaced."""


class Pool:
    """The driver's record of the actors: their programs, the numbers of their arrays, the running calls.

    platform, devices: the platform and the number of devices of each actor.
    epoch: the number of recoveries so far. Arrays of an earlier epoch are lost.
    calls: waits for calls.
    released: for each actor the arrays whose handles are gone; its next step frees them.

    Args and Raises: see the subclass `Cluster`.
    """

    def __init__(
        self,
        actors: int,
        *,
        devices: int = 1,
        platform: str = "cpu",
        address: str | None = None,
        options: Mapping[str, Any] | None = None,
        watchdog: float = 60.0,
        patience: float = 120.0,
    ) -> None:
        if platform not in PLATFORMS:
            raise ValueError(f"platform {platform!r}: expected one of {', '.join(PLATFORMS)}")
        if actors < 1 or devices < 1:
            raise ValueError(f"a cluster of {actors} actors with {devices} devices: both must be at least 1")
        self.platform, self.devices, self._patience = platform, devices, patience
        gpus = {} if platform == "cpu" else {"num_gpus": devices}
        self._options: dict[str, Any] = {"num_cpus": 1, **gpus, **(options or {})}
        self._owns_ray = address is None and not ray.is_initialized()
        self._host = "127.0.0.1" if self._owns_ray else ""
        self._remotes: list[Remote] = []
        self._programs: list[Mapping[int, tuple[bytes, Collection[int]]]] = []
        """For each program, by actor: the pickled part, and the meshes that the actor runs."""
        self._shipped: set[int] = set()
        self._values = 0
        self.epoch = 0
        self.calls = Calls(watchdog)
        self.released: list[collections.deque[int]] = [collections.deque() for _ in range(actors)]
        _join(address, actors)
        try:
            self._remotes = [self._create(number) for number in range(actors)]
            self._wait_for(self._remotes)
            self._meet()
        except BaseException:  # Ctrl-C too: actors that were created must not stay
            self.shutdown()
            raise

    @property
    def processes(self) -> list[int]:
        """The process id of each actor that takes part, on the actor's machine."""
        return [remote.started.pid for remote in self._remotes if remote.started]

    @property
    def _present(self) -> list[Remote]:
        """The actors that take part, by number, without those that are still starting."""
        return [remote for remote in self._remotes if remote.started]

    def owners(self, sizes: Sequence[int]) -> list[int]:
        """Returns the actor of each mesh, for meshes of the given numbers of devices. Neighbours share an actor.

        The meshes are dealt out evenly if they fit so, otherwise each actor takes as many as it can hold. Raises
        ValueError if they don't fit at all.
        """
        actors = len(self._present)
        used = min(actors, len(sizes))
        evenly = [mesh * used // len(sizes) for mesh in range(len(sizes))]
        tightly = [0]
        for mesh in range(1, len(sizes)):
            held = sum(size for size, owner in zip(sizes, tightly, strict=False) if owner == tightly[-1])
            tightly.append(tightly[-1] + (held + sizes[mesh] > self.devices))
        for owners in (evenly, tightly):
            room = [self.devices] * actors + [0] * len(sizes)
            for size, owner in zip(sizes, owners, strict=True):
                room[owner] -= size
            if min(room) >= 0:
                return owners
        what = f"meshes of {', '.join(map(str, sizes))} devices"
        raise ValueError(f"{what}: {actors} actors have {self.devices} devices each, and a mesh is on one")

    def load(self, parts: Mapping[int, ProgramPart]) -> int:
        """Ships each actor its part of a program; returns the program's number when all have compiled it."""
        try:
            self._programs.append({actor: (_pickle(part), part.devices) for actor, part in parts.items()})
        except Exception as error:  # any kind: user's callbacks may hold anything
            raise TypeError(f"a function that the step calls back can't be sent to the actors: {error}") from None
        self.ship(len(self._programs) - 1)
        return len(self._programs) - 1

    def ship(self, number: int) -> None:
        """Compiles a program on the actors, unless they have compiled it since the last recovery.

        Raises RuntimeError if the program needs more actors than take part, ActorError if an actor fails.
        """
        if number in self._shipped:
            return
        parts, present = self._programs[number], self._present
        if max(parts) >= len(present):
            raise RuntimeError(
                f"the step is for {max(parts) + 1} actors, and {len(present)} take part: make it anew, over a mesh of "
                "the cluster"
            )
        for actor, (_, meshes) in parts.items():
            present[actor].meshes = sorted({*present[actor].meshes, *meshes})
        secret = secrets.token_bytes(32)
        self.calls.get(
            [self.call(actor, "load", number, secret, part) for actor, (part, _) in parts.items()], "compiling"
        )
        self._shipped.add(number)

    def call(self, actor: int, method: str, *args: Any) -> PendingCall:
        """Asks an actor to run a method after all its earlier calls."""
        self.calls.check()
        return self._present[actor].call(method, *args)

    def reserve(self, count: int) -> int:
        """Reserves `count` consecutive numbers for arrays; returns the first."""
        self._values += count
        return self._values - count

    def drain(self, actor: int) -> list[int]:
        """Returns and forgets the arrays of an actor whose handles are gone."""
        released = self.released[actor]
        return [released.popleft() for _ in range(len(released))]

    def recover(self, least: int | None = None) -> list[int]:
        """Replaces dead actors; returns the numbers of the new actors that take part from now on.

        All arrays are lost, also on living actors, since these may belong to a step that the others have not made. Give
        the next step a state from a checkpoint, or one that was fetched before. A compiled step stays valid for the
        same number of actors: they compile it again at its next call.

        least: the number of living actors that is enough to go on at once. Actors that are still starting then join at
            a later `recover`; `has_newcomers` tells when one has started. None: wait for all.

        Raises ValueError or ActorError as the constructor does.
        """
        self.epoch += 1
        self.calls = Calls(self.calls.patience)
        self._shipped.clear()
        for released in self.released:
            released.clear()
        self._replace()
        starting = self._starting()
        if least is not None and len(self._present) >= least:
            starting = [remote for remote in starting if _has_ended(remote.starting)]
        self._wait_for(starting)
        self._meet()
        return [remote.number for remote in starting]

    def has_newcomers(self) -> bool:
        """Whether an actor that does not take part yet has started."""
        return any(_has_ended(remote.starting) for remote in self._starting())

    def shutdown(self) -> None:
        """Ends the actors, and Ray if the Pool started it. Does nothing the second time."""
        for remote in self._remotes:
            ray.kill(remote.handle)
            if self._owns_ray and remote.started:
                kill_process(remote.started.pid)
        self._remotes = []
        self.calls.failure = ActorError("the cluster was shut down", None)
        if self._owns_ray:
            ray.shutdown()

    def _create(self, number: int) -> Remote:
        """Asks Ray for a new actor, without waiting for it."""
        remote = Remote(number, ray.remote(Actor).options(**self._options).remote())
        _, remote.starting = remote.call("start", self.platform, self.devices)
        return remote

    def _starting(self) -> list[Remote]:
        """Returns the actors that don't take part yet. Replaces each that died while it started."""
        for number, remote in enumerate(self._remotes):
            if remote.started is None and isinstance(error_of(remote.starting), RayError):
                self._remotes[number] = self._create(number)
        return [remote for remote in self._remotes if remote.started is None]

    def _wait_for(self, remotes: Sequence[Remote]) -> None:
        """Waits until these actors have started, and checks their versions.

        Raises ValueError if an actor does not start within `patience` seconds or has another version of a package.
        """
        refs = [remote.starting for remote in remotes]
        missing = ray.wait(refs, num_returns=len(refs), timeout=self._patience)[1] if refs else []
        if missing:
            wanted = {
                name: amount for name, amount in self._options.items() if name in ("num_cpus", "num_gpus", "resources")
            }
            free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}
            raise ValueError(
                f"actor {remotes[refs.index(missing[0])].number} did not start within {self._patience:g} s: it asks "
                f"for {wanted}; free in the Ray cluster: {free}"
            )
        expected = versions()
        found = self.calls.get([(remote, remote.starting) for remote in remotes], "starting")
        for remote, started in zip(remotes, found, strict=True):
            for name, own in expected.items():
                if started.versions[name] != own:
                    shown = dataclasses.replace(remote, started=started)
                    raise ValueError(f"{shown} has {name} {started.versions[name]}, the driver has {own}")
            remote.started = started

    def _meet(self) -> None:
        """Numbers the actors that take part, and tells each the addresses of all transports."""
        for number, remote in enumerate(self._present):
            remote.number, remote.meshes = number, ()
        calls = [remote.call("listen", remote.number, self._host) for remote in self._present]
        addresses = self.calls.get(calls, "connecting")
        self.calls.get([remote.call("meet", addresses) for remote in self._present], "connecting")

    def _replace(self) -> None:
        """Resets the living actors, and asks Ray for replacements of the others."""
        calls = {number: remote.call("again") for number, remote in enumerate(self._remotes) if remote.started}
        refs = [ref for _, ref in calls.values()]
        ready = ray.wait(refs, num_returns=len(refs), timeout=RECOVERY)[0] if refs else []
        for number, (remote, ref) in calls.items():
            if ref not in ready or error_of(ref) is not None:  # dead, or still waiting for a dead one
                kill(remote)
                self._remotes[number] = self._create(number)


def _has_ended(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0)[0])


def _join(address: str | None, actors: int) -> None:
    """Joins a Ray cluster, or starts one on this machine.

    Raises ImportError if Ray is too old, ConnectionError if there is no cluster at the address.
    """
    if tuple(map(int, ray.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"jaxpp.ray needs Ray {oldest} or newer, found {ray.__version__}: pip install --upgrade 'jaxpp[ray]'"
        )
    if ray.is_initialized():
        return
    with warnings.catch_warnings():
        # JAX warns of forks in a process with threads. Ray's forks start other programs at once, which is safe.
        warnings.filterwarnings("ignore", message="os.fork")
        if address is not None:
            ray.init(address=address)
        else:
            ray.init(num_cpus=actors, include_dashboard=False, logging_level=logging.ERROR)


def _pickle(part: ProgramPart) -> bytes:
    dumps: Any = getattr(cloudpickle, "dumps")  # noqa: B009  # type checkers don't find it
    return dumps(part)
