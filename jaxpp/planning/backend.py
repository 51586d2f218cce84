"""The backend of devices that are not here: it compiles, plans, and refuses to run."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

from jaxpp.lowering.lower import Lowered
from jaxpp.planning.compiling import Compiled, compile_all
from jaxpp.planning.make import make_plan
from jaxpp.planning.plan import Plan
from jaxpp.planning.target import PlanError, Target
from jaxpp.program import ProgramModule
from jaxpp.runtime import Program, load
from jaxpp.runtime.execution.compiling import Stats


class PlannedProgram:
    """A `jaxpp.backend.CompiledProgram` for devices that are not here.

    plan: what a step of it takes.
    """

    def __init__(self, program: Program, compiled: Mapping[str, Compiled], plan: Plan) -> None:
        self.program, self.plan, self._compiled = program, plan, compiled

    @cached_property
    def stats(self) -> Stats:
        """What the compiler says of each function."""
        return {name: each.stats for name, each in self._compiled.items()}

    def __call__(self, arguments: Sequence[Any], /) -> NoReturn:
        """Refuse to run. Raises PlanError."""
        raise cannot_run(self.plan.target)

    def trace(self, arguments: Sequence[Any], /) -> NoReturn:
        """Refuse to run. Raises PlanError."""
        raise cannot_run(self.plan.target)


class PlanBackend:
    """Compiles for a target. See `jaxpp.backend.Backend`."""

    def __init__(self, target: Target) -> None:
        self.target, self.platform = target, target.chip.platform

    def compile(
        self, lowered: Lowered, program: ProgramModule, compiler_options: Mapping[str, Any] | None
    ) -> PlannedProgram:
        """See `jaxpp.backend.Backend.compile`."""
        loaded = load(program.module)
        submeshes = lowered.mpmd_mesh.unstack[: loaded.meshes]
        compiled = compile_all(loaded, submeshes, self.target, compiler_options or {}, lowered.host_callbacks)
        plan = make_plan(loaded, compiled, submeshes, self.target, name=lowered.name, schedule=program.schedule)
        return PlannedProgram(loaded, compiled, plan)


def cannot_run(target: str) -> PlanError:
    """The error of a step that is called though its devices are not here."""
    return PlanError(
        f"the step is planned for {target}, devices that are not here: it can't run; "
        "`lower(...).compile().plan` is what it would take"
    )
