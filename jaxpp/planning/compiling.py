"""Compiles each distinct function of a program for devices that are not here, and caches the results on disk."""

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp._absent import compile_only, module_costs
from jaxpp._system import write_file
from jaxpp.ir.flops import products_of
from jaxpp.ir.program import Program
from jaxpp.planning.collectives import collective_bytes
from jaxpp.runtime.execution.compiling import FunctionStats, compile_each
from jaxpp.runtime.execution.options import Options, options_of
from jaxpp.runtime.measuring.analysis import ADDED
from jaxpp.targets.target import PlanError, Target

CACHE = "JAXPP_PLAN_CACHE"
"""The environment variable that names the folder of the cache; if it is empty, nothing is cached."""

AT_ONCE = 2
"""The number of programs that are compiled at once: the TPU compiler takes gigabytes for each."""

_EXTRAS = {"tpu": "tpu-plan", "cuda": "gpu-plan", "cpu": "dev"}
"""The extra of jaxpp that installs the compiler for each platform, in the version that JAX requires."""

_FORMAT = 6
"""The version of the format of cached files; increase it when the format changes."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's statistics of one function.

    Unless stated otherwise, numbers are per device, and the body of a loop counts once, as in XLA's cost analysis.

    Attributes:
        argument_bytes: the bytes of the arguments in device memory, in the compiler's layout.
        output_bytes: the bytes of the outputs in device memory, in the compiler's layout.
        alias_bytes: the bytes of the outputs that reuse the buffer of a donated argument.
        temp_bytes: the bytes of the temporaries in device memory.
        code_bytes: the bytes of the machine code.
        host_bytes: the bytes of arguments, outputs and temporaries in host memory; 0 if the compiler does not separate
            the memories.
        flops: the FLOPs of all operations.
        transcendentals: the number of transcendental operations.
        accessed_bytes: the bytes that operations read and write.
        collective_bytes: the bytes that a device sends in collectives.
        between_bytes: the part of `collective_bytes` that belongs to collectives between hosts.
        collectives: the number of collectives.
        between_collectives: the number of collectives between hosts.
        optimal_seconds: the TPU compiler's estimate, in which collectives take no time; 0 for other platforms.
        products: the FLOPs of matrix products and convolutions by element type, on all devices together. The body of a
            loop counts once per trip.
        device_products: as `products`, for one device. A product of replicated values counts in full.
        trips: `products` divided by the same FLOPs with each loop body counted once.
        compile_seconds: the time of the compilation on the machine that compiled it.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    host_bytes: int
    flops: float
    transcendentals: float
    accessed_bytes: float
    collective_bytes: float
    between_bytes: float
    collectives: int
    between_collectives: int
    optimal_seconds: float
    products: Mapping[str, int]
    device_products: Mapping[str, int]
    trips: float
    compile_seconds: float

    @property
    def stats(self) -> FunctionStats:
        """The same statistics in the form of a step that runs."""
        numbers = self.flops, self.transcendentals, self.accessed_bytes, self.optimal_seconds
        costs = {name: value for name, value in zip(ADDED, numbers, strict=True) if value}
        return FunctionStats(self.temp_bytes, self.code_bytes, costs)


def compile_all(
    program: Program,
    meshes: Sequence[Sequence[Any]],
    target: Target,
    options: Options,
    host_callbacks: Sequence[Any] = (),
) -> dict[str, Compiled]:
    """Compiles every function that a mesh calls, for the first mesh that calls it; shows progress on stderr.

    Args:
        program: the program.
        meshes: the devices of each mesh.
        target: the target that has these devices.
        options: the compiler options of XLA.
        host_callbacks: the Python functions that the program calls back; if there are any, nothing is cached.

    Raises:
        ValueError: two meshes that call one function have different options.
        Exception: any error of XLA, with the name of the function as a note.
    """
    first: dict[str, int] = {}
    for mesh, calls in enumerate(program.calls):
        for each in calls:
            if program.functions[each.function].is_compiled:
                former = first.setdefault(each.function, mesh)
                if options_of(options, former) != options_of(options, mesh):
                    raise ValueError(
                        f"compiler_options: meshes {former} and {mesh} both call @{each.function}, and have different "
                        "options; a plan takes one set of options for each program"
                    )

    found: dict[str, Compiled] = {}

    def compile_one(name: str) -> None:
        mesh, bytecode = first[name], program.functions[name].bytecode
        found[name] = _kept(bytecode, meshes[mesh], target, options_of(options, mesh), host_callbacks)

    compile_each(program, dict.fromkeys(first, target.name), compile_one, f"compiling for {target.name}", AT_ONCE)
    return found


def _kept(
    bytecode: bytes, devices: Sequence[Any], target: Target, options: Mapping[str, Any], host_callbacks: Sequence[Any]
) -> Compiled:
    """Returns the cached statistics of a module; if nothing is cached, compiles the module and caches the result."""
    folder, hosts = cache_folder(), list(map(target.host_of, devices))
    if target.stand_in:  # its machine code is never run
        options = {"xla_backend_optimization_level": 0, **options}
    if folder is None or host_callbacks:  # callbacks are addresses in this process
        return compile_now(bytecode, devices, options, host_callbacks, hosts)
    path = folder / f"{_key(bytecode, devices, target, options)}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):  # a damaged file counts as missing
        return Compiled(**json.loads(path.read_text(encoding="utf-8")))
    made = compile_now(bytecode, devices, options, (), hosts)
    with contextlib.suppress(OSError):  # nothing is cached in a read-only folder
        folder.mkdir(parents=True, exist_ok=True)
        write_file(str(path), json.dumps(dataclasses.asdict(made)).encode())
    return made


def cache_folder() -> Path | None:
    """Returns the folder of the cache: `$JAXPP_PLAN_CACHE`, by default `jaxpp/plan` in the user's cache folder.

    None if the variable is empty.
    """
    named = os.environ.get(CACHE)
    if named is not None:
        return Path(named) if named else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxpp" / "plan"


def _key(bytecode: bytes, devices: Sequence[Any], target: Target, options: Mapping[str, Any]) -> str:
    """Returns a digest of all inputs of a compilation. Source locations do not change it."""
    with _compat.make_context():
        text = str(ir.Module.parse(bytecode))
    parts = [
        str(_FORMAT),
        text,
        target.name,
        _compat.compile_options(devices, options).SerializeAsString().hex(),  # includes settings of jax.config
        os.environ.get("XLA_FLAGS", ""),
        os.environ.get("LIBTPU_INIT_ARGS", ""),
        compilers(target),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compilers(target: Target) -> str:
    """Returns the versions of the installed packages that compile: `jaxlib 0.10.2, libtpu 0.0.52`.

    If XLA's compiler for CPUs stands in for that of the chip, the text says it.
    """
    packages = {
        "tpu": ["jaxlib", "libtpu"],
        "cuda": ["jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt"],
        "cpu": ["jaxlib"],
    }
    found: list[str] = []
    for name in packages[target.platform]:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    stands_in = f" for CPUs stands in for the compiler of {target.chip.name}" if target.stand_in else ""
    return ", ".join(found) + stands_in


def compile_now(
    bytecode: bytes,
    devices: Sequence[Any],
    options: Mapping[str, Any],
    host_callbacks: Sequence[Any],
    hosts: Sequence[int] = (),
) -> Compiled:
    """Compiles a module, and returns its statistics.

    Args:
        bytecode: the module.
        devices: the devices for which it is compiled.
        options: the compiler options of XLA.
        host_callbacks: the Python functions that the module calls back.
        hosts: the host of each device; if empty, all devices are on one host.

    Raises:
        PlanError: libtpu can't compile a collective of this size, or jaxlib can't read the compiler's output.
    """
    begin = time.perf_counter()
    executable = _executable(bytecode, devices, options, host_callbacks)
    compile_seconds, modules = time.perf_counter() - begin, _modules(executable, devices[0].platform)
    sent = [collective_bytes(each.to_string(), hosts) for each in modules]
    memory = executable.get_compiled_memory_stats()
    costs = _costs(executable)
    seconds = max(costs.get("optimal_seconds", 0.0), 0.0) if devices[0].platform == "tpu" else 0.0
    with _compat.make_context():
        module = ir.Module.parse(bytecode)
        products, once = products_of(module), products_of(module, loops_once=True)
        of_device = products_of(module, per_device=True)
    return Compiled(
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        host_bytes=memory.host_argument_size_in_bytes
        + memory.host_output_size_in_bytes
        - memory.host_alias_size_in_bytes
        + memory.host_temp_size_in_bytes,
        flops=costs.get("flops", 0.0),
        transcendentals=costs.get("transcendentals", 0.0),
        accessed_bytes=costs.get("bytes accessed", 0.0),
        collective_bytes=sum(each.inside + each.between for each in sent),
        between_bytes=sum(each.between for each in sent),
        collectives=sum(each.inside_count + each.between_count for each in sent),
        between_collectives=sum(each.between_count for each in sent),
        optimal_seconds=seconds,
        products=products,
        device_products=of_device,
        trips=sum(products.values()) / sum(once.values()) if sum(once.values()) else 1.0,
        compile_seconds=compile_seconds,
    )


def _executable(
    bytecode: bytes, devices: Sequence[Any], options: Mapping[str, Any], host_callbacks: Sequence[Any]
) -> Any:
    """Compiles a module, and returns the executable.

    Raises:
        PlanError: libtpu refuses a collective over only the first host of a v6e. JAX numbers its chips 0 to 3, but the
            compiler numbers them 0, 1, 4 and 5.
    """
    try:
        return compile_only(bytecode, devices, options, host_callbacks)
    except jax.errors.JaxRuntimeError as error:
        if "device_id < kMaxDeviceCount" not in str(error):
            raise
        raise PlanError(
            f"libtpu {version('libtpu')} can't compile a collective over the chips of the first host alone: plan for "
            f"stages of fewer chips than {len(devices)}, or of several hosts"
        ) from error


def _modules(executable: Any, platform: str) -> Sequence[Any]:
    """Returns the optimized HLO modules of an executable.

    Raises:
        PlanError: jaxlib can't read them, because the compiler is newer or older than the one that JAX requires.
    """
    try:
        return executable.hlo_modules()
    except jax.errors.JaxRuntimeError as error:
        raise PlanError(
            f"jaxlib {version('jaxlib')} can't read what the installed compiler for {platform} makes: install the one "
            f"for jax {version('jax')}, pip install 'jaxpp[{_EXTRAS[platform]}]'"
        ) from error


def _costs(executable: Any) -> dict[str, float]:
    """Returns the compiler's cost analysis; if it has none, XLA's analysis of the optimized modules."""
    try:
        found = executable.cost_analysis()
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("UNIMPLEMENTED"):
            raise
        found = None
    return dict(found) if found else module_costs(executable)
