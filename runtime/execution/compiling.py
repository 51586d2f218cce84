"""Compiles each function of a program once, and loads it for every submesh that calls it."""

import contextlib
import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import jax
from jax.sharding import Mesh

from jaxpp import _absent, _compat
from jaxpp.ir.program import Program
from jaxpp.runtime.execution.options import Options, options_of, variants
from jaxpp.runtime.execution.progress import Progress
from jaxpp.runtime.processes.waiting import WaitFor

Executables = dict[tuple[str, int], Any]
"""The XLA executable of each (function, mesh) pair of the program."""

LONG_COMPILE: Final = "wait; JAX's compilation cache makes the next start short"

TRITON_FAILS: Final = "Couldn't find output tile sizes"
"""The error of jaxlib 0.10.2 on GPUs for some products with a side of, say, 12 rows that is read through a reshape."""


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionStats:
    """The compiler's statistics of one function, for one device.

    costs: as `jax.stages.Compiled.cost_analysis`; empty where the backend has none.
    """

    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    costs: Mapping[str, float]

    @classmethod
    def of(cls, executable: Any) -> "FunctionStats":
        """Returns the statistics of a compiled function. Its device may belong to another process."""
        memory = executable.get_compiled_memory_stats()
        try:
            costs = dict(executable.cost_analysis())
        except RuntimeError as error:  # of XLA
            if not str(error).startswith("UNIMPLEMENTED"):
                raise
            costs = {}
        return cls(memory.temp_size_in_bytes, memory.generated_code_size_in_bytes, costs)


Stats = Mapping[tuple[str, int], FunctionStats]
"""The statistics of each (function, mesh) pair. Meshes that only other processes run are missing."""


def compile_program(
    program: Program,
    submeshes: Mapping[int, Mesh],
    compiler_options: Options | None = None,
    host_callbacks: Sequence[Any] = (),
    compiled: Mapping[str, bytes] = MappingProxyType({}),
) -> tuple[Executables, dict[str, float]]:
    """Compiles the functions in parallel threads, through JAX's persistent cache. Also returns the seconds of each.

    Each function is compiled once for each distinct set of options. Long work shows its progress on stderr. Raises
    XLA's errors, with the function's name as a note.

    submeshes: the meshes that this process runs, by index. Functions that no such mesh calls are not compiled.
    compiled: the results of `serialized` by variant name. Such a function is loaded instead of compiled.
    """
    meshes_of = callers(program, submeshes)
    options = compiler_options or {}
    executables: Executables = {}
    failures: dict[str, Exception] = {}

    def compile_one(name: str) -> None:
        for variant, meshes in variants(name, meshes_of[name], options).items():
            devices = {mesh: list(submeshes[mesh].devices.flat) for mesh in meshes}
            own = options_of(options, meshes[0])
            if variant in compiled:
                for mesh, each in devices.items():
                    executables[name, mesh] = _compat.load_executable(compiled[variant], each, own)
                continue
            made, failure = _compile_function(program.functions[name].bytecode, name, devices, own, host_callbacks)
            executables.update(made)
            if failure is not None:
                failures[name] = failure

    wanted = {name: f"mesh {meshes[0]}" for name, meshes in meshes_of.items()}
    seconds = compile_each(program, wanted, compile_one, "compiling stage programs", os.cpu_count() or 1)
    if failures:
        name, failure = min(failures.items())
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        warnings.warn(
            f"@{name}{more}: compiled once for each mesh, since what was compiled for one could not be loaded for "
            f"another: {type(failure).__name__}: {str(failure)[:300]}",
            stacklevel=2,
        )
    return executables, seconds


def callers(program: Program, meshes: Iterable[int]) -> dict[str, list[int]]:
    """Returns for each compiled function which of these meshes call it."""
    found: dict[str, list[int]] = {}
    for mesh in meshes:
        for name in dict.fromkeys(each.function for each in program.calls[mesh]):
            if program.functions[name].is_compiled:
                found.setdefault(name, []).append(mesh)
    return found


def statistics(program: Program, executables: Executables, options: Options) -> Stats:
    """Returns the compiler's statistics of each function. Asks once for all meshes with the same options."""
    found: dict[tuple[str, int], FunctionStats] = {}
    for name, meshes in callers(program, sorted({mesh for _, mesh in executables})).items():
        for alike in variants(name, meshes, options).values():
            found |= dict.fromkeys([(name, mesh) for mesh in alike], FunctionStats.of(executables[name, alike[0]]))
    return found


