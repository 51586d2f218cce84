"""The forms of a step, as in `jax.stages`: lowered, rewritten to a program for several meshes, compiled."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import jax
from jax.sharding import NamedSharding

from jaxpp import schedules
from jaxpp._compat import numeric_settings, own_copy
from jaxpp._system import write_file
from jaxpp.backend import CompiledProgram, LocalProgram, backend_of
from jaxpp.compatibility.array import plain
from jaxpp.compatibility.times import current_times, record
from jaxpp.gradients import gradients_table
from jaxpp.hlo_passes.program.verify_program import limits_of
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.structures import differences
from jaxpp.memory.compile_within import compile_within
from jaxpp.memory.limit import LIMITS, smaller
from jaxpp.memory.room import memory_of_devices
from jaxpp.planning.backend import PlannedProgram
from jaxpp.planning.plan import Plan
from jaxpp.program import ProgramModule, ScheduleLike, rewrite, text_of
from jaxpp.reporting import ShownProgram, page_of
from jaxpp.runtime import Event, measured_costs, mesh_speeds
from jaxpp.runtime.execution.options import Options, named
from jaxpp.runtime.measuring.analysis import MemoryStats, cost_analysis, memory_analysis
from jaxpp.runtime.measuring.summary import summary, title
from jaxpp.runtime.processes import job
from jaxpp.saved.saved_step import SavedStep, described
from jaxpp.schedules.given import AUTO
from jaxpp.schedules.plot import in_a_frame
from jaxpp.step_shardings import StepShardings
from jaxpp.targets.target import PlanError
from jaxpp.traced_call import check_outside
from jaxpp.validation.widen import widen
from jaxpp.zeros import array_of


class LoweredStep:
    """A lowered step, which can be rewritten to a program and compiled."""

    def __init__(
        self,
        lowered: Lowered,
        schedule: ScheduleLike | None,
        compiler_options: Options | None,
        passes: Mapping[str, Any],
        costs: schedules.Costs | None = None,
    ) -> None:
        self._lowered, self._schedule, self._compiler_options = lowered, schedule, compiler_options
        self._passes, self._costs = passes, costs
        self._program: ProgramModule | None = None
        self.made: Callable[[CompiledStep | None], CompiledStep | None] = lambda made: made
        """Caches the compiled step for calls with the same key, if it is not None; returns the cached one."""

    def __repr__(self) -> str:
        arguments, results = len(self._lowered.in_avals), len(self._lowered.out_avals)
        mesh = self._lowered.mpmd_mesh
        return f"<LoweredStep of {self._lowered.name}: {arguments} arrays in, {results} out, {mesh}>"

    def as_text(self, *, debug_info: bool = False) -> str:
        """Returns the lowered module as MLIR text, which `jaxpp-opt` reads."""
        return str(self._lowered.module.operation.get_asm(enable_debug_info=debug_info))

    def program(self) -> ProgramModule:
        """Returns the verified program module, with one function per mesh.

        Raises:
            PassError: the marks, the loop or the schedule don't fit together.
        """
        if self._program is None:
            self._program = rewrite(self._lowered, self._schedule, self._passes, self._costs)
        return self._program

    @property
    def in_shardings(self) -> Any:
        """The shardings of the arguments, as `CompiledStep.in_shardings`, without compiling."""
        return StepShardings(self._lowered, self.program().loaded).of_arguments()

    @property
    def out_shardings(self) -> Any:
        """The shardings of the results, as `CompiledStep.out_shardings`, without compiling."""
        return StepShardings(self._lowered, self.program().loaded).of_results()

    @property
    def lowered(self) -> Lowered:
        """The result of lowering the step."""
        return self._lowered

    def at_float32(self) -> "LoweredStep | None":
        """Returns the step with float32 instead of bfloat16 and float16, and without memory limits.

        None if the step computes nowhere in bfloat16 or float16.

        Raises:
            RunError: an operation can't be changed to float32.
        """
        module = own_copy(self._lowered.module)
        if not widen(module):
            return None
        passes = {name: value for name, value in self._passes.items() if name not in LIMITS}
        lowered = replace(self._lowered, module=module)
        return type(self)(lowered, self._schedule, self._compiler_options, passes)

    def with_schedule(self, schedule: ScheduleLike) -> "LoweredStep":
        """Returns the step with another schedule, without tracing it again.

        `as_text()` does not change: pass the schedule to `jaxpp-opt` as `--schedule`.

        Args:
            schedule: as for `treduce`, except "auto"; it replaces the schedule of the lowered step.

        Raises:
            PassError: the step has no microbatch loop, or the schedule does not fit it.
            ValueError: the schedule is "auto".
        """
        if schedule == AUTO:
            raise ValueError('with_schedule: "auto" tries several; lower the step with schedule="auto" for that')
        passes = {**self._passes, "schedule": text_of(schedule, self._lowered)}
        return LoweredStep(self._lowered, None, self._compiler_options, passes, self._costs)

    def compile(self) -> "CompiledStep":
        """Compiles every distinct function for its submesh, unless an earlier call of the step has compiled it.

        With a `memory_limit` the temporaries of the compiled tasks count too. If they take too much, the recomputes and
        other means of `memory_limit` are chosen again with room for them. `program()` then returns the new program.

        Raises:
            PassError: as for `program`.
            LimitError: a mesh needs more than its memory limit.
            ProcessError: the processes of a job have different options, or different settings of JAX and XLA.
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
            location=self.program().lines.lines[0].location_of_tasks,
            hint=smaller(self._passes),
        )
        return made

    def _agree(self) -> None:
        """Checks that all processes of the mesh have the same settings; raises ProcessError otherwise."""
        mesh = self._lowered.mpmd_mesh
        if mesh.runs_here:
            passes = {name: str(value) for name, value in self._passes.items() if value and name != "schedule"}
            settings = numeric_settings() | passes | named(self._compiler_options or {})
            job.agree_on(mesh.jax_mesh, settings, self._lowered.described)


