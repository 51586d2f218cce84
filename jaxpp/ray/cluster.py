"""`Cluster`: actors of Ray that hold the meshes, and the driver that tells them what to run."""

import collections
import itertools
import logging
import math
import secrets
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import ray
from jax.sharding import Mesh
from ray import cloudpickle

from jaxpp import _compat
from jaxpp.lowering import MpmdMesh
from jaxpp.lowering.lower import Lowered
from jaxpp.ray.actor import Actor, Part, versions
from jaxpp.ray.calls import ActorError, Call, Calls, Remote, error_of, kill, kill_process
from jaxpp.ray.step import RemoteExecutable, RemoteStep
from jaxpp.runtime import Program

OLDEST = (2, 53)
"""The first version of Ray that will do; pyproject.toml has it too."""

PLATFORMS = ("cpu", "cuda")

RECOVERY = 30.0
"""Seconds that living actors have to come to the end of what they are computing, when another one is replaced."""


class Cluster:
    """Actors of Ray, each a process with a JAX client of its own, that run the steps of this one, the driver.

        with jaxpp.ray.Cluster(actors=4, devices=2) as cluster:
            mesh = cluster.mesh((4, 2), ("mpmd", "data"), "mpmd")
            step = jaxpp.mpmd_jit_with_loop(train_step, mesh)

    The rest is as in one process. The driver needs no devices; it traces, and ships each actor its part of the program
    once. A step is one call per actor, and its results are handles (`RemoteArray`) of arrays that stay where they are.

    Args:
        actors: how many.
        devices: of each actor.
        platform: "cpu": each actor has as many virtual devices as it needs; "cuda": the GPUs that Ray gives it.
        address: of a running Ray cluster, as for `ray.init`: "auto" finds it. None: the one this process has joined
            already, or else one started on this machine, which ends with the Cluster.
        options: of each actor, as for Ray's `.options()`: resources, scheduling_strategy, runtime_env...
        watchdog: seconds without a sign of life after which an actor is taken to be frozen. A step may take longer.
        patience: seconds that the actors have to start.

    Raises:
        ImportError: Ray is too old.
        ConnectionError: there is no Ray cluster at `address`.
        ValueError: Ray lacks the resources, or an actor has other versions of jax, jaxlib or jaxpp.
        ActorError: an actor lacks devices, or dies while it starts.
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
        except BaseException:
            self.shutdown()
            raise

    def mesh(
        self,
        axis_shapes: Sequence[int],
        axis_names: Sequence[str],
        mpmd_axis_name: str,
        *,
        axis_types: Any = None,
    ) -> MpmdMesh:
        """A mesh over the actors' devices, the first arguments as of `jax.make_mesh`.

        The meshes along the mpmd axis are dealt out evenly, neighbours together; each is on one actor as a whole. The
        devices that the mesh shows are stand-ins: arrays put there by hand stay in the driver.

        Raises ValueError when the actors can't hold it.
        """
        if len(axis_shapes) != len(axis_names) or mpmd_axis_name not in axis_names or min(axis_shapes) < 1:
            raise ValueError(
                f"a mesh of shape {tuple(axis_shapes)} with the axes {tuple(axis_names)}: expected one name per axis, "
                f"{mpmd_axis_name!r} among them, and sizes of at least 1"
            )
        axis = list(axis_names).index(mpmd_axis_name)
        shape = [*axis_shapes[:axis], 1, *axis_shapes[axis + 1 :]]
        return self.meshes([shape] * axis_shapes[axis], axis_names, mpmd_axis_name, axis_types=axis_types)

    def meshes(
        self,
        axis_shapes: Sequence[Sequence[int]],
        axis_names: Sequence[str],
        mpmd_axis_name: str = "mpmd",
        *,
        axis_types: Any = None,
    ) -> MpmdMesh:
        """Meshes of these shapes, which may differ, over the actors' devices: see `jaxpp.MpmdMesh.of`.

        Each is on one actor as a whole, neighbours together. Raises ValueError when the actors can't hold them.
        """
        sizes = [math.prod(shape) for shape in axis_shapes]
        self.owners(sizes)
        devices = iter(_compat.cpu_devices(sum(sizes)))
        meshes = [
            Mesh(
                np.array(list(itertools.islice(devices, size))).reshape(shape), tuple(axis_names), axis_types=axis_types
            )
            for size, shape in zip(sizes, axis_shapes, strict=True)
        ]
        return MpmdMesh.of(meshes, mpmd_axis_name, self)

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

    def compile(self, lowered: Lowered, program: Program, options: Mapping[str, Any] | None) -> RemoteStep:
        """Have the actors compile a program; `MpmdFunction` calls this."""
        executable: Any = RemoteExecutable(self, lowered, program, options)
        return RemoteStep(lowered, executable)

    def load(self, parts: Mapping[int, Part]) -> int:
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

    def call(self, actor: int, method: str, *args: Any) -> Call:
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

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

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


def _pickle(part: Part) -> bytes:
    dumps: Any = getattr(cloudpickle, "dumps")  # noqa: B009  # type checkers don't find it
    return dumps(part)
