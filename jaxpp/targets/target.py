"""`target`: devices that are not here, but whose compiler is installed."""

import glob
import math
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxpp._absent import compile_only_cpu_devices
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.targets.chips import CHIPS, Chip

_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "none",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""The environment of libtpu on a machine without TPUs.

Without these variables libtpu asks Google's metadata server for TPUs, and lets only one process at a time compile.
"""

_AXES = {"sizes": (4, 2), "names": ("mpmd", "data")}
"""Examples of the axes of a mesh, for errors."""

_TOPOLOGY = re.compile(r"\d+(x\d+){1,2}")


class PlanError(ValueError):
    """The error for an unknown target, or for something that devices that are not here can't do."""


@dataclass(frozen=True, eq=False, repr=False)
class Target:
    """Devices for which the real compiler compiles programs, but which run nothing.

    Attributes:
        name: the name of the target, such as `v5p:4x4x4` or `h200 x 8 x 8`.
        chip: the facts of each device.
        devices: the devices in JAX's order; the devices of a host are neighbours.
        stand_in: the number of devices of each host, if XLA's compiler for CPUs stands in for the compiler of the chip;
            otherwise 0.
    """

    name: str
    chip: Chip
    devices: tuple[Any, ...]
    stand_in: int = 0

    def __repr__(self) -> str:
        return f"Target({self.name}: {len(self.devices)} devices)"

    @property
    def platform(self) -> str:
        """The platform of the compiler."""
        return "cpu" if self.stand_in else self.chip.platform

    def host_of(self, device: Any) -> int:
        """Returns the index of the host of a device."""
        return device.id // self.stand_in if self.stand_in else device.process_index

    def mesh(
        self, axis_shapes: Sequence[int], axis_names: Sequence[str], mpmd_axis_name: str = "mpmd", **options: Any
    ) -> MpmdMesh:
        """Returns a mesh of the given axes over the first devices of the target.

        Args:
            axis_shapes: the size of each axis.
            axis_names: the name of each axis.
            mpmd_axis_name: the axis whose indices are the meshes of the pipeline.
            options: more arguments of `jax.sharding.Mesh`.

        Raises:
            PlanError: the target has fewer devices, a size or name is wrong, or JAX refuses an option.
            ValueError: no axis is named `mpmd_axis_name`.
        """
        for what, given in (("sizes", axis_shapes), ("names", axis_names)):
            if not isinstance(given, list | tuple | np.ndarray) or np.ndim(given) != 1:
                raise PlanError(f"mesh: {what} of axes must be a tuple, such as {_AXES[what]}, found {given!r}")
        for size in axis_shapes:
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
                raise PlanError(
                    f"mesh: an axis of {tuple(axis_shapes)} has size {size!r}, expected positive whole numbers"
                )
        for name in axis_names:
            if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
                raise PlanError(f"mesh: an axis is named {name!r}, expected a string such as 'data'")
        if len(axis_shapes) != len(axis_names):
            raise PlanError(f"mesh: {len(axis_shapes)} sizes for {len(axis_names)} axes, expected one for each")
        count = math.prod(map(int, axis_shapes))
        if count > len(self.devices):
            raise PlanError(
                f"{self.name} has {len(self.devices)} devices, a mesh of {tuple(axis_shapes)} takes {count}"
            )
        devices = np.array(self.devices[:count]).reshape(tuple(axis_shapes))
        try:
            made = Mesh(devices, tuple(axis_names), **options)
        except (TypeError, ValueError) as error:
            raise PlanError(f"mesh: JAX makes no mesh of these options: {error}") from None
        return MpmdMesh(made, mpmd_axis_name)


