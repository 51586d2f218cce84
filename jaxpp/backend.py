"""`Backend`: who compiles the programs of steps and runs them: JAX in `LocalBackend`, actors in `jaxpp.ray.Cluster`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import jax

from jaxpp import hints
from jaxpp._compat import is_key_type, key_implementation, weakly_typed
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import Host, MpmdMesh
from jaxpp.planning.backend import PlanBackend
from jaxpp.planning.target import target_of
from jaxpp.program import ProgramModule
from jaxpp.runtime import Event, Executable, Program, load, trace_step
from jaxpp.runtime.execution.options import Options
from jaxpp.runtime.processes import job
from jaxpp.runtime.processes.fetch import Handle


class CompiledProgram(Protocol):
    """What a backend makes of a program: one step of it is one call."""

    @property
    def program(self) -> Program:
        """What it runs, for analyses and costs: `jaxpp.runtime.load` of the module."""
        ...

    @property
    def stats(self) -> Any:
        """What the compiler says of each function of the program: `Stats` of `jaxpp.runtime.measuring.analysis`."""
        ...

    def __call__(self, arguments: Sequence[Any], /) -> list[Any]:
        """Run one step: from the leaves of the user's arguments, random keys among them, to those of the results.

        It may return before anything is computed. Donated arguments are deleted.
        """
        ...

    def trace(self, arguments: Sequence[Any], /) -> tuple[list[Any], list[Event]]:
        """Run one step task by task; returns its results, and when each task and transfer ran."""
        ...


class Backend(Host, Protocol):
    """Who has the devices of a mesh. One of your own needs these two members, and no base class:

        class Mine:
            platform = "cpu"

            def compile(self, lowered, program, compiler_options):
                return ...  # a CompiledProgram

        mesh = jaxpp.MpmdMesh(jax_mesh, "mpmd", backend=Mine())

    The devices of `jax_mesh` stand for its own, one for one; any devices of JAX will do, as they are never used. A
    backend reads `program.module` (docs/ir.md, section 6), or takes what `jaxpp.runtime.load` makes of it: registers,
    sequences of instructions, and the bytecode of each function. Results that stay elsewhere are handles, of a subclass
    of `jaxpp.runtime.processes.fetch.Handle`: then `jaxpp.fetch` and `jaxpp.checkpoint` take them.
    """

    def compile(self, lowered: Lowered, program: ProgramModule, compiler_options: Options | None) -> CompiledProgram:
        """Compile every stage program for the mesh that runs it.

        Args:
            lowered: the step as the user wrote it: its mesh, the names and types of its arguments and results, the
                Python functions that it calls back, and those that it calls as tasks (`operations`).
            program: the same step as one function per mesh.
            compiler_options: XLA's, as the user gave them.
        """
        ...


def backend_of(mesh: MpmdMesh) -> Backend:
    """Who compiles steps for `mesh`, and runs them if its devices are here."""
    if mesh.backend is not None:
        return cast("Backend", mesh.backend)
    if not mesh.is_present:
        return PlanBackend(target_of(mesh.jax_mesh))
    return LocalBackend(mesh.platform)


@dataclass(frozen=True)
class LocalBackend:
    """JAX's own devices: those of this process, and in a job of several processes those of all."""

    platform: str

    def compile(self, lowered: Lowered, program: ProgramModule, compiler_options: Options | None) -> "LocalProgram":
        """See `Backend.compile`. In a job all processes call it."""
        return self.restore(lowered, program, load(program.module), compiler_options, {})

    def restore(
        self,
        lowered: Lowered,
        program: ProgramModule,
        loaded: Program,
        compiler_options: Options | None,
        compiled: Mapping[str, bytes],
    ) -> "LocalProgram":
        """As `compile`, of a program that is read, but functions that are compiled are loaded.

        loaded: the program as plain data; compiled: what `Executable.serialize` returned.
        """
        submeshes = lowered.mpmd_mesh.unstack[: loaded.meshes]
        hints.install()

        def text() -> str:  # the schedule first: where that differs, its name says more than the program's first line
            return f"{program.schedule}\n{program.as_text()}"

        return LocalProgram(
            lowered,
            loaded,
            submeshes,
            peers=job.peers(submeshes, text, lowered.described),
            names=lowered.in_names,
            mpmd_axis=lowered.mpmd_mesh.mpmd_axis_name,
            compiler_options=compiler_options,
            host_callbacks=lowered.host_callbacks,
            operations=lowered.operations,
            compiled=compiled,
        )


class LocalProgram(Executable):
    """An `Executable` for the user's own arguments and results: a program has the bits of keys, and no weak types."""

    def __init__(self, lowered: Lowered, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._keys_in = key_types(lowered.in_avals)
        self._keys_out = key_types(lowered.out_avals)
        self._weak_out = [i for i, aval in enumerate(lowered.out_avals) if getattr(aval, "weak_type", False)]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run one step. Raises what `Executable` raises."""
        return self._typed(super().__call__(key_bits(arguments, self._keys_in, self.names)))

    def trace(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Event]]:
        """Run one step task by task: `jaxpp.runtime.trace_step`."""
        results, events = trace_step(self, key_bits(arguments, self._keys_in, self.names))
        return self._typed(results), events

    def _typed(self, results: list[Any]) -> list[Any]:
        """The results of the program as the function returns them."""
        for i in self._weak_out:
            results[i] = weakly_typed(results[i])
        for i, dtype in self._keys_out.items():
            results[i] = jax.random.wrap_key_data(results[i], impl=key_implementation(dtype))
        return results


def key_types(avals: Sequence[Any]) -> dict[int, Any]:
    """Returns the dtypes of those values that are random keys, by their positions."""
    return {i: aval.dtype for i, aval in enumerate(avals) if is_key_type(aval.dtype)}


def key_bits(leaves: Sequence[Any], keys: Mapping[int, Any], names: Sequence[str]) -> Sequence[Any]:
    """Returns `leaves` with the bits of those that are keys; a handle of keys stands for their bits already.

    Raises TypeError for keys of another generator, whose bits may be of the same type, and for what are no keys.
    """
    if not keys:
        return leaves
    found = [*leaves]
    for i, dtype in keys.items():
        if (given := getattr(leaves[i], "dtype", None)) != dtype:
            what = type(leaves[i]).__name__ if given is None else given
            raise TypeError(f"argument `{names[i]}` is {what}; the program was compiled for random keys, {dtype}")
        if not isinstance(leaves[i], Handle):
            found[i] = jax.random.key_data(leaves[i])
    return found
