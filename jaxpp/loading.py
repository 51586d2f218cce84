"""`load`: loads a step that was compiled before, without tracing, rewriting or compiling it."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from jaxlib.mlir import ir

from jaxpp._compat import load_executable, make_context
from jaxpp._system import tell
from jaxpp.backend import LocalBackend
from jaxpp.ir.custom_calls import unregistered
from jaxpp.lowering.arguments import StaticArguments
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import MpmdMesh, check_mesh
from jaxpp.program import ProgramModule
from jaxpp.runtime import Program
from jaxpp.runtime import load as read_program
from jaxpp.runtime.execution.options import Options, from_json, named, options_of
from jaxpp.runtime.processes import job
from jaxpp.runtime.processes.membership import ProcessError
from jaxpp.saved import trees
from jaxpp.saved.check import check_saved
from jaxpp.saved.saved_step import (
    SavedStep,
    SavedStepError,
    check_processor,
    check_surroundings,
    file_of,
    refused,
    types,
)
from jaxpp.step import CompiledStep


def load(path: str | os.PathLike[str], mpmd_mesh: MpmdMesh | None = None, *, like: Any = None) -> CompiledStep:
    """Loads a step that `compiled.save(path)` saved. The step is ready to be called.

        step = jaxpp.load("step.jaxpp", like=(state, batch))
        state, loss = step(state, batch)

    It takes the same arguments as `compiled`, and returns the same results. The program in the file is verified again.
    The file holds machine code, which is run: load only files that you trust.

    Args:
        path: the folder. In a job all processes call this, and each one reads its own file.
        mpmd_mesh: a mesh of the size for which the step was compiled. None: the devices with the same ids.
        like: a pytree with a node of each class in the step's arguments and results, other than tuples, lists and
            dicts with strings as keys. The arguments will do, as only the structure is read.

    Raises:
        TypeError: `mpmd_mesh` is not an MpmdMesh.
        SavedStepError (a ValueError): the file is damaged, or a class is not in `like`. Or the step was saved with
            another version of JAX or jaxpp, or for other devices, another processor, number of processes, mesh or
            transport. In a job all processes raise it, even if only one of them can't load its file.
        OSError: this process has no file there.
        ProcessError: other processes loaded another step, as from `compile`.
        TransferError: another process compiles a step instead.
    """
    if mpmd_mesh is not None:
        check_mesh(mpmd_mesh)
    nodes = trees.nodes_of(like)
    found = _in_all(lambda: _read(path, mpmd_mesh, nodes))
    return _in_all(found.loaded)


_Made = TypeVar("_Made")


def _in_all(make: Callable[[], _Made]) -> _Made:
    """Returns the result of `make` if it succeeds in all processes.

    Without this check, the processes where it succeeds would wait for the others.

    Raises:
        SavedStepError: `make` raised an exception in another process.
        Exception: any exception of `make` in this process.
    """
    try:
        made = make()
    except Exception as error:
        if jax.process_count() > 1:
            job.gather_loading(str(error) or type(error).__name__)
        raise
    problems = job.gather_loading("") if jax.process_count() > 1 else []
    if other := next((f"process {process}: {problem}" for process, problem in enumerate(problems) if problem), ""):
        raise SavedStepError(f"the step can't be loaded in {other}")
    return made


def load_for(path: str | os.PathLike[str], arguments: tuple[Any, ...]) -> CompiledStep | None:
    """Loads a step that takes these arguments, as `load`; returns None in all processes if one of them can't."""

    def read() -> ReadStep:
        found = _read(path, None, trees.nodes_of(arguments))
        expected, taken = jax.tree.leaves(jax.eval_shape(_same, *arguments)), found.lowered.in_avals
        are_same = [(each.shape, each.dtype) for each in taken] == [(each.shape, each.dtype) for each in expected]
        if not are_same or found.lowered.in_tree != jax.tree.structure((arguments, {})):
            raise SavedStepError(f"{path}: the step takes other arguments")
        return found

    try:
        found = _in_all(read)
    except (SavedStepError, OSError):
        return None
    try:
        return _in_all(found.loaded)
    except (SavedStepError, ProcessError) as error:
        tell(f"a saved step is made again: {error}")
        return None


def try_loading(folder: str | os.PathLike[str], count: int, *, on_cpus: bool) -> None:
    """Checks that this process could load what each of `count` processes has saved in the folder.

    on_cpus: whether the devices are CPUs. Then XLA loads the machine code for devices of this process. JAX starts for
        that, and the next load takes a tenth of the time.

    Raises:
        SavedStepError: a file is damaged, or made by other versions or for another processor.
        OSError: a file is missing or can't be read.
        JaxRuntimeError: XLA refuses the machine code.
    """
    for process in range(count):
        saved, path = SavedStep.read(folder, process), file_of(folder, process)
        if not on_cpus:
            continue
        check_processor(saved, path)
        with refused(path):
            options = from_json(saved.description["compiler_options"])
            owners: list[list[int]] = json.loads(saved.description["surroundings"]["owners"])
            own = [mesh for mesh, each in enumerate(owners) if process in each]
            sizes = {len(owners[mesh]) for mesh in own}
        devices = jax.local_devices()[: min(sizes, default=0)]
        # A program of several processes needs all of them, and which mesh a program is for is known from its size only.
        if sizes == {len(devices)} and all({*owners[mesh]} == {process} for mesh in own):
            for code in saved.code.values():
                load_executable(code, devices, options_of(options, own[0]))


