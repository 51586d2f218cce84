"""From a lowered step to its program: the chain of passes, as a step runs it."""

import contextlib
import io
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import own_copy
from jaxpp.dump import dump_of
from jaxpp.hlo_passes import Pass, PassError, run_passes
from jaxpp.hlo_passes.base import Observer, Watch
from jaxpp.hlo_passes.loop.delay_reductions import once_per_step_bytes
from jaxpp.hlo_passes.loop.find_microbatch_loop import (
    location_of_the_loop,
    microbatches_without_schedule,
    number_of_microbatches,
)
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.unroll_microbatches import UnrollMicrobatches
from jaxpp.hlo_passes.stages.move_residuals import HOST
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.mesh_functions import location_of_tasks, mesh_functions, stacked_arguments
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.lowering.lower import Lowered
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.memory_limit import NOTHING, fit
from jaxpp.planning.target import target_of
from jaxpp.runtime.execution.progress import Progress
from jaxpp.runtime.processes.choice import transport_between
from jaxpp.schedules.given import as_text
from jaxpp.sharded_microbatches import ShardedMicrobatches
from jaxpp.task_times import Rates
from jaxpp.unused_axes import warn_of_unused_axes

ScheduleLike = schedules.BaseSchedule | schedules.Schedule | os.PathLike[str] | str
"""What `jaxpp.schedules.resolve` takes."""


