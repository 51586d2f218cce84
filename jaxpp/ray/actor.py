"""The code of an actor's process. It runs its meshes' part of every program, and holds the arrays behind handles."""

import asyncio
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import ray
from jax.sharding import Mesh
from ray.util import get_node_ip_address

from jaxpp.runtime import Event, Executable, Program, trace_step
from jaxpp.runtime.execution.compiling import Stats
from jaxpp.runtime.execution.frozen import FrozenStages, frozen
from jaxpp.runtime.processes.transfer import Peers, PullTransport
from jaxpp.runtime.processes.waiting import TransferError, own_state


@dataclass(frozen=True)
class Failed:
    """The result of a call that failed. It has the error as text, as the driver may not be able to unpickle the error.

    follows: whether the call failed because another actor did.
    """

    message: str
    follows: bool


@dataclass(frozen=True)
class Started:
    """The place where an actor runs, and the versions of its packages."""

    host: str
    node: str
    pid: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class ProgramPart:
    """The part of a program that an actor needs to run its meshes.

    program: the program without the functions' code and the constants of other actors.
    owners: the actor of each mesh.
    devices: for each mesh of this actor, the indices of its devices, in the shape of the mesh.
    options: the other options of the `Executable`.
    """

    program: Program
    owners: Sequence[int]
    devices: Mapping[int, np.ndarray[Any, Any]]
    axis_names: Sequence[str]
    axis_types: Any
    options: Mapping[str, Any]


@dataclass(frozen=True)
class StepCall:
    """The message that asks an actor for one step of a program.

    held: the arguments that are arrays of this actor: argument index to array number.
    given: the arguments that this message brings: argument index to value.
    released: the numbers of earlier arrays that nobody needs any more.
    results: the number of the first result; the others follow.
    nans, infs: the driver's `jax_debug_nans` and `jax_debug_infs`.
    frozen: the weight gradients that the step leaves out (`jaxpp.frozen`).
    """

    program: int
    held: Mapping[int, int]
    given: Mapping[int, Any]
    released: Sequence[int]
    results: int
    nans: bool
    infs: bool
    frozen: FrozenStages


