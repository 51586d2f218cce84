"""Rewrites a lowered step to its program, with all passes."""

import contextlib
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import own_copy
from jaxpp.dump import dump_of
from jaxpp.hlo_passes import Pass, PassError, run_passes
from jaxpp.hlo_passes.base import Observer, run_unwritten
from jaxpp.hlo_passes.loop.find_microbatch_loop import find_loop, loop_schedule, number_of_microbatches
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.unroll_microbatches import UnrollMicrobatches
from jaxpp.hlo_passes.stages.add_tasks import HOST
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import bytecode, functions, main_of
from jaxpp.ir.loop import schedule_text
from jaxpp.ir.mesh_lines import MeshLines
from jaxpp.ir.read_lines import read_lines
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.ir.write_lines import write_lines
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.memory.limit import NOTHING, fit
from jaxpp.memory.task_times import Rates
from jaxpp.runtime import Program, load
from jaxpp.runtime.execution.progress import Progress
from jaxpp.runtime.processes.choice import transport_between
from jaxpp.schedules.given import as_text
from jaxpp.sharded_microbatches import ShardedMicrobatches
from jaxpp.targets.target import target_of
from jaxpp.unused_axes import warn_of_unused_axes

ScheduleLike = schedules.BaseSchedule | schedules.Schedule | os.PathLike[str] | str
"""The schedules that `jaxpp.schedules.resolve` takes."""


