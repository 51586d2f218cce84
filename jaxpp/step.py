"""A step on its way: lowered, rewritten to a program of several meshes, compiled."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import jax
from jax.sharding import NamedSharding
from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import make_context, numeric_settings, own_copy
from jaxpp.backend import CompiledProgram, LocalProgram, backend_of
from jaxpp.compatibility.array import plain
from jaxpp.compatibility.times import current_times, record
from jaxpp.compile_within import compile_within
from jaxpp.ir.mesh_functions import location_of_tasks
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.structures import differences
from jaxpp.memory_limit import smaller
from jaxpp.planning.backend import PlannedProgram
from jaxpp.planning.plan import Plan
from jaxpp.planning.target import PlanError
from jaxpp.program import ProgramModule, ScheduleLike, rewrite, text_of
from jaxpp.runtime import Event, load, measured_costs, mesh_speeds
from jaxpp.runtime.execution.options import Options, named
from jaxpp.runtime.measuring.analysis import MemoryStats, cost_analysis, memory_analysis
from jaxpp.runtime.measuring.summary import summary, title
from jaxpp.runtime.processes import job
from jaxpp.saved import SavedStep, described
from jaxpp.schedules.given import AUTO
from jaxpp.step_shardings import StepShardings
from jaxpp.traced_call import check_outside
from jaxpp.validation.widen import widen

_LIMITS = ("memory_limit", "host_memory_limit")


class LoweredStep:
    """A lowered step: its module, its program, and the way to an executable."""

    def __init__(
        self,
        lowered: Lowered,
        schedule: ScheduleLike | None,
        compiler_options: Options | None,
        passes: Mapping[str, str],
        costs: schedules.Costs | None = None,
    ) -> None:
        self._lowered, self._schedule, self._compiler_options = lowered, schedule, compiler_options
        self._passes, self._costs = passes, costs
        self._program: ProgramModule | None = None
        self.made: Callable[[CompiledStep | None], CompiledStep | None] = lambda made: made
        """Keeps what is compiled for others who need the same, if it is given; returns what is kept."""

    def __repr__(self) -> str:
        arguments, results = len(self._lowered.in_avals), len(self._lowered.out_avals)
        mesh = self._lowered.mpmd_mesh
        return f"<LoweredStep of {self._lowered.name}: {arguments} arrays in, {results} out, {mesh}>"

    def as_text(self, *, debug_info: bool = False) -> str:
        """The lowered module as MLIR text: what `jaxpp-opt` reads."""
        return str(self._lowered.module.operation.get_asm(enable_debug_info=debug_info))

    def program(self) -> ProgramModule:
        """The program module: one function per mesh, verified.

        Raises:
            PassError: the marks, the loop or the schedule don't fit together.
        """
        if self._program is None:
            self._program = rewrite(self._lowered, self._schedule, self._passes, self._costs)
        return self._program

    @property
    def in_shardings(self) -> Any:
        """Where the step will want its arguments, as `CompiledStep.in_shardings`; nothing is compiled for it."""
        return StepShardings(self._lowered, load(self.program().module)).of_arguments()

    @property
    def out_shardings(self) -> Any:
        """Where the results will be, as `CompiledStep.out_shardings`."""
        return StepShardings(self._lowered, load(self.program().module)).of_results()

    @property
    def lowered(self) -> Lowered:
        """The step as it was lowered."""
        return self._lowered

    def at_float32(self) -> "LoweredStep | None":
        """The same step with float32 wherever it computes in bfloat16 or float16, without limits of memory.

        None where it does nowhere. Raises RunError where something in it can't.
        """
        module = own_copy(self._lowered.module)
        if not widen(module):
            return None
        passes = {name: value for name, value in self._passes.items() if name not in _LIMITS}
        lowered = replace(self._lowered, module=module)
        return LoweredStep(lowered, self._schedule, self._compiler_options, passes)

    def with_schedule(self, schedule: ScheduleLike) -> "LoweredStep":
        """The same step in another order, without tracing it again.

        `as_text()` stays the module as it was lowered; `jaxpp-opt` takes the other order by `--schedule`.

        Args:
            schedule: as for `treduce`, but "auto"; it takes the place of the one that the step was lowered with.

        Raises:
            PassError: the schedule can't be made for this loop and mesh.
            ValueError: it is "auto".
        """
        if schedule == AUTO:
            raise ValueError('with_schedule: "auto" tries several; lower the step with schedule="auto" for that')
        passes = {**self._passes, "schedule": text_of(schedule, self._lowered)}
        return LoweredStep(self._lowered, None, self._compiler_options, passes, self._costs)

    def compile(self) -> "CompiledStep":
        """Compile every distinct stage program for its submesh; what a call has compiled already is taken.

        With a `memory_limit` the temporaries of the compiled tasks count too: where they are too much, and stages may
        do something about it, what they do is chosen again with room for these, and `program()` is another one.

        Raises:
            PassError: as `program`.
            LimitError: a mesh needs more than its memory limit.
            ProcessError: processes of a job were given different options, or have other settings of JAX and XLA.
        """
        if made := self.made(None):
            self._program = made.program()
            return made
        made = self._compiled()
        self.made(made)
        return made

    def _compiled(self) -> "CompiledStep":
        self._agree()
        own = self._passes.get("memory_limit", "")

        def make(limits: str) -> tuple[ProgramModule, CompiledStep]:
            passes = {**self._passes, "memory_limit": limits}
            again = limits != own
            program = rewrite(self._lowered, self._schedule, passes, self._costs) if again else self.program()
            backend = backend_of(self._lowered.mpmd_mesh)
            executable = backend.compile(self._lowered, program, self._compiler_options)
            return program, CompiledStep(self._lowered, executable, program, self._compiler_options)

        self._program, made = compile_within(
            own,
            make,
            _memory,
            may_choose=not self._passes.get("recompute"),
            location=location_of_tasks(self.program().module, 0),
            hint=smaller(self._passes),
        )
        return made

    def _agree(self) -> None:
        """Refuse settings that differ between the processes of the mesh."""
        mesh = self._lowered.mpmd_mesh
        if mesh.is_present and mesh.backend is None:
            passes = {name: str(value) for name, value in self._passes.items() if value and name != "schedule"}
            settings = numeric_settings() | passes | named(self._compiler_options or {})
            job.agree_on(mesh.jax_mesh, settings, self._lowered.described)


class CompiledStep:
    """An executable step for arguments of one kind."""

    def __init__(
        self,
        lowered: Lowered,
        executable: CompiledProgram,
        program: ProgramModule,
        compiler_options: Options | None = None,
    ) -> None:
        self.executable = executable
        self._lowered = lowered
        self._rows_sent, self._rows_padded = program.rows_sent_bytes, program.rows_padded_bytes
        self._bytecode, self._compiler_options = program.as_bytecode(), compiler_options or {}
        self._kept_less, self._schedule = program.kept_less, program.schedule
        self._shardings = StepShardings(lowered, executable.program)

    def __repr__(self) -> str:
        return f"<CompiledStep of {title(self.executable.program, self._lowered.name)}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: meshes and compiled programs are of this process."""
        raise TypeError(
            "a compiled step can't be pickled, as its devices and programs are of this process: "
            "compiled.save(path) and jaxpp.load(path) do it"
        )

    @property
    def lowered(self) -> Lowered:
        """The step as it was lowered."""
        return self._lowered

    def program(self) -> ProgramModule:
        """The program module that it runs."""
        with make_context():
            return ProgramModule(ir.Module.parse(self._bytecode), self._kept_less, self._schedule)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the step for `jaxpp.load`: its program and what XLA made of it, without arguments.

        In a job all processes call it. Each writes a file of its own into the folder `path`, which may be on a disk of
        its own, and replaces the one that was there.

        Raises:
            ValueError: the step calls back into Python, or is of no backend of JAX's own: it can't be saved.
            OSError: it can't be written.
        """
        if not isinstance(self.executable, LocalProgram):
            found = type(self.executable).__name__
            raise ValueError(
                f"save: expected a step on devices of JAX that are here, found a {found}, which has no file"
            )
        if self._lowered.host_callbacks or self._lowered.operations:
            what = "operations of yours" if self._lowered.operations else "callbacks"
            raise ValueError(f"save: the step has {what}, and functions of Python can't be saved: leave them out")
        description = described(self._lowered, self._compiler_options)
        SavedStep(description, self._bytecode, self.executable.serialize()).write(path)

    def memory_analysis(self) -> tuple[MemoryStats | None, ...]:
        """The memory that a step takes on each device of each mesh; None of a mesh that only other processes run.

        What `jax.stages.Compiled.memory_analysis` tells of one program, here of all programs of a mesh in their order.
        """
        return memory_analysis(self.executable.program, self.executable.stats)

    def cost_analysis(self) -> tuple[dict[str, float] | None, ...]:
        """What XLA says that a step costs each device of each mesh; None of a mesh that only other processes run.

        As `jax.stages.Compiled.cost_analysis`: "flops", "bytes accessed"...; XLA counts a loop inside a task once.
        Empty where the backend has no such analysis.
        """
        return cost_analysis(self.executable.program, self.executable.stats)

    def summary(self) -> str:
        """What each mesh does and takes, as a table to be printed: stages, parameters, FLOPs, bytes sent, memory.

        Parameters are the floating-point arguments that the step returns updated, and that tasks of the microbatches
        read; of a step that returns none of its arguments they are not known.
        """
        return summary(
            self.executable.program,
            self.executable.stats,
            name=self._lowered.name,
            device=self._lowered.mpmd_mesh.device_kind,
            state=set(self._lowered.feeds.values()),
            rows_sent=self._rows_sent,
            rows_padded=self._rows_padded,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step with these arguments; static arguments are left out, as for `jax.stages.Compiled`."""
        return self.run(self._leaves(args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Event]]:
        """Run one step task by task; returns its results, and when each task and transfer ran, for how long."""
        results, events = self.executable.trace(self._leaves(args, kwargs))
        return jax.tree.unflatten(self._lowered.out_tree, results), events

    def stragglers(self, *steps: Sequence[Event], before: Sequence[Event] = ()) -> dict[int, float]:
        """The meshes that are slower than the others in traced steps, with their speeds: 0.5 of one half as fast.

        Args:
            steps: the events of each, from `trace`.
            before: those of an earlier step. A mesh that runs nothing that another one runs is compared with itself.

        How they are compared: `jaxpp.runtime.mesh_speeds`.
        """
        speeds = mesh_speeds(self.executable.program, *steps, before=before)
        return {mesh: speed for mesh, speed in enumerate(speeds) if speed < 1}

    def told_slow(self, mesh: int, speed: float) -> str:
        """What is said of a mesh that is slow."""
        devices = self._lowered.mpmd_mesh.unstack[mesh].devices.flat
        owners = sorted({device.process_index for device in devices})
        where = f" on process {', '.join(map(str, owners))}" if jax.process_count() > 1 else ""
        return f"mesh {mesh}{where} computes at {speed:.2f} of the speed of the others"

    @property
    def plan(self) -> Plan:
        """What a step takes on the devices of a `jaxpp.target`, which can't run it.

        Raises:
            PlanError: the devices are here: `trace` measures a step.
        """
        if not isinstance(self.executable, PlannedProgram):
            raise PlanError("the devices of this step are here: `trace` measures it; a plan is of a `jaxpp.target`")
        return self.executable.plan

    def costs(self, *steps: Sequence[Event], unit: str = "ms") -> schedules.Costs:
        """What the tasks and hops of traced steps cost, for `jaxpp.schedules.simulate`, `search` and `tune`.

        Of a step that can't run, without traced steps, those of its plan.

        Args:
            steps: the events of each, from `trace`.
            unit: of time: "s", "ms" or "us".

        How it is counted: `jaxpp.runtime.measured_costs`.

        Raises:
            ValueError: no task of a stage is among the events.
            ScheduleError: the unit is none.
        """
        if isinstance(self.executable, PlannedProgram) and not steps:
            return self.plan.costs(unit)
        return measured_costs(self.executable.program, *steps, unit=unit)

    def _leaves(self, args: Any, kwargs: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != self._lowered.in_tree:
            raise TypeError(f"{self.differences(args, kwargs)[0]}: the step was compiled for that structure")
        return plain(leaves)

    def differences(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """How the structure of each such argument differs from what it takes, where it does."""
        return differences(self._lowered.in_tree, self._lowered.in_names, args, kwargs)

    def run(self, leaves: Sequence[Any]) -> Any:
        """Run one step with the flat list of arguments."""
        check_outside()
        times = current_times()
        if times is None:
            return jax.tree.unflatten(self._lowered.out_tree, self.executable(leaves))
        results, events = self.executable.trace(leaves)
        record(times, events)
        return jax.tree.unflatten(self._lowered.out_tree, results)

    @property
    def in_shardings(self) -> Any:
        """Where the step wants its arguments, as `(args, kwargs)` of MpmdShardings without the static ones.

        An argument that no mesh uses has no meshes. Arguments elsewhere are moved when the step is called.
        """
        return self._shardings.of_arguments()

    def places(self) -> dict[int, NamedSharding]:
        """The sharding in which each argument enters, by its number; without those that no mesh uses."""
        return self._shardings.places()

    @property
    def out_shardings(self) -> Any:
        """Where the results are, as a tree of MpmdShardings."""
        return self._shardings.of_results()


def _memory(made: tuple[ProgramModule, CompiledStep]) -> tuple[Sequence[int], Sequence[int | None]]:
    """What a compiled program needs of each mesh, without temporaries and with them: alike in all its processes."""
    program, step = made
    if isinstance(step.executable, PlannedProgram):  # it knows of padding and code, too
        return program.peak_bytes, step.plan.peak_bytes
    own = [each and each.peak_memory_in_bytes for each in step.memory_analysis()]
    exchange: Callable[[str], list[str]] | None = getattr(step.executable, "exchange", None)
    every = [own] if exchange is None else [json.loads(each) for each in exchange(json.dumps(own))]
    return program.peak_bytes, [max(filter(None, each), default=None) for each in zip(*every, strict=True)]
