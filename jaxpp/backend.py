"""`Backend`: compiles the programs of steps and runs them. `LocalBackend` uses JAX, `jaxpp.ray.Cluster` uses actors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from jaxpp import hints
from jaxpp._compat import weakly_typed
from jaxpp._keys import bits_of, is_key, keys_of
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import Host, MpmdMesh
from jaxpp.planning.backend import PlanBackend
from jaxpp.program import ProgramModule
from jaxpp.runtime import Event, Executable, Program, trace_step
from jaxpp.runtime.execution.options import Options
from jaxpp.runtime.processes import job
from jaxpp.runtime.processes.fetch import Handle
from jaxpp.targets.target import target_of


class CompiledProgram(Protocol):
    """A program that a backend has compiled; one call runs one step."""

    @property
    def program(self) -> Program:
        """The program that it runs, for analyses and costs: `jaxpp.runtime.load` of the module."""
        ...

    @property
    def stats(self) -> Any:
        """The compiler's numbers for each function of the program: `Stats` of `jaxpp.runtime.measuring.analysis`."""
        ...

    def __call__(self, arguments: Sequence[Any], /) -> list[Any]:
        """Runs one step: takes the leaves of the user's arguments, and returns the leaves of the results.

        Both may contain random keys. The call may return before anything is computed. It deletes donated arguments.
        """
        ...

    def trace(self, arguments: Sequence[Any], /) -> tuple[list[Any], list[Event]]:
        """Runs one step task by task; returns its results, and the time of each task and transfer."""
        ...


class Backend(Host, Protocol):
    """The owner of a mesh's devices. A backend of your own needs these two members, and no base class:

        class Mine:
            platform = "cpu"

            def compile(self, lowered, program, compiler_options):
                return ...  # a CompiledProgram

        mesh = jaxpp.MpmdMesh(jax_mesh, "mpmd", backend=Mine())

    Each device of `jax_mesh` stands for one of the backend's devices. Any devices of JAX will do, as they are never
    used. A backend reads `program.module` (docs/ir.md, section 6), or the result of `jaxpp.runtime.load` of it:
    registers, sequences of instructions, and the bytecode of each function. Results that stay elsewhere are handles, of
    a subclass of `jaxpp.runtime.processes.fetch.Handle`; `jaxpp.fetch` and `jaxpp.checkpoint` take these.
    """

    def compile(self, lowered: Lowered, program: ProgramModule, compiler_options: Options | None) -> CompiledProgram:
        """Compiles every stage program for the mesh that runs it.

        Args:
            lowered: the step as the user wrote it. It has the mesh, and the names and types of arguments and results.
                It also has the Python functions that the step calls back, and the functions that it calls as tasks
                (`operations`).
            program: the same step as one function per mesh.
            compiler_options: XLA's options, as the user gave them.
        """
        ...


def backend_of(mesh: MpmdMesh) -> Backend:
    """Returns the backend that compiles steps for `mesh`: its own one, a `PlanBackend` for absent devices, or JAX."""
    if mesh.backend is not None:
        return cast("Backend", mesh.backend)
    if not mesh.is_present:
        return PlanBackend(target_of(mesh.jax_mesh))
    return LocalBackend(mesh.platform)


@dataclass(frozen=True)
class LocalBackend:
    """JAX's own devices: those of this process, or of all processes of a job."""

    platform: str

    def compile(self, lowered: Lowered, program: ProgramModule, compiler_options: Options | None) -> "LocalProgram":
        """Implements `Backend.compile`. In a job all processes call it."""
        return self.restore(lowered, program, program.loaded, compiler_options, {})

    def restore(
        self,
        lowered: Lowered,
        program: ProgramModule,
        loaded: Program,
        compiler_options: Options | None,
        compiled: Mapping[str, bytes],
    ) -> "LocalProgram":
        """Makes a program as `compile` does, but loads the functions that are compiled already.

        Args:
            lowered: the step as the user wrote it.
            program: the same step as one function per mesh.
            loaded: the program as plain data.
            compiler_options: XLA's options, as the user gave them.
            compiled: compiled functions that `Executable.serialize` returned.
        """
        submeshes = lowered.mpmd_mesh.unstack[: loaded.meshes]
        hints.install()

        def text() -> str:  # the schedule first: if schedules differ, the error shows their names
            return f"{program.schedule}\n{program.as_text()}"

        return LocalProgram(
            lowered,
            loaded,
            submeshes,
            peers=job.peers(submeshes, text, lowered.described),
            compiled=compiled,
            **executable_options(lowered, compiler_options),
        )


def executable_options(lowered: Lowered, compiler_options: Options | None) -> dict[str, Any]:
    """Returns the options of `Executable` that are the same in every process of a step."""
    return {
        "names": lowered.in_names,
        "mpmd_axis": lowered.mpmd_mesh.mpmd_axis_name,
        "compiler_options": compiler_options,
        "host_callbacks": lowered.host_callbacks,
        "operations": lowered.operations,
    }


class LocalProgram(Executable):
    """An `Executable` for the user's own arguments and results.

    The program itself has the bits of random keys, and no weak types. This class converts both.
    """

    def __init__(self, lowered: Lowered, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._keys_in = key_types(lowered.in_avals)
        self._keys_out = {i: aval for i, aval in enumerate(lowered.out_avals) if is_key(aval)}
        self._weak_out = [i for i, aval in enumerate(lowered.out_avals) if getattr(aval, "weak_type", False)]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs one step. Raises as `Executable`, and TypeError for a key of another generator."""
        return self._typed(super().__call__(key_bits(arguments, self._keys_in, self.names)))

    def trace(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Event]]:
        """Runs one step task by task: `jaxpp.runtime.trace_step`."""
        results, events = trace_step(self, key_bits(arguments, self._keys_in, self.names))
        return self._typed(results), events

    def _typed(self, results: list[Any]) -> list[Any]:
        """Converts results of the program to the types that the user's function returns."""
        for i in self._weak_out:
            results[i] = weakly_typed(results[i])
        for i, aval in self._keys_out.items():
            results[i] = keys_of(results[i], aval)
        return results


def key_types(avals: Sequence[Any]) -> dict[int, Any]:
    """Returns the dtype of each random key among `avals`, by its index."""
    return {i: aval.dtype for i, aval in enumerate(avals) if is_key(aval)}


def key_bits(leaves: Sequence[Any], keys: Mapping[int, Any], names: Sequence[str]) -> Sequence[Any]:
    """Returns `leaves` with the bits of each random key. A handle of keys stands for their bits already.

    Args:
        leaves: the leaves of the arguments.
        keys: the dtypes of the random keys, by their indices, as from `key_types`.
        names: the names of the leaves, for errors.

    Raises:
        TypeError: a leaf in `keys` is no key, or a key of another generator, even if its bits have the same type.
    """
    if not keys:
        return leaves
    found = [*leaves]
    for i, dtype in keys.items():
        if (given := getattr(leaves[i], "dtype", None)) != dtype:
            what = type(leaves[i]).__name__ if given is None else given
            raise TypeError(f"argument `{names[i]}` is {what}; the program was compiled for random keys, {dtype}")
        if not isinstance(leaves[i], Handle):
            found[i] = bits_of(leaves[i])
    return found