class CompiledStep:
    """A compiled step, for arguments of fixed structure and types."""

    def __init__(
        self,
        lowered: Lowered,
        executable: CompiledProgram,
        program: ProgramModule,
        compiler_options: Options | None = None,
    ) -> None:
        self.executable = executable
        self._lowered = lowered
        self._program, self._compiler_options = program, compiler_options or {}
        self._shardings = StepShardings(lowered, executable.program)

    def __repr__(self) -> str:
        return f"<CompiledStep of {title(self.executable.program, self._lowered.name)}>"

    def __reduce__(self) -> NoReturn:
        """Raises TypeError: meshes and compiled programs belong to this process, and can't be pickled."""
        raise TypeError(
            "a compiled step can't be pickled, as its devices and programs are of this process: "
            "compiled.save(path) and jaxpp.load(path) do it"
        )

    @property
    def lowered(self) -> Lowered:
        """The result of lowering the step."""
        return self._lowered

    def program(self) -> ProgramModule:
        """Returns the program module of the step, with a module of its own."""
        return self._program.copy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the program and the machine code of the step for `jaxpp.load`, without arguments.

        In a job all processes call this. Each one writes its own file into the folder `path`, and replaces an older
        file. The folder need not be shared between processes.

        Raises:
            ValueError: the step calls Python functions, or does not run on local devices of JAX.
            OSError: the file can't be written.
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
        SavedStep(description, self._program.as_bytecode(), self.executable.serialize()).write(path)

    def memory_analysis(self) -> tuple[MemoryStats | None, ...]:
        """Returns the memory that a step takes on each device of each mesh.

        As `jax.stages.Compiled.memory_analysis`, for all programs of a mesh in their order. The entry is None for a
        mesh that only other processes run.
        """
        return memory_analysis(self.executable.program, self.executable.stats)

    def cost_analysis(self) -> tuple[dict[str, float] | None, ...]:
        """Returns XLA's cost analysis of a step, for each device of each mesh.

        As `jax.stages.Compiled.cost_analysis`, with "flops", "bytes accessed" and others. XLA counts a loop inside a
        task once. The entry is None for a mesh that only other processes run, and empty if the backend has no analysis.
        """
        return cost_analysis(self.executable.program, self.executable.stats)

    def summary(self) -> str:
        """Returns a table to print, with the stages, parameters, FLOPs, sent bytes and memory of each mesh.

        Parameters are the floating-point arguments that the step returns updated, and that tasks of the microbatches
        read. They are unknown for a step that returns none of its arguments.
        """
        return summary(
            self.executable.program,
            self.executable.stats,
            name=self._lowered.name,
            device=self._lowered.mpmd_mesh.device_kind,
            state=set(self._lowered.feeds.values()),
            rows_sent=self._program.rows_sent_bytes,
            rows_padded=self._program.rows_padded_bytes,
        )

    def gradients(self) -> str:
        """Returns a table to print, with a row for each parameter: over what its gradient is summed, by which factor.

        The table is read from the program that runs. Its rows are the parameters, as in `summary`, and the other
        results of the step that are sums over the microbatches. What is no such sum is `unknown`, as a maximum is.
        """
        program = self._program.copy().module
        with program.context:
            return gradients_table(program, self.executable.program, self._lowered)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one step. Static arguments are left out, as for `jax.stages.Compiled`."""
        return self.run(self._leaves(args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Event]]:
        """Runs one step task by task, and returns its results and an event for each task and transfer.

        If this compiled step has not run yet, it first runs a step that is not timed, because the first run of a
        function takes many times as long. That step donates copies of the donated arguments, so for its time these take
        twice the memory. It calls no functions of the user's, but `jax.debug.print` and other callbacks.
        """
        return self.traced(self._leaves(args, kwargs))

    def report(
        self, path: str | os.PathLike[str], *steps: Sequence[Event], costs: schedules.Costs | None = None
    ) -> None:
        """Writes a page of one file that shows a step: an HTML page that needs no network.

        It has the measured step above the predicted one, with the critical path, the cause of each bubble, the memory
        beside its limit, the balance of the stages, compile times, and the MLIR of each task.

        Without traced steps it traces one, on zeros. In a job of several processes all call it then. For a step on a
        `jaxpp.target` it shows the planned step.

        Args:
            path: the file.
            steps: the events of each step, from `trace`. The last one is shown; the predicted step has the median
                times of all.
            costs: the costs of the predicted step, such as those of a plan, instead of the measured ones.

        Raises:
            OSError: the file can't be written.
            ScheduleError: the costs are for other stages.
        """
        planned = self.executable if isinstance(self.executable, PlannedProgram) else None
        if not steps:
            zeros = [array_of(aval) for aval in self._lowered.in_avals]
            steps = (planned.events if planned else self.executable.trace(zeros)[1],)
        costs = costs or measured_costs(self.executable.program, *steps)
        write_file(os.fspath(path), page_of(self._shown(), steps[-1], costs))

    def _repr_html_(self) -> str:
        """Returns the schedule of the step for a notebook, as it runs if all tasks take equally long."""
        page = page_of(self._shown(), (), schedules.Costs())
        return in_a_frame(page)

    def _shown(self) -> ShownProgram:
        program, planned = self._program, isinstance(self.executable, PlannedProgram)
        meshes = self.executable.program.meshes
        given = program.options.get("memory_limit", "")
        room = self.plan.facts.memory_bytes if planned else memory_of_devices(self._lowered.mpmd_mesh)
        limits = limits_of(given, meshes) if given else [room] * meshes
        return ShownProgram(
            title(self.executable.program, self._lowered.name),
            self.executable.program,
            self.executable.stats,
            program.schedule,
            [int(each) for each in program.options.get("cuts", "").split(",") if each],
            limits,
            getattr(self.executable, "compile_seconds", {}),
            planned,
        )

    def stragglers(self, *steps: Sequence[Event], before: Sequence[Event] = ()) -> dict[int, float]:
        """Returns the speeds of the meshes that are slower than the others in traced steps; 0.5 is half as fast.

        `jaxpp.runtime.mesh_speeds` explains the comparison.

        Args:
            steps: the events of each step, from `trace`.
            before: the events of an earlier step. A mesh that shares no function with another mesh is compared with
                itself in that step.
        """
        speeds = mesh_speeds(self.executable.program, *steps, before=before)
        return {mesh: speed for mesh, speed in enumerate(speeds) if speed < 1}

    def told_slow(self, mesh: int, speed: float) -> str:
        """Returns the message about a slow mesh, with the processes that own its devices."""
        devices = self._lowered.mpmd_mesh.unstack[mesh].devices.flat
        owners = sorted({device.process_index for device in devices})
        where = f" on process {', '.join(map(str, owners))}" if jax.process_count() > 1 else ""
        return f"mesh {mesh}{where} computes at {speed:.2f} of the speed of the others"

    @property
    def plan(self) -> Plan:
        """The predicted time and memory of a step on a `jaxpp.target`.

        Raises:
            PlanError: the devices are here, so that `trace` can measure a step.
        """
        if not isinstance(self.executable, PlannedProgram):
            raise PlanError("the devices of this step are here: `trace` measures it; a plan is of a `jaxpp.target`")
        return self.executable.plan

    def costs(self, *steps: Sequence[Event], unit: str = "ms") -> schedules.Costs:
        """Returns the costs of tasks and transfers, for `jaxpp.schedules.simulate`, `search` and `tune`.

        They are measured in traced steps, as `jaxpp.runtime.measured_costs` explains. For a step on a `jaxpp.target`,
        called without traced steps, they are the costs of its plan.

        Args:
            steps: the events of each step, from `trace`.
            unit: the unit of time: "s", "ms" or "us".

        Raises:
            ValueError: a stage has no task among the events.
            ScheduleError: the unit is unknown.
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
        """Returns a message for each argument whose structure differs from the one that the step takes."""
        return differences(self._lowered.in_tree, self._lowered.in_names, args, kwargs)

    def run(self, leaves: Sequence[Any]) -> Any:
        """Runs one step with the flat list of arguments."""
        check_outside()
        times = current_times()
        if times is None:
            return jax.tree.unflatten(self._lowered.out_tree, self.executable(leaves))
        results, events = self.traced(leaves)
        record(times, events)
        return results

    def traced(self, leaves: Sequence[Any]) -> tuple[Any, list[Event]]:
        """Runs one step as `trace`, with the flat list of arguments."""
        results, events = self.executable.trace(leaves)
        return jax.tree.unflatten(self._lowered.out_tree, results), events

    @property
    def in_shardings(self) -> Any:
        """The shardings of the arguments: `(args, kwargs)` with an MpmdSharding per leaf, without static arguments.

        An argument that no mesh uses has no meshes. A call moves arguments that have other shardings.
        """
        return self._shardings.of_arguments()

    def places(self) -> dict[int, NamedSharding]:
        """Returns the sharding of each argument, by its index, without the arguments that no mesh uses."""
        return self._shardings.places()

    @property
    def out_shardings(self) -> Any:
        """The shardings of the results, as a tree of MpmdShardings."""
        return self._shardings.of_results()


def _memory(made: tuple[ProgramModule, CompiledStep]) -> tuple[Sequence[int], Sequence[int | None]]:
    """Returns the peak bytes of a compiled program on each mesh, without temporaries and with them.

    The result is the same in all processes of the program. The second number is None if no process knows it.
    """
    program, step = made
    if isinstance(step.executable, PlannedProgram):  # its peak includes padding and code
        return program.peak_bytes, step.plan.peak_bytes
    own = [each and each.peak_memory_in_bytes for each in step.memory_analysis()]
    exchange: Callable[[str], list[str]] | None = getattr(step.executable, "exchange", None)
    every = [own] if exchange is None else [json.loads(each) for each in exchange(json.dumps(own))]
    return program.peak_bytes, [max(filter(None, each), default=None) for each in zip(*every, strict=True)]