def target(
    name: str,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    devices: int | None = None,
    stand_in: bool = False,
) -> Target:
    """Returns devices that are not here, for a mesh whose steps are compiled and planned, but not run.

        jaxpp.target("v5p:4x4x4")                   a slice of TPUs; needs the extra `tpu-plan`
        jaxpp.target("h200", nodes=8, gpus=8)       hosts with GPUs; needs the extra `gpu-plan`
        jaxpp.target("cpu", devices=8)              to try things out

    Args:
        name: the name of a chip in `jaxpp.planning.CHIPS`, followed by the topology if it is a TPU.
        nodes: the number of hosts with GPUs; 1 by default.
        gpus: the number of GPUs of each host; 8 by default.
        devices: the number of CPU devices in all; 8 by default.
        stand_in: whether XLA's compiler for CPUs stands in for the compiler of the chip, which need not be installed
            then. FLOPs, bytes and memory are those of programs for CPUs, and times follow from the table of the chip.

    Raises:
        PlanError: the chip or the topology is unknown, a number is not positive, or an argument is not for this chip.
        ModuleNotFoundError: the compiler for the chip is not installed; the message names the extra to install.
    """
    kind, _, topology = str(name).partition(":")
    chip = CHIPS.get(kind.lower())
    if chip is None and (meant := _topology_of(kind.lower())):
        raise PlanError(f"target: {kind!r} is a slice of a cloud: name its topology, {meant!r}")
    if chip is None:
        close = get_close_matches(kind.lower(), CHIPS, 1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise PlanError(f"target: no chip {kind!r} is known{meant}; there are {', '.join(CHIPS)}")
    for what, count in (("nodes", nodes), ("gpus", gpus), ("devices", devices)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):  # pyright: ignore[reportUnnecessaryIsInstance]  # users have no checker
            raise PlanError(f"target: {what} is {count!r}, expected a positive whole number")
    wrong = {"tpu": (nodes, gpus, devices), "cuda": (devices,), "cpu": (nodes, gpus)}[chip.platform]
    if any(each is not None for each in wrong) or bool(topology) != (chip.platform == "tpu"):
        raise PlanError(f"target: {_usage(chip)}")
    return _target(chip, topology, nodes or 1, gpus or 8, devices or 8, stand_in and chip.platform != "cpu")


_CORES = {"v4": 2, "v5p": 2, "v5e": 1, "v5litepod": 1, "v6e": 1}
"""The number that each chip adds to the number in the name of a cloud's slice: v5p-64 has 32 chips."""


def _topology_of(name: str) -> str:
    """Returns the target name of a cloud's slice, such as `v5p:2x4x4` for v5p-64; "" for any other name."""
    kind, _, count = name.partition("-")
    if kind not in _CORES or not count.isdecimal() or len(count) > 6:
        return ""
    chips = int(count) // _CORES[kind]
    dimensions, doublings = 3 if _CORES[kind] == 2 else 2, chips.bit_length() - 1
    if chips < 1 or chips != 1 << doublings or chips * _CORES[kind] != int(count):
        return ""
    shares = [(doublings + number) // dimensions for number in range(dimensions)]
    sizes = [1 << each for each in sorted(shares, key=lambda share: (share == 0, share))]
    return f"{'v5e' if kind == 'v5litepod' else kind}:{'x'.join(map(str, sizes))}"


def _usage(chip: Chip) -> str:
    usage = {
        "tpu": f"a TPU is named with its topology alone: target('{chip.name}:2x2x1')",
        "cuda": f"GPUs are named with their numbers: target('{chip.name}', nodes=2, gpus=8)",
        "cpu": "CPUs are named with their number: target('cpu', devices=8)",
    }
    return usage[chip.platform]


@cache
def _target(chip: Chip, topology: str, nodes: int, gpus: int, devices: int, stand_in: bool) -> Target:
    if chip.platform == "tpu":
        name, count, per_host = f"{chip.name}:{topology}", _count(chip, topology), chip.devices * chip.per_host
    elif chip.platform == "cuda":
        name, count, per_host = f"{chip.name} x {nodes} x {gpus}", nodes * gpus, gpus
    else:
        name, count, per_host = f"cpu x {devices}", devices, 0
    if stand_in or chip.platform == "cpu":
        found = compile_only_cpu_devices(count, name)
    else:
        found = _tpus(chip, topology) if chip.platform == "tpu" else _gpus(chip, nodes, gpus)
    made = Target(name, chip, tuple(found), per_host if stand_in else 0)
    _targets.update(dict.fromkeys(made.devices, made))
    return made


_targets: dict[Any, Target] = {}
"""The target of each device."""


def target_of(mesh: Mesh) -> Target:
    """Returns the target that has the devices of a mesh.

    Raises:
        PlanError: the devices belong to no target, or to several.
    """
    found = {id(each): each for each in map(_targets.get, mesh.devices.flat)}
    if len(found) != 1 or None in found.values():
        raise PlanError("the devices of the mesh are not those of one target; take them from jaxpp.target(...).devices")
    made = found.popitem()[1]
    assert made is not None
    return made


def _count(chip: Chip, topology: str) -> int:
    """Returns the number of devices of a slice of TPUs. Raises PlanError where it is no topology."""
    count = math.prod(map(int, topology.split("x"))) if _TOPOLOGY.fullmatch(topology) else 0
    if not count:
        raise PlanError(
            f"target: {topology!r} is no topology of TPUs, such as 2x2x1 (v4, v5p, tpu7x) or 4x4 (v5e, v6e)"
        )
    return count * chip.devices


def _tpus(chip: Chip, topology: str) -> Sequence[Any]:
    try:
        with _without_tpus():
            return topologies.get_topology_desc(f"{chip.name}:{topology}", platform="tpu", **chip.xla).devices
    except jax.errors.JaxRuntimeError as error:
        raise PlanError(f"target: there is no {chip.name}:{topology}: {_first_line(error)}") from None
    except RuntimeError as error:  # JAX's own, where libtpu is missing
        raise _missing(chip, "libtpu", "tpu-plan") from error


@contextmanager
def _without_tpus() -> Generator[None]:
    """Sets the environment of `_NO_TPU` while libtpu starts, if the machine has no TPU, and removes it afterwards."""
    is_here = glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")
    added = {} if is_here else {name: value for name, value in _NO_TPU.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _gpus(chip: Chip, nodes: int, gpus: int) -> Sequence[Any]:
    try:
        return topologies.get_topology_desc(
            "", platform="cuda", target_config=_xla_config(chip), topology=f"1x{nodes}x{gpus}"
        ).devices
    except NotImplementedError as error:
        raise _missing(chip, "the CUDA plugin of JAX", "gpu-plan") from error
    except jax.errors.JaxRuntimeError as error:
        raise PlanError(f"target: {chip.name}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Returns the first line of XLA's message, without the name of the error code."""
    return (re.sub(r"^[A-Z_]+: ", "", str(error)).splitlines() or ["no reason given"])[0]


def _missing(chip: Chip, what: str, extra: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"target {chip.name!r} needs {what}: pip install 'jaxpp[{extra}]'")


def _xla_config(chip: Chip) -> str:
    """Returns the chip as XLA's `GpuTargetConfigProto`, in text form."""
    facts = chip.xla
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 shared_memory_per_block: 49152
  shared_memory_per_core: {facts["shared"]} shared_memory_per_block_optin: {facts["block"]}
  core_count: {facts["cores"]} fpus_per_core: {facts["fpus"]} clock_rate_ghz: {facts["clock"]}
  l2_cache_size: {facts["l2"]} memory_bandwidth: {int(chip.memory_bandwidth)} device_memory_size: {chip.memory_bytes}
  cuda_compute_capability {{ major: {facts["sm"]} minor: 0 }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 patch: 0 }} device_description_str: "{chip.name.upper()}"
"""