@dataclass(frozen=True, repr=False)
class ProgramModule:
    """A verified program module (docs/ir.md, section 6).

    kept_less: what is done to keep less, said or chosen by `memory_limit`: `keep` of `split-forward` under "recompute",
        `stages` of `move-residuals` under "offload", under "evict" the stages of which residuals wait on another mesh,
        and under "order", where that is another one than the schedule's, how many activations each mesh keeps in it.
    schedule: the schedule of its tasks, as a grid; of a `train_loop` without a delay that of one of its steps; empty of
        a module that was read.
    """

    module: ir.Module
    kept_less: Mapping[str, str] = field(default_factory=dict[str, str])
    schedule: str = ""

    def __repr__(self) -> str:
        functions = [op for op in self.module.body.operations if op.operation.name == "func.func"]
        meshes = at.integer(self.module.operation, at.MESHES) or 0
        return f"<ProgramModule of {meshes} meshes: {len(functions) - meshes} functions>"

    def as_text(self) -> str:
        """The program as MLIR text."""
        return str(self.module)

    def as_bytecode(self) -> bytes:
        """The program as MLIR bytecode."""
        buffer = io.BytesIO()
        self.module.operation.write_bytecode(buffer)
        return buffer.getvalue()

    @property
    def once_per_step_bytes(self) -> dict[str, int]:
        """What `gather_weights="step"` and `scatter_gradients="step"` cost, chosen or not.

        Bytes per device, summed over all stages; empty when no weight is sharded over the axis of the batch.
        """
        return once_per_step_bytes(self.module)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most bytes that are alive at once on each device of each mesh, arguments included.

        Without the temporaries of the tasks, and without what is in the memory of the host.
        """
        return tuple(at.integer(function, at.PEAK_BYTES) or 0 for function in mesh_functions(self.module))

    @property
    def peak_host_bytes(self) -> tuple[int, ...]:
        """The most bytes that are alive at once in the memory of the host, for each device of each mesh."""
        return tuple(at.integer(function, at.PEAK_HOST_BYTES) or 0 for function in mesh_functions(self.module))

    @property
    def rows_sent_bytes(self) -> int:
        """The bytes of stacked layers that every step sends to the meshes of their stages; their gradients come back.

        0 where each mesh holds its own layers. Under schedules with several separate stages for each mesh it does when
        they are stored in the order of `jaxpp.rows_of_layers`.
        """
        return at.integer(self.module.operation, at.ROWS_SENT) or 0

    @property
    def rows_padded_bytes(self) -> int:
        """The bytes of stacked layers that are padding, on all meshes together.

        0 where every mesh has as many layers; see `jaxpp.rows_of_layers` with `cuts`.
        """
        return at.integer(self.module.operation, at.ROWS_PADDED) or 0


def rewrite(
    lowered: Lowered, schedule: ScheduleLike | None, options: Mapping[str, str], costs: schedules.Costs | None = None
) -> ProgramModule:
    """The program of a lowered step.

    Args:
        lowered: stays as it is.
        schedule: for a loop that names none.
        options: of the passes, by keyword; a "schedule" takes the place of that of the loop. The "transport" is that
            between the processes of the mesh, if not given: in its order values are sent and received, and so kept.
            "share_tasks" may be "auto": by the platform of the mesh.
        costs: of the tasks, by which what keeps less is chosen; of a `jaxpp.target`, else, the facts of its chip.

    Raises:
        PassError: the marks, the loop or the schedule don't fit together.
        ScheduleError: the costs are for another schedule.
        ValueError: an argument is to be sharded over the mpmd axis, and is no stack of layers.
        ProcessError: the transport that the user has chosen does not work.
    """
    mesh, dump = lowered.mpmd_mesh, dump_of(lowered.module)
    if dump:
        dump.lowered(lowered.module)
    module = own_copy(lowered.module)
    carried = mesh.is_present and mesh.backend is None
    options = {"transport": transport_between(mesh.jax_mesh.devices.flat) if carried else "pull", **options}
    if options.get("share_tasks") == "auto":
        options["share_tasks"] = shared_from(mesh.platform)
    text = options.pop("schedule", "") or _schedule_text(module, schedule, mesh.mpmd_dim)
    rates = Rates(costs=costs)
    if not mesh.is_present:
        rates = rates.on(target_of(mesh.jax_mesh).chip, lowered.module)
    elif carried:
        rates = replace(rates, has_host=_without_host_memory(mesh) is None)
    observers = [ShardedMicrobatches(lowered.in_names), *([dump] if dump else [])]
    program = rewritten(module, text, mesh.mpmd_dim, options, observers, rates)
    meshes = at.integer(module.operation, at.MESHES) or 0
    if meshes > mesh.mpmd_dim:
        raise PassError(
            f"the schedule runs on {meshes} meshes, the mesh axis '{mesh.mpmd_axis_name}' has {mesh.mpmd_dim}",
            location=location_of_tasks(module, 0),
            hint="give a larger mesh, or a schedule that places several stages on one mesh",
        )
    _warn_of_idle(meshes, mesh)
    warn_of_unused_axes(lowered.module, mesh)
    _check_stacks(lowered.stacks, module)
    if carried:
        _check_host_memory(program, mesh)
    if dump:
        dump.program(module)
    return program


def shared_from(platform: str) -> str:
    """The option of `share-tasks` with which a call more takes about a hundredth of a step, or less.

    The FLOPs of a task that takes some twenty times as long as its launch: 0.5 ms on a core of a CPU, for which `auto`
    stands, 0.3 ms on a GPU.
    """
    return "auto" if platform == "cpu" else "1e11"


def _without_host_memory(mesh: MpmdMesh) -> Any:
    """A device of this process that can't keep values in the memory of the host; None where all can."""
    here = [device for device in mesh.jax_mesh.devices.flat if device.process_index == device.client.process_index()]
    return next((each for each in here if HOST not in {memory.kind for memory in each.addressable_memories()}), None)


def _check_host_memory(program: ProgramModule, mesh: MpmdMesh) -> None:
    """Refuse a program that keeps values in the memory of a host where a device has none, with the user's line."""
    number = next((number for number, most in enumerate(program.peak_host_bytes) if most), None)
    device = None if number is None else _without_host_memory(mesh)
    if number is not None and device is not None:
        kinds = ", ".join(sorted({each.kind for each in device.addressable_memories()}))
        raise ProgramError(
            f"the program keeps values of mesh {number} in {HOST!r}; {device} has only {kinds}",
            location=location_of_tasks(program.module, number),
            hint="take a schedule without offloads, and shardings without that memory_kind",
        )