class ProgramModule:
    """A verified program module (docs/ir.md, section 6).

    Attributes:
        kept_less: the means that save memory, given or chosen by `memory_limit`; "" if not used. "recompute" is `keep`
            of `split-forward`, and "offload" is `offload` of `add-tasks`. "evict" has the stages whose residuals are
            evicted. "order" has the number of activations that each mesh keeps, if the order was changed.
        schedule: the schedule of its tasks, as a grid. A `train_loop` without a delay has the schedule of one step, a
            module that was read from text an empty one.
        options: the options of the passes that made it, without the schedule; empty for a module that was read.
    """

    def __init__(
        self,
        module: ir.Module,
        kept_less: Mapping[str, str] | None = None,
        schedule: str = "",
        lines: MeshLines | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes a module, and the lines of its meshes if the module lacks the mesh functions."""
        self._module, self._lines, self._lock = module, lines, threading.Lock()
        self.kept_less, self.schedule, self.options = kept_less or {}, schedule, options or {}

    def __repr__(self) -> str:
        called = sum(at.MESH not in op.attributes for op in functions(self._module).values())
        return f"<ProgramModule of {len(self.lines.lines)} meshes: {called} functions>"

    @property
    def module(self) -> ir.Module:
        """The module. Whoever takes it may change it."""
        module, self._lines = self._written(), None
        return module

    def _written(self) -> ir.Module:
        """Returns the module with its mesh functions."""
        with self._lock:
            if self._lines is not None and not self._lines.are_written:
                write_lines(self._module, self._lines)
        return self._module

    def copy(self) -> "ProgramModule":
        """Returns a program with a module of its own."""
        return ProgramModule(own_copy(self._written()), self.kept_less, self.schedule, options=self.options)

    @property
    def lines(self) -> MeshLines:
        """The lines of the meshes. They are read each time once `module` was given away, as its owner may change it."""
        with self._module.context:
            return self._lines or read_lines(self._module)

    def as_text(self) -> str:
        """Returns the program as MLIR text."""
        return str(self._written())

    def as_bytecode(self) -> bytes:
        """Returns the program as MLIR bytecode."""
        return bytecode(self._written().operation)

    @cached_property
    def loaded(self) -> Program:
        """The program as the runtime takes it."""
        found = load(self._module, self.lines)
        if self._lines is not None:
            self._lines = MeshLines(self._lines.lines)  # without the proof, which is large
        return found

    @property
    def once_per_step_bytes(self) -> dict[str, int]:
        """The costs of `gather_weights="step"` and `scatter_gradients="step"`, whether chosen or not.

        They are bytes per device, summed over all stages. The dict is empty if no weight is sharded like the batch.
        """
        noted = at.noted_bytes(self._module.operation)
        return {name: noted[name] for name in ("gather_weights", "scatter_gradients") if name in noted}

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most bytes that are alive at once on each device of each mesh, arguments included.

        The temporaries of the tasks and values in the memory of the host do not count.
        """
        return tuple(here for here, _ in self.lines.peaks)

    @property
    def peak_host_bytes(self) -> tuple[int, ...]:
        """The most bytes that are alive at once in the memory of the host, for each device of each mesh."""
        return tuple(host for _, host in self.lines.peaks)

    @property
    def rows_sent_bytes(self) -> int:
        """The bytes of stacked layers that every step sends to the meshes of their stages; their gradients return.

        0 if each mesh holds the layers of its own stages. If a schedule gives each mesh several separate stages, the
        order of `jaxpp.models.rows_of_layers` achieves this.
        """
        return at.noted_bytes(self._module.operation).get("rows_sent", 0)

    @property
    def rows_padded_bytes(self) -> int:
        """The bytes of padding in stacked layers, on all meshes together.

        0 if all meshes have equally many layers. See `jaxpp.models.rows_of_layers` with `cuts`.
        """
        return at.noted_bytes(self._module.operation).get("rows_padded", 0)


def rewrite(
    lowered: Lowered, schedule: ScheduleLike | None, options: Mapping[str, Any], costs: schedules.Costs | None = None
) -> ProgramModule:
    """Rewrites a lowered step to its program, and warns of idle meshes, unused axes and sharded microbatches.

    Args:
        lowered: the lowered step, which does not change.
        schedule: the schedule if the loop names none.
        options: the options of the passes, by keyword. A "schedule" overrides the schedule of the loop. The default
            "transport" is the one between the processes of the mesh; it determines the order of sends and receives,
            and so the memory. A "share_tasks" of "auto" depends on the platform of the mesh.
        costs: the costs of the tasks, for the choices of `memory_limit`. Without them, a `jaxpp.target` is estimated
            from the facts of its chip.

    Raises:
        PassError: the marks, the loop or the schedule don't fit together.
        ScheduleError: the costs are for another schedule.
        ValueError: an argument that the user wants sharded over the mpmd axis is not a stack of layers.
        ProgramError: the program offloads values, and a device can't keep them in the memory of its host.
        ProcessError: the transport that the user chose does not work.
    """
    mesh, dump = lowered.mpmd_mesh, dump_of(lowered.module)
    if dump:
        dump.lowered(lowered.module)
    module = own_copy(lowered.module)
    options = {"transport": transport_of(mesh), **options}
    if options.get("share_tasks") == "auto":
        options["share_tasks"] = shared_from(mesh.platform)
    text = options.pop("schedule", "") or _schedule_text(module, schedule, mesh.mpmd_dim)
    rates = Rates(costs=costs)
    if not mesh.is_present:
        rates = rates.on(target_of(mesh.jax_mesh).chip, lowered.module)
    elif mesh.runs_here:
        rates = replace(rates, has_host=_without_host_memory(mesh) is None)
    batches = ShardedMicrobatches(lowered.in_names)
    observers = [batches, *([dump] if dump else [])]
    program = rewritten(module, text, mesh.mpmd_dim, options, observers, rates)
    meshes = at.integer(module.operation, at.MESHES) or 0
    if meshes > mesh.mpmd_dim:
        raise PassError(
            f"the schedule runs on {meshes} meshes, the mesh axis '{mesh.mpmd_axis_name}' has {mesh.mpmd_dim}",
            location=program.lines.lines[0].location_of_tasks,
            hint="give a larger mesh, or a schedule that places several stages on one mesh",
        )
    _warn_of_idle(meshes, mesh)
    warn_of_unused_axes(lowered.module, mesh, batches.advice)
    _check_stacks(lowered.stacks, program)
    if mesh.runs_here:
        _check_host_memory(program, mesh)
    if dump:
        dump.program(program.as_text())
    return program


def transport_of(mesh: MpmdMesh) -> str:
    """Returns the transport that will carry values between the processes of a mesh; "pull" where JAX runs nothing."""
    return transport_between(mesh.jax_mesh.devices.flat) if mesh.runs_here else "pull"


def shared_from(platform: str) -> str:
    """Returns the `when` of `share-functions` for a platform, so that one more call costs about 1 % of a step or less.

    It is the FLOPs of a task that takes about 20 times as long as its launch: 0.5 ms on a CPU core (`auto`), 0.3 ms on
    a GPU.
    """
    return "auto" if platform == "cpu" else "1e11"


def _without_host_memory(mesh: MpmdMesh) -> Any:
    """Returns a device of this process that can't keep values in the memory of its host; None if all can."""
    here = mesh.jax_mesh.local_devices
    return next((each for each in here if HOST not in {memory.kind for memory in each.addressable_memories()}), None)


def _check_host_memory(program: ProgramModule, mesh: MpmdMesh) -> None:
    """Raises ProgramError if the program keeps values in host memory, and a device of this process can't.

    The error names the user's line.
    """
    number = next((number for number, most in enumerate(program.peak_host_bytes) if most), None)
    device = None if number is None else _without_host_memory(mesh)
    if number is not None and device is not None:
        kinds = ", ".join(sorted({each.kind for each in device.addressable_memories()}))
        raise ProgramError(
            f"the program keeps values of mesh {number} in {HOST!r}; {device} has only {kinds}",
            location=program.lines.lines[number].location_of_tasks,
            hint="take a schedule without offloads, and shardings without that memory_kind",
        )


def rewritten(
    module: ir.Module,
    schedule: str,
    meshes: int,
    options: Mapping[str, Any],
    observers: Sequence[Observer] = (),
    rates: Rates | None = None,
) -> ProgramModule:
    """Rewrites a lowered module in place, and returns it as a program module.

    Args:
        module: the module that lowering made.
        schedule: the text of the schedule, or "" if the loop names one.
        meshes: the number of meshes.
        options: the options of the passes, by keyword.
        observers: the observers of the passes.
        rates: the times of transferred bytes, for the choices of `memory_limit`.

    Raises:
        PassError: the marks, the loop or the schedule don't fit together.
    """
    kept_less = {**NOTHING, "recompute": options.get("recompute", "")}
    loop = TrainLoopAttr.of(module)
    is_delayed = loop is not None and loop.delay > 0  # its schedule covers all steps, and can't be changed
    if options.get("memory_limit") and not options.get("recompute") and not is_delayed:
        fitted = fit(module, schedule, meshes, options, rates)
        schedule, options, kept_less = fitted.schedule, fitted.options, fitted.kept_less
    passes, tasks = mpmd(schedule, meshes, **options), TasksSeen()
    with contextlib.closing(Progress("rewriting the module", len(passes), bar=False)) as progress:
        lines = run_unwritten(module, passes, [_PassProgress(progress), tasks, *observers])
    return ProgramModule(module, kept_less, tasks.schedule, lines, options)


def _warn_of_idle(meshes: int, mesh: MpmdMesh) -> None:
    if 0 < meshes < mesh.mpmd_dim:
        idle = mesh.mpmd_dim - meshes
        warnings.warn(
            f"the schedule runs on {meshes} of the {mesh.mpmd_dim} meshes of axis '{mesh.mpmd_axis_name}': "
            f"{idle} {'stays' if idle == 1 else 'stay'} idle",
            stacklevel=100,  # beyond the stack, because no line of the user is known here
        )


def text_of(schedule: ScheduleLike, lowered: Lowered) -> str:
    """Returns the text of a schedule for the loop of a lowered step, even if the loop names another schedule.

    A name of the library stays a name, which the passes resolve.

    Raises:
        PassError: the step has no microbatch loop, or the schedule does not fit it.
    """
    module = own_copy(lowered.module)
    run_passes(module, (InlineCalls(),))
    return _text_for(find_loop(main_of(module)), schedule, None)


def _schedule_text(module: ir.Module, schedule: ScheduleLike | None, meshes: int) -> str:
    """Returns the text of `schedule` if the loop names none, otherwise ""; inlines all calls to find the loop."""
    if schedule is None:
        return ""
    run_passes(module, (InlineCalls(),))
    loop = find_loop(main_of(module))
    return "" if loop_schedule(loop) else _text_for(loop, schedule, meshes)


def _text_for(loop: ir.Operation, schedule: ScheduleLike, meshes: int | None) -> str:
    try:
        return as_text(schedule, meshes=meshes, microbatches=number_of_microbatches(loop))
    except schedules.ScheduleError as error:
        raise PassError(str(error), location=loop.location) from error


class TasksSeen(Observer):
    """An observer of the passes that records the schedule before the loop is unrolled, with tasks that passes added."""

    reads_program = False
    schedule = ""

    def before(self, step: Pass, module: ir.Module) -> None:
        """Reads the schedule before `unroll-microbatches`."""
        if isinstance(step, UnrollMicrobatches):
            self.schedule = schedule_text(module)


class _PassProgress(Observer):
    """An observer of the passes that reports their progress."""

    reads_program = False

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done = progress, 0

    def before(self, step: Pass, module: ir.Module) -> None:
        self._progress.report(self._done, [step.name])

    def after(self, step: Pass, module: ir.Module) -> None:
        self._done += 1
        self._progress.report(self._done, ())


def _check_stacks(wanted: Mapping[int, str], program: ProgramModule) -> None:
    """Raises ValueError for an argument that the user wants sharded over the mpmd axis, if it is no stack."""
    cut = program.lines.stacked_arguments if wanted else ()
    for number, message in wanted.items():
        if number not in cut:
            raise ValueError(message)
