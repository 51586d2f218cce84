"""The backend for devices that are not here: it compiles and plans, but does not run."""

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn

from jaxpp.lowering.lower import Lowered
from jaxpp.planning.compiling import Compiled, compile_all
from jaxpp.planning.make import make_plan
from jaxpp.planning.plan import Plan
from jaxpp.program import ProgramModule
from jaxpp.runtime import Event, Program
from jaxpp.runtime.execution.compiling import Stats
from jaxpp.runtime.execution.options import Options
from jaxpp.runtime.measuring.analysis import calls
from jaxpp.targets.target import PlanError, Target


class PlannedProgram:
    """A `jaxpp.backend.CompiledProgram` for devices that are not here.

    plan: the predicted time and memory of a step.
    events: the predicted events of a step.
    compile_seconds: the seconds in which each function was compiled, also if it is from the cache.
    """

    def __init__(
        self,
        program: Program,
        compiled: Mapping[str, Compiled],
        plan: Plan,
        events: Sequence[Event] = (),
    ) -> None:
        self.program, self.plan, self.events, self._compiled = program, plan, events, compiled
        self.compile_seconds = {name: each.compile_seconds for name, each in compiled.items()}

    @cached_property
    def stats(self) -> Stats:
        """The compiler's statistics of each function, for each mesh."""
        meshes = range(self.program.meshes)
        return {(name, mesh): self._compiled[name].stats for mesh in meshes for name in calls(self.program, mesh)}

    def __call__(self, arguments: Sequence[Any], /) -> NoReturn:
        """Raises PlanError: the devices are not here."""
        raise cannot_run(self.plan.target)

    def trace(self, arguments: Sequence[Any], /) -> NoReturn:
        """Raises PlanError: the devices are not here."""
        raise cannot_run(self.plan.target)


class PlanBackend:
    """The `jaxpp.backend.Backend` of a target."""

    def __init__(self, target: Target) -> None:
        self.target, self.platform = target, target.platform

    def compile(self, lowered: Lowered, program: ProgramModule, compiler_options: Options | None) -> PlannedProgram:
        """See `jaxpp.backend.Backend.compile`."""
        meshes = [list(mesh.devices.flat) for mesh in lowered.mpmd_mesh.unstack]
        options = compiler_options or {}
        return plan_program(program, self.target, lowered.name, meshes, options, lowered.host_callbacks)


def plan_program(
    program: ProgramModule,
    target: Target,
    name: str,
    meshes: Sequence[Sequence[Any]] = (),
    compiler_options: Options = MappingProxyType({}),
    host_callbacks: Sequence[Any] = (),
) -> PlannedProgram:
    """Compiles a program for a target, and plans it.

    Args:
        program: the program, as the passes make it.
        target: the target.
        name: the name of the step.
        meshes: the devices of each mesh; the last meshes may be idle. If empty, the meshes get the devices of the
            target in their order.
        compiler_options: the compiler options of XLA.
        host_callbacks: the Python functions that the program calls back.

    Raises:
        PlanError: the target has too few devices.
    """
    loaded = program.loaded
    meshes = meshes[: loaded.meshes] or _in_order(loaded, target)
    compiled = compile_all(loaded, meshes, target, compiler_options, host_callbacks)
    plan, events = make_plan(loaded, compiled, meshes, target, name=name, schedule=program.schedule)
    return PlannedProgram(loaded, compiled, plan, events)


def _in_order(program: Program, target: Target) -> list[Sequence[Any]]:
    sizes = program.partitions
    if sum(sizes) > len(target.devices):
        raise PlanError(f"{target.name} has {len(target.devices)} devices, the {len(sizes)} meshes take {sum(sizes)}")
    ends = list(itertools.accumulate(sizes))
    return [target.devices[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def cannot_run(target: str) -> PlanError:
    """Returns the error for the call of a step whose devices are not here."""
    return PlanError(
        f"the step is planned for {target}, devices that are not here: it can't run; "
        "`lower(...).compile().plan` is what it would take"
    )