class Actor:
    """A separate process with its own JAX client.

    The actor is asynchronous so that it can answer a heartbeat during a step. Ray does not keep the order of calls of
    such an actor. So the calls are numbered, and run one after the other in a thread.
    """

    def __init__(self) -> None:
        self.failure: Failed | None = None
        self.number = 0
        self.runs: int | None = None
        """The thread that runs the calls, after the first one."""
        self.arrays: dict[int, Any] = {}
        self.programs: dict[int, Executable] = {}
        self.addresses: Sequence[str] = ()
        self.turn = 0
        self.early: dict[int, Callable[[], None]] = {}
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="jaxpp-actor")

    async def call(self, turn: int, method: str, *args: Any) -> Any:
        """Runs a method after all calls of earlier turns; returns the method's result, or Failed."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.early[turn] = lambda: self._submit(done, method, args)
        while self.turn in self.early:
            self.early.pop(self.turn)()
            self.turn += 1
        return await done

    async def ping(self) -> Mapping[str, Any]:
        """Answers a heartbeat by the waits of this process."""
        return own_state(self.number, self.runs).message()

    def _submit(self, done: "asyncio.Future[Any]", method: str, args: Sequence[Any]) -> None:
        loop = done.get_loop()
        self.thread.submit(lambda: loop.call_soon_threadsafe(done.set_result, self._report(method, args)))

    def _report(self, method: str, args: Sequence[Any]) -> Any:
        """Returns a method's result, or Failed. After a failure every later method fails too, until `again`."""
        if method == "again":
            self.failure = None
        if self.failure is not None:
            return self.failure
        try:
            return getattr(self, method)(*args)
        except Exception as error:  # of any kind: the driver reports it
            follows = isinstance(error, TransferError)
            first = str(error) if follows else f"{type(error).__name__}: {error}"
            self.failure = Failed("\n".join([first, *getattr(error, "__notes__", ())]), follows)
            return self.failure

    def start(self, platform: str, count: int) -> Started:
        """Starts JAX with `count` devices."""
        self.runs = threading.get_ident()
        self.devices = _devices(platform, count)
        return Started(socket.gethostname(), ray.get_runtime_context().get_node_id(), os.getpid(), versions())

    def again(self) -> None:
        """Drops all programs and arrays, because the set of actors changes."""
        self.arrays, self.programs = {}, {}

    def listen(self, number: int, host: str) -> str:
        """Makes this actor number `number`, with a new transport on `host`; returns the transport's address."""
        self.number = number
        self.transport = PullTransport(number, self.devices[0], self._find, host or get_node_ip_address())
        return self.transport.address

    def meet(self, addresses: Sequence[str]) -> None:
        """Stores the address of each actor's transport."""
        self.addresses = addresses

    def load(self, number: int, secret: bytes, pickled: bytes) -> None:
        """Compiles this actor's part of a program, a `ProgramPart`, under `number`.

        secret: bytes from which the numbers of the transfers are made. All actors of a program, and no others, have it.
        """
        part: ProgramPart = pickle.loads(pickled)
        types = part.axis_types
        submeshes = [
            Mesh(np.array(self.devices)[part.devices[mesh]], part.axis_names, axis_types=types)
            if mesh in part.devices
            else None
            for mesh in range(part.program.meshes)
        ]
        peers = None
        if set(part.owners) != {self.number}:
            owners = [[owner] * size for owner, size in zip(part.owners, part.program.partitions, strict=True)]
            peers = Peers(self.transport, self.transport, owners, secret)
        self.programs[number] = Executable(part.program, submeshes, peers=peers, **part.options)

    def step(self, step: StepCall) -> None:
        """Runs one step."""

        def run(executable: Executable, arguments: Sequence[Any]) -> tuple[list[Any], list[Event]]:
            return executable(arguments), []

        self._run(step, run)

    def trace(self, step: StepCall) -> list[Event]:
        """Runs one step task by task; returns its events."""
        return self._run(step, trace_step)

    def stats(self, program: int) -> Stats:
        """Returns the compiler's statistics of the functions of a program that this actor runs."""
        return self.programs[program].stats

    def compile_seconds(self, program: int) -> dict[str, float]:
        """Returns the seconds in which this actor compiled each of these functions."""
        return self.programs[program].compile_seconds

    def fetch(self, number: int) -> np.ndarray[Any, Any]:
        """Returns the numbers of an array."""
        return np.asarray(self.arrays[number])

    def wait(self, numbers: range) -> None:
        """Waits until the arrays of these numbers are computed, except those that the actor lacks or has donated."""
        held = [self.arrays[number] for number in numbers if number in self.arrays]
        jax.block_until_ready([array for array in held if not array.is_deleted()])

    def count(self) -> int:
        """Returns how many arrays the actor holds."""
        return len(self.arrays)

    def _run(self, step: StepCall, run: Callable[..., tuple[Any, Any]]) -> Any:
        for number in step.released:
            self.arrays.pop(number, None)
        executable = self.programs[step.program]
        arguments: list[Any] = [None] * len(executable.names)
        for place, value in step.given.items():
            arguments[place] = value
        for place, number in step.held.items():
            arguments[place] = self.arrays[number]
        with jax.debug_nans(step.nans), jax.debug_infs(step.infs), frozen(step.frozen):
            results, events = run(executable, arguments)
        for number, result in enumerate(results, step.results):
            if result is not None:
                self.arrays[number] = result
        return events

    def _find(self, peer: int) -> str:
        return self.addresses[peer]


def versions() -> dict[str, str]:
    """Returns the versions of the packages that must be the same in the driver and the actors."""
    return {name: version(name) for name in ("jax", "jaxlib", "jaxpp")}


def _devices(platform: str, count: int) -> list[Any]:
    if platform == "cpu":
        # Actors inherit the driver's XLA_FLAGS, which may force a number of devices.
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = re.sub(r"--xla_force_host_platform_device_count=\d+", "", flags).strip()
        jax.config.update("jax_num_cpu_devices", count)
    jax.config.update("jax_platforms", platform)
    try:
        found = jax.devices()
    except (RuntimeError, AssertionError):  # an AssertionError where JAX knows the platform but lacks its plugin
        found = []
    if len(found) < count:
        raise ValueError(f"on {socket.gethostname()} it has {len(found)} {platform} devices, and is to have {count}")
    return found[:count]
