"""Compiles each function of a program once, and loads it for every submesh that calls it."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from jax.sharding import Mesh
from tqdm import tqdm

from jaxpp import _compat
from jaxpp.runtime.program import Call, Program

Executables = dict[tuple[str, int], Any]
"""The XLA executable of each (function, mesh) that occurs."""


def compile_program(
    program: Program,
    submeshes: Mapping[int, Mesh],
    compiler_options: Mapping[str, Any] | None = None,
    host_callbacks: Sequence[Any] = (),
) -> Executables:
    """Compile in parallel threads, through JAX's persistent cache: one compile for each distinct function.

    submeshes: those that this process runs, by number; what only others call is not compiled.
    A line on a terminal's stderr shows the progress. Raises what XLA raises, with the function's name as a note.
    """
    meshes_of: dict[str, list[int]] = {}
    for mesh in submeshes:
        for name in dict.fromkeys(each.function for each in program.sequences[mesh] if isinstance(each, Call)):
            meshes_of.setdefault(name, []).append(mesh)
    options = compiler_options or {}
    executables: Executables = {}

    def compile_one(name: str) -> None:
        try:
            executables.update(_compile_function(program, name, meshes_of[name], submeshes, options, host_callbacks))
        except Exception as error:
            error.add_note(f"jaxpp: while compiling @{name} for mesh {meshes_of[name][0]}")
            raise

    workers = max(1, min(len(meshes_of), os.cpu_count() or 1))
    # What takes longest comes first, so that no thread is left alone with it in the end.
    names = sorted(meshes_of, key=lambda name: len(program.functions[name].bytecode), reverse=True)
    with ThreadPoolExecutor(workers, thread_name_prefix="jaxpp-compile") as pool:
        pending = pool.map(compile_one, names)
        # disable=None: silent unless stderr is a terminal.
        for _ in tqdm(pending, "compiling stage programs", len(names), leave=False, disable=None):
            pass
    return executables


def _compile_function(
    program: Program,
    name: str,
    meshes: Sequence[int],
    submeshes: Mapping[int, Mesh],
    options: Mapping[str, Any],
    host_callbacks: Sequence[Any],
) -> Executables:
    """The executables of one function: the first is compiled, the others are loaded from it where that works."""
    bytecode = program.functions[name].bytecode
    devices = [list(submeshes[mesh].devices.flat) for mesh in meshes]
    first = _compat.compile_program(bytecode, devices[0], options, host_callbacks)
    executables: Executables = {(name, meshes[0]): first}
    serialized = cache(first.serialize)
    for mesh, each in zip(meshes[1:], devices[1:], strict=True):
        loaded = None if host_callbacks else _load(serialized, bytecode, devices[0], each, options)
        executables[name, mesh] = loaded or _compat.compile_program(bytecode, each, options, host_callbacks)
    return executables


def _load(
    serialized: Callable[[], bytes],
    bytecode: bytes,
    compiled_for: Sequence[Any],
    devices: Sequence[Any],
    options: Mapping[str, Any],
) -> Any | None:
    """The compiled function for other devices, without compiling it; None where the backend cannot."""
    try:
        cached = _compat.load_from_cache(bytecode, compiled_for, devices, options)
        # What is not in the cache did not come out of it, so it may be serialized.
        return cached or _compat.load_executable(serialized(), devices, options)
    except Exception:  # what a backend raises that cannot is not specified
        return None
