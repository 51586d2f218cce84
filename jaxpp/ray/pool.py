"""`Pool`: the actors of a cluster, what each holds, and those that take the place of the dead."""

import collections
import logging
import secrets
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle

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
    epoch: how often actors were replaced. Arrays of an earlier epoch are lost.
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
        self._programs: list[dict[int, bytes]] = []
        self._values = 0
        self.epoch = 0
        self.calls = Calls(watchdog)
        self.released: list[collections.deque[int]] = [collections.deque() for _ in range(actors)]
        _join(address, actors)
        try:
            self._remotes = [self._create(number) for number in range(actors)]
            self._start(self._remotes)
            self._meet()
        except BaseException:  # Ctrl-C too: actors that were created must not stay
            self.shutdown()
            raise

    @property
    def processes(self) -> list[int]:
        """The process number of each actor, on its own machine."""
        return [remote.started.pid for remote in self._remotes if remote.started]

    def owners(self, sizes: Sequence[int]) -> list[int]:
        """The actor of each mesh, where there are meshes of so many devices: neighbours together, evenly if they fit.

        Raises ValueError when they don't, however they are dealt out.
        """
        used = min(len(self._remotes), len(sizes))
        evenly = [mesh * used // len(sizes) for mesh in range(len(sizes))]
        tightly = [0]
        for mesh in range(1, len(sizes)):
            held = sum(size for size, owner in zip(sizes, tightly, strict=False) if owner == tightly[-1])
            tightly.append(tightly[-1] + (held + sizes[mesh] > self.devices))
        for owners in (evenly, tightly):
            room = [self.devices] * len(self._remotes) + [0] * len(sizes)
            for size, owner in zip(sizes, owners, strict=True):
                room[owner] -= size
            if min(room) >= 0:
                return owners
        what = f"meshes of {', '.join(map(str, sizes))} devices"
        raise ValueError(f"{what}: {len(self._remotes)} actors have {self.devices} devices each, and a mesh is on one")

    def load(self, parts: Mapping[int, ProgramPart]) -> int:
        """Ship each actor its part of a program, and return the program's number when all have compiled it."""
        try:
            pickled = {actor: _pickle(part) for actor, part in parts.items()}
        except Exception as error:  # of whatever the user's callbacks hold
            raise TypeError(f"a function that the step calls back can't be sent to the actors: {error}") from None
        self._programs.append(pickled)
        for actor, part in parts.items():
            self._remotes[actor].meshes = sorted({*self._remotes[actor].meshes, *part.devices})
        self._ship(len(self._programs) - 1)
        return len(self._programs) - 1

    def call(self, actor: int, method: str, *args: Any) -> PendingCall:
        """Have an actor run a method, after all that it was called for before."""
        self.calls.check()
        return self._remotes[actor].call(method, *args)

    def reserve(self, count: int) -> int:
        """The first of `count` numbers for arrays."""
        self._values += count
        return self._values - count

    def drain(self, actor: int) -> list[int]:
        """The arrays of an actor whose handles are gone."""
        released = self.released[actor]
        return [released.popleft() for _ in range(len(released))]

    def recover(self) -> list[int]:
        """Replace dead actors, and ship all programs anew; returns the numbers of the actors that were replaced.

        All arrays are given up, also those of living actors, which may be of a step that the others have not made:
        give the next step a state from a checkpoint, or one that was fetched before. Compiled steps stay what they are.

        Raises ValueError or ActorError as when the cluster was made.
        """
        self.epoch += 1
        self.calls = Calls(self.calls.patience)
        for released in self.released:
            released.clear()
        replaced = self._replace()
        self._start(replaced)
        self._meet()
        for number in range(len(self._programs)):
            self._ship(number)
        return [remote.number for remote in replaced]

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
        return Remote(number, ray.remote(Actor).options(**self._options).remote())

    def _start(self, remotes: Sequence[Remote]) -> None:
        """Start JAX in new actors, and see whether they are what they should be."""
        calls = [remote.call("start", remote.number, self.platform, self.devices, self._host) for remote in remotes]
        refs = [ref for _, ref in calls]
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
        for remote, started in zip(remotes, self.calls.get(calls, "starting"), strict=True):
            remote.started = started
            for name, own in expected.items():
                if started.versions[name] != own:
                    raise ValueError(f"{remote} has {name} {started.versions[name]}, the driver has {own}")

    def _meet(self) -> None:
        """Tell all actors where the transfers of the others are to be had."""
        addresses = [remote.started.address for remote in self._remotes if remote.started]
        self.calls.get([remote.call("meet", addresses) for remote in self._remotes], "connecting")

    def _ship(self, number: int) -> None:
        secret = secrets.token_bytes(32)
        calls = [self.call(actor, "load", number, secret, part) for actor, part in self._programs[number].items()]
        self.calls.get(calls, "compiling")

    def _replace(self) -> list[Remote]:
        """Have the living actors begin anew, and create others for the dead; returns those."""
        calls = [remote.call("again", self._host) for remote in self._remotes]
        refs = [ref for _, ref in calls]
        ready = ray.wait(refs, num_returns=len(refs), timeout=RECOVERY)[0]
        replaced: list[Remote] = []
        for number, (remote, ref) in enumerate(calls):
            if ref in ready and error_of(ref) is None:
                remote.started = ray.get(ref)
            else:  # dead, or still waiting for one that is
                kill(remote)
                self._remotes[number] = self._create(number)
                self._remotes[number].meshes = remote.meshes
                replaced.append(self._remotes[number])
        return replaced


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