def rewritten(
    module: ir.Module,
    schedule: str,
    meshes: int,
    options: Mapping[str, str],
    observers: Sequence[Observer] = (),
    rates: Rates | None = None,
) -> ProgramModule:
    """The program of a lowered module, which is rewritten in place.

    Args:
        module: as lowering makes it.
        schedule: the text of one for a loop that names none; empty for others.
        meshes: how many there are.
        options: of the passes, by keyword.
        observers: of the passes.
        rates: what bytes take, where what keeps less is chosen.

    Raises:
        PassError: the marks, the loop or the schedule don't fit together.
    """
    kept_less = {**NOTHING, "recompute": options.get("recompute", "")}
    loop = TrainLoopAttr.of(module)
    is_delayed = loop is not None and loop.delay > 0  # its schedule is of all steps: there is no other choice
    if options.get("memory_limit") and not options.get("recompute") and not is_delayed:
        fitted = fit(module, schedule, meshes, options, rates)
        schedule, options, kept_less = fitted.schedule, fitted.options, fitted.kept_less
    passes, tasks = mpmd(schedule, meshes, **options), TasksSeen()
    with contextlib.closing(Progress("rewriting the module", len(passes), bar=False)) as progress:
        run_passes(module, passes, [_PassProgress(progress), tasks, *observers])
    return ProgramModule(module, kept_less, tasks.schedule)


def _warn_of_idle(meshes: int, mesh: MpmdMesh) -> None:
    if 0 < meshes < mesh.mpmd_dim:
        idle = mesh.mpmd_dim - meshes
        warnings.warn(
            f"the schedule runs on {meshes} of the {mesh.mpmd_dim} meshes of axis '{mesh.mpmd_axis_name}': "
            f"{idle} {'stays' if idle == 1 else 'stay'} idle",
            stacklevel=100,  # the step that is compiled names no line of the user's
        )


def text_of(schedule: ScheduleLike, lowered: Lowered) -> str:
    """The text of a schedule for the loop of a lowered step, whatever schedule the loop itself names.

    A name of the library stays a name, which the passes resolve.

    Raises:
        PassError: there is no such loop, or the schedule does not fit it.
    """
    module = own_copy(lowered.module)
    run_passes(module, (InlineCalls(),))
    return _text_for(module, schedule, None, number_of_microbatches(module))


def _schedule_text(module: ir.Module, schedule: ScheduleLike | None, meshes: int) -> str:
    """The text of `schedule` for a loop that names none, which is known when all calls are inlined; else nothing."""
    if schedule is None:
        return ""
    run_passes(module, (InlineCalls(),))
    length = microbatches_without_schedule(module)
    return "" if length is None else _text_for(module, schedule, meshes, length)


def _text_for(module: ir.Module, schedule: ScheduleLike, meshes: int | None, length: int) -> str:
    try:
        return as_text(schedule, meshes=meshes, microbatches=length)
    except schedules.ScheduleError as error:
        raise PassError(str(error), location=location_of_the_loop(module)) from error


class TasksSeen(Watch):
    """An observer of the passes that keeps the schedule as it is when the loop is unrolled, with what passes added."""

    schedule = ""

    def before(self, step: Pass, module: ir.Module) -> None:
        """Read the schedule before the pass that unrolls the loop."""
        if isinstance(step, UnrollMicrobatches):
            loop = TrainLoopAttr.of(module)
            self.schedule = (loop and loop.schedule) or MicrobatchLoop.of(module).schedule


class _PassProgress:
    """An observer of the passes that tells how far they are."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done = progress, 0

    def before(self, step: Pass, module: ir.Module) -> None:
        self._progress.report(self._done, [step.name])

    def after(self, step: Pass, module: ir.Module) -> None:
        self._done += 1
        self._progress.report(self._done, ())


def _check_stacks(wanted: Mapping[int, str], module: ir.Module) -> None:
    """Refuse an argument that the user wants sharded over the mpmd axis, and that is no stack of layers."""
    cut = stacked_arguments(module) if wanted else ()
    for number, message in wanted.items():
        if number not in cut:
            raise ValueError(message)