@dataclass(frozen=True)
class ReadStep:
    """A saved step that was read and verified for local devices, but whose machine code XLA has not loaded yet."""

    path: str | os.PathLike[str]
    code: Mapping[str, bytes]
    options: Options
    lowered: Lowered
    module: ProgramModule
    program: Program

    def loaded(self) -> CompiledStep:
        """Returns the step, ready to be called. In a job all processes call this.

        Raises:
            SavedStepError: XLA refuses the machine code.
            ProcessError: other processes loaded another step.
            TransferError: another process compiles a step instead.
        """
        mesh = self.lowered.mpmd_mesh
        job.agree_on(mesh.jax_mesh, named(self.options), self.lowered.described)
        backend = LocalBackend(mesh.platform)
        try:
            executable = backend.restore(self.lowered, self.module, self.program, self.options, self.code)
        except jax.errors.JaxRuntimeError as error:
            said = str(error).partition("\n")[0][:300]
            raise SavedStepError(
                f"{self.path}: XLA can't load it: {said}; compile the step and save it again"
            ) from error
        return CompiledStep(self.lowered, executable, self.module, self.options)


def _read(path: str | os.PathLike[str], mpmd_mesh: MpmdMesh | None, nodes: trees.Nodes) -> ReadStep:
    saved = SavedStep.read(path)
    with refused(file_of(path)):
        mesh = mpmd_mesh or _mesh(saved, path)
        check_surroundings(saved, mesh, path)
        with make_context():
            module = ProgramModule(ir.Module.parse(saved.program))
        program = read_program(module.module)
        _check_custom_calls(module, mesh, path)
        lowered = _lowered(saved, module, mesh, nodes, path)
        check_saved(saved, lowered, program)
        options = from_json(saved.description["compiler_options"])
    return ReadStep(path, saved.code, options, lowered, module, program)


def _check_custom_calls(module: ProgramModule, mesh: MpmdMesh, path: str | os.PathLike[str]) -> None:
    """Raises SavedStepError for a custom call without a target in this process.

    XLA would jump to the address in the machine code.
    """
    unknown = unregistered(module.module.operation, mesh.platform)
    if unknown is not None:
        raise SavedStepError(
            f"{path}: the custom call @{unknown[0]} is not registered in this process: import what registers it "
            "(jax.ffi.register_ffi_target), then load the step"
        )


def _same(*arguments: Any) -> Any:
    return arguments


def _lowered(saved: SavedStep, module: ProgramModule, mesh: MpmdMesh, nodes: trees.Nodes, path: Any) -> Lowered:
    description = saved.description
    try:
        in_tree, out_tree = (trees.from_json(description[name], nodes) for name in ("in_tree", "out_tree"))
    except trees.UnknownNodeError as error:
        raise SavedStepError(
            f"{path}: its arguments or results have a node of the class {error}: give a tree that has one, such as "
            "like=(state, batch)"
        ) from None
    return Lowered(
        module.module,
        mesh,
        in_tree,
        out_tree,
        types(description["in_types"]),
        types(description["out_types"]),
        tuple(description["in_names"]),
        tuple(description["out_names"]),
        tuple(description["donated"]),
        StaticArguments(frozenset(), frozenset()),
        host_callbacks=(),
        stacks={},
        feeds=dict(description["feeds"]),
    )


def _mesh(saved: SavedStep, path: str | os.PathLike[str]) -> MpmdMesh:
    """Returns the mesh of the local devices with the ids for which the step was compiled."""
    description = saved.description
    here = {device.id: device for device in jax.devices()}
    numbers = [number for mesh in description["devices"] for number in mesh]
    if missing := sorted({*numbers} - here.keys()):
        raise SavedStepError(
            f"{path}: the step was saved for {len({*numbers})} devices; here are {len(here)}, without number "
            f"{missing[0]}: give a mesh as large, or compile the step again"
        )
    if strange := [kind for kind in description["axes"].values() if kind not in AxisType.__members__]:
        raise ValueError(f"an axis of the type {strange[0]!r}")
    kinds = tuple(AxisType[kind] for kind in description["axes"].values())
    meshes = [
        Mesh(np.array([here[number] for number in row]).reshape(shape), tuple(description["axes"]), axis_types=kinds)
        for row, shape in zip(description["devices"], description["shapes"], strict=True)
    ]
    return MpmdMesh.of(meshes, description["mpmd_axis"])
