"""`Pool`: the actors of a cluster, what each holds, and those that take the place of the dead."""

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
"""The first version of Ray that will do; pyproject.toml has it too."""

PLATFORMS = ("cpu", "cuda")

RECOVERY = 30.0
"""Seconds that living actors have to come to the end of what they are computing, when another one is replaced."""


class Pool:
    """The actors as the driver knows them: their programs, the numbers of their arrays, the calls under way.

    platform, devices: what each actor has.
    epoch: how often actors were replaced, or taken in. Arrays of an earlier epoch are lost.
    calls: waits for calls.
    released: for each actor the arrays whose handles are gone; its next step frees them.

    Args and Raises: see `Cluster`, which is one.
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
        """By actor: its part, and the meshes that it runs."""
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
        """The process number of each actor that takes part, on its own machine."""
        return [remote.started.pid for remote in self._remotes if remote.started]

    @property
    def _present(self) -> list[Remote]:
        """The actors that take part, by number; those that are starting don't yet."""
        return [remote for remote in self._remotes if remote.started]

    def owners(self, sizes: Sequence[int]) -> list[int]:
        """The actor of each mesh, where there are meshes of so many devices: neighbours together, evenly if they fit.

        Raises ValueError when they don't, however they are dealt out.
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
        """Ship each actor its part of a program, and return the program's number when all have compiled it."""
        try:
            self._programs.append({actor: (_pickle(part), part.devices) for actor, part in parts.items()})
        except Exception as error:  # of whatever the user's callbacks hold
            raise TypeError(f"a function that the step calls back can't be sent to the actors: {error}") from None
        self.ship(len(self._programs) - 1)
        return len(self._programs) - 1

    def ship(self, number: int) -> None:
        """Have the actors compile a program, unless they have done so since others were replaced or taken in.

        Raises RuntimeError when it is for more actors than take part, ActorError when one of them fails.
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
        """Have an actor run a method, after all that it was called for before."""
        self.calls.check()
        return self._present[actor].call(method, *args)

    def reserve(self, count: int) -> int:
        """The first of `count` numbers for arrays."""
        self._values += count
        return self._values - count

    def drain(self, actor: int) -> list[int]:
        """The arrays of an actor whose handles are gone."""
        released = self.released[actor]
        return [released.popleft() for _ in range(len(released))]

    def recover(self, least: int | None = None) -> list[int]:
        """Replace dead actors; returns the numbers of the actors that are new.

        All arrays are given up, also those of living actors, which may be of a step that the others have not made:
        give the next step a state from a checkpoint, or one that was fetched before. A compiled step stays what it is
        for as many actors; they compile it again when it is called.

        least: with how many actors to go on at once, if so many live. Those that are started anew then take part from
            the next call of `recover` on that finds them started, which `has_newcomers` tells. None: wait for all.

        Raises ValueError or ActorError as when the cluster was made.
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
        """Whether an actor has started that does not take part yet."""
        return any(_has_ended(remote.starting) for remote in self._starting())

    def shutdown(self) -> None:
        """End the actors, and Ray too if it was started here. Does nothing the second time."""
        for remote in self._remotes:
            ray.kill(remote.handle)
            if self._owns_ray and remote.started:
                kill_process(remote.started.pid)
        self._remotes = []
        self.calls.failure = ActorError("the cluster was shut down", None)
        if self._owns_ray:
            ray.shutdown()

    def _create(self, number: int) -> Remote:
        """Have Ray start an actor, without waiting for it."""
        remote = Remote(number, ray.remote(Actor).options(**self._options).remote())
        _, remote.starting = remote.call("start", self.platform, self.devices)
        return remote

    def _starting(self) -> list[Remote]:
        """The actors that don't take part yet. One that died while it started is started once more."""
        for number, remote in enumerate(self._remotes):
            if remote.started is None and isinstance(error_of(remote.starting), RayError):
                self._remotes[number] = self._create(number)
        return [remote for remote in self._remotes if remote.started is None]

    def _wait_for(self, remotes: Sequence[Remote]) -> None:
        """Wait until these actors have started, and see whether they are what they should be."""
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
        """Number the actors that take part, and tell all where the transfers of the others are to be had."""
        for number, remote in enumerate(self._present):
            remote.number, remote.meshes = number, ()
        calls = [remote.call("listen", remote.number, self._host) for remote in self._present]
        addresses = self.calls.get(calls, "connecting")
        self.calls.get([remote.call("meet", addresses) for remote in self._present], "connecting")

    def _replace(self) -> None:
        """Have the living actors begin anew, and Ray start others for the dead."""
        calls = {number: remote.call("again") for number, remote in enumerate(self._remotes) if remote.started}
        refs = [ref for _, ref in calls.values()]
        ready = ray.wait(refs, num_returns=len(refs), timeout=RECOVERY)[0] if refs else []
        for number, (remote, ref) in calls.items():
            if ref not in ready or error_of(ref) is not None:  # dead, or still waiting for one that is
                kill(remote)
                self._remotes[number] = self._create(number)


def _has_ended(ref: Any) -> bool:
    return bool(ray.wait([ref], timeout=0)[0])


def _join(address: str | None, actors: int) -> None:
    """Join a Ray cluster, or start one on this machine.

    Raises ImportError when Ray is too old, ConnectionError when there is no cluster at the address.
    """
    if tuple(map(int, ray.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"jaxpp.ray needs Ray {oldest} or newer, found {ray.__version__}: pip install --upgrade 'jaxpp[ray]'"
        )
    if ray.is_initialized():
        return
    with warnings.catch_warnings():
        # JAX warns of forks in a process with threads; Ray forks only to start other programs at once.
        warnings.filterwarnings("ignore", message="os.fork")
        if address is not None:
            ray.init(address=address)
        else:
            ray.init(num_cpus=actors, include_dashboard=False, logging_level=logging.ERROR)


def _pickle(part: ProgramPart) -> bytes:
    dumps: Any = getattr(cloudpickle, "dumps")  # noqa: B009  # type checkers don't find it
    return dumps(part)