def compile_each(
    program: Program, wanted: Mapping[str, str], compile_one: Callable[[str], None], what: str, at_once: int
) -> dict[str, float]:
    """Compiles functions in parallel threads; returns the seconds of each. Long work shows its progress on stderr.

    wanted: by function name, the mesh for which it is compiled, for messages.
    compile_one: compiles the function of a name.
    what: the name of the work, such as "compiling stage programs".
    at_once: the largest number of functions to compile at once.
    Raises the errors of `compile_one`, with the function's name as a note.
    """
    running: set[str] = set()
    seconds: dict[str, float] = {}

    def run(name: str) -> None:
        running.add(name)
        begin = time.perf_counter()
        try:
            with WaitFor(f"the compilation of @{name} for {wanted[name]}", remedy=LONG_COMPILE):
                compile_one(name)
            seconds[name] = time.perf_counter() - begin
        except Exception as error:  # of any kind: it is raised again
            error.add_note(f"jaxpp: while compiling @{name} for {wanted[name]}")
            if TRITON_FAILS in str(error):
                tried = "compiler_options={'xla_gpu_enable_triton_gemm': False}"
                error.add_note(f"jaxpp: plain jax.jit may end so too; try {tried}")
            raise
        finally:
            running.remove(name)

    # The longest compile comes first, so that no thread runs it alone at the end.
    names = sorted(wanted, key=lambda name: len(program.functions[name].bytecode), reverse=True)
    progress = Progress(what, len(names))
    workers = max(1, min(len(names), at_once))
    with contextlib.closing(progress), ThreadPoolExecutor(workers, thread_name_prefix="jaxpp-compile") as pool:
        pending = {pool.submit(run, name) for name in names}
        try:
            while pending:
                done, pending = wait(pending, progress.wait(), FIRST_COMPLETED)
                for each in done:
                    each.result()
                progress.report(len(names) - len(pending), running.copy())
        except BaseException:  # also Ctrl-C: pending compiles must not begin
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return seconds


def _compile_function(
    bytecode: bytes,
    name: str,
    meshes: Mapping[int, Sequence[Any]],
    options: Mapping[str, Any],
    host_callbacks: Sequence[Any],
) -> tuple[Executables, Exception | None]:
    """Makes the executables of one function. Compiles it for the first mesh, and loads the result for the others.

    If a load fails, the function is compiled again for that mesh and all later ones. Also returns the error of the
    load, unless the error says that the backend can't load at all.

    meshes: the devices of each mesh that calls the function.
    """
    (number, devices), *others = meshes.items()
    first = _compat.compile_program(bytecode, devices, options, host_callbacks)
    executables: Executables = {(name, number): first}
    serialized = cache(first.serialize)
    entry = cache(lambda: _compat.cache_entry(bytecode, devices, options))
    can_load, failure = not host_callbacks, None
    for mesh, each in others:
        loaded = first if each == devices else None
        if loaded is None and can_load:
            try:
                loaded = _load(serialized, entry(), each, options)
            except jax.errors.JaxRuntimeError as error:
                can_load = False
                failure = None if str(error).startswith("UNIMPLEMENTED") else error
        executables[name, mesh] = loaded or _compat.compile_program(bytecode, each, options, host_callbacks)
    return executables, failure


def _load(
    serialized: Callable[[], bytes], entry: tuple[str, str] | None, devices: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Loads the compiled function for other devices, without compiling it. Raises XLA's error on failure."""
    cached = entry and _compat.load_from_cache(entry, devices, options)
    # An executable that is not in the cache was compiled here, so that it can be serialized.
    return cached or _compat.load_executable(serialized(), devices, options)


def serialized(
    program: Program, executables: Executables, submeshes: Mapping[int, Mesh], options: Options
) -> dict[str, bytes]:
    """Returns the compiled functions as bytes, by the names of their `variants`, for `compile_program`.

    That function takes them in a process with such devices. On CPUs an executable from JAX's persistent cache can't be
    serialized again: its functions are lost (0.10.2, 0.12.0.1). So while that cache is on, functions are compiled anew.
    Raises XLA's error if the backend can't serialize.
    """
    found: dict[str, bytes] = {}
    for name, meshes in callers(program, submeshes).items():
        for variant, (mesh, *_) in variants(name, meshes, options).items():
            bytecode, devices = program.functions[name].bytecode, list(submeshes[mesh].devices.flat)
            own = options_of(options, mesh)
            is_lost = devices[0].platform == "cpu" and _compat.cache_entry(bytecode, devices, own) is not None
            executable = _absent.compile_only(bytecode, devices, own) if is_lost else executables[name, mesh]
            found[variant] = executable.serialize()
    return found
