"""Pipelines: passes in order, each with the reason for its position."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass, VerifyOwn, run_pass
from jaxpp.hlo_passes.loop.assign_stages import AssignStages
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.loop.forward_rows import ForwardRows
from jaxpp.hlo_passes.loop.hoist_loop_invariants import HoistLoopInvariants
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.loop.number_stages import NumberStages
from jaxpp.hlo_passes.loop.propagate_shardings import PropagateShardings
from jaxpp.hlo_passes.loop.split_accumulators import SplitAccumulators
from jaxpp.hlo_passes.loop.split_caches import SplitCaches
from jaxpp.hlo_passes.loop.split_conditionals import SplitConditionals
from jaxpp.hlo_passes.loop.split_stacks import SplitStacks
from jaxpp.hlo_passes.loop.unroll_loops import UnrollLoops
from jaxpp.hlo_passes.loop.verify_loop import VerifyLoop
from jaxpp.hlo_passes.program.infer_placement import InferPlacement
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.once_per_run import OncePerRun
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.hlo_passes.program.unroll_microbatches import UnrollMicrobatches
from jaxpp.hlo_passes.program.unroll_steps import UnrollSteps
from jaxpp.hlo_passes.program.verify_main import VerifyMain
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.hlo_passes.program.weave_units import WeaveUnits
from jaxpp.hlo_passes.stages.add_tasks import AddTasks
from jaxpp.hlo_passes.stages.outline_stages import OutlineStages
from jaxpp.hlo_passes.stages.place_residuals import PlaceResiduals
from jaxpp.hlo_passes.stages.split_backward import SplitBackward
from jaxpp.hlo_passes.stages.split_forward import SplitForward
from jaxpp.ir.errors import PassError


def mpmd(
    schedule: str = "",
    meshes: int = 0,
    *,
    cuts: str = "",
    gather_weights: str = "microbatch",
    scatter_gradients: str = "microbatch",
    recompute: str = "",
    offload: str = "",
    memory_limit: str = "",
    host_memory_limit: str = "",
    transport: str = "pull",
    share_tasks: str = "auto",
    own: Sequence[tuple[str, Pass]] = (),
) -> tuple[Pass, ...]:
    """Turns a lowered training step into the program of its meshes.

    Args:
        schedule: a schedule such as 1f1b, gis{chunks=4} or mine.txt, or its text. It replaces that of the loop.
        meshes: the number of meshes, for a schedule that is given by name.
        cuts: the layers of each stage, such as 5,5,4,2 (`number-stages`).
        gather_weights: when weights sharded like the batch are gathered: per microbatch, chunk, ahead of it, or step.
        scatter_gradients: when their gradients are scattered: once per microbatch, chunk or step.
        recompute: what recomputing stages keep (`split-forward`): inputs, selective, 0.5, or 0:selective,3:0.05.
        offload: the stages whose residuals wait on the host (`add-tasks`).
        memory_limit: the most that a device may need, as 4096 or 70GiB, or one for each mesh.
        host_memory_limit: the same for a device's share of the memory of its host.
        transport: how values go from mesh to mesh: pull, device_put or pair.
        share_tasks: when end stages call programs of the middle ones: auto, never, always, or from 1e7 FLOPs on.
        own: passes of the user, each with the name of the pass after which it runs.
    """
    passes = (
        InlineCalls(),  # first: moves the marks of helpers into the loop body
        FindMicrobatchLoop(schedule, meshes),  # before all passes that read the schedule, which this one resolves
        SplitConditionals(),  # before all passes that follow values: they do not look into branches
        UnrollLoops(),  # after inlining, which exposes marks in scans; before marks are counted
        ForwardRows(),  # after unrolling, which exposes each layer's reads; before hoisting, which moves whole stacks
        NumberStages(cuts),  # after unrolling, which exposes all marks; reports errors in marks before tasks are made
        HoistLoopInvariants(),  # before propagation, which gives shardings to the hoisted values
        AssignStages(),  # after hoisting: hoisted operations belong to no task; before all passes that read tasks
        SplitStacks(),  # after hoisting, which casts whole stacks; before propagation, which gives shardings to blocks
        SplitAccumulators(),  # before propagation, which gives shardings to the new sums
        SplitCaches(),  # after tasks are assigned: each task assembles the arrays that it reads; before propagation
        PropagateShardings(),  # before outlining: every value that crosses between tasks then has its sharding
        DelayReductions(gather_weights, scatter_gradients),  # needs shardings; before outlining
        PlaceResiduals(),  # after all passes that make operations in the loop: it may move those too
        OutlineStages(),  # before unrolling microbatches: one function per task serves all of them
        SplitBackward(),  # before unrolling microbatches; needs the values that cross to other tasks
        SplitForward(recompute),  # after the backward is split: both halves read the recomputed residuals
        AddTasks(offload),  # last of its phase: the residuals are known, and each slice has all its functions
        UnrollMicrobatches(),  # puts task calls into the schedule's order; calls that are one task become one
        WeaveUnits(),  # after unrolling, which fuses: the tasks of a call share a function
        OncePerRun(gather_weights),  # needs the final task calls, in their order
        InferPlacement(),  # needs the meshes of the task calls
        ShareFunctions(share_tasks),  # needs the functions around the loop; before the calls of a step are repeated
        UnrollSteps(),  # after placement: an update is placed once for all steps
        InsertTransfers(transport),  # needs a mesh for every operation
        PlanBuffers(),  # needs one function per mesh: a value may be used after it was sent
        VerifyProgram(memory_limit, host_memory_limit, transport),  # last: proves the program, and writes memory peaks
    )
    return with_own(passes, own)


VERIFIED_AFTER: dict[type[Pass], Pass] = {
    AssignStages: VerifyLoop(),
    PlaceResiduals: VerifyLoop(),  # the last pass that leaves no functions
    AddTasks: VerifyLoop(),  # the last pass of its phase
    OncePerRun: VerifyMain(),  # the last pass of its phase
    ShareFunctions: VerifyMain(placed=True),
}
"""Maps a pass to the `verify-*` pass that checks the promises of docs/ir.md that hold after it."""


class VerifyPhases(Observer):
    """An observer that checks the promises of docs/ir.md after the passes of `VERIFIED_AFTER`."""

    reads_program = False  # none of these passes makes mesh functions

    def after(self, step: Pass, module: ir.Module) -> None:
        """Checks `module` if `VERIFIED_AFTER` has an entry for `step`. Raises PassError for a broken promise."""
        if type(step) in VERIFIED_AFTER:
            VERIFIED_AFTER[type(step)].run(module)


def with_verification(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Returns `passes` with each pass of `VERIFIED_AFTER` inserted, after the last pass that it checks."""
    last = {verify: step for step, verify in VERIFIED_AFTER.items()}
    verifies = {step: verify for verify, step in last.items()}
    every = ([step, verifies.get(type(step))] for step in passes)
    return tuple(step for both in every for step in both if step is not None)


@dataclass(frozen=True)
class OwnPass(Pass):
    """Runs a pass of the user, and then verifies the module. An error names the user's pass.

    Attributes:
        step: the pass of the user.
        promises: the next `verify-*` pass of the pipeline. It also runs here, if its promises hold before the pass.
    """

    step: Pass
    promises: Pass | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.step.name)

    def run(self, module: ir.Module) -> None:
        """Runs the pass. Raises PassError if MLIR refuses the module afterwards, or the pass broke a promise."""
        had_promises = self._broken(module) is None
        run_pass(self.step, module)
        VerifyOwn().after(self.step, module)
        if had_promises and (broken := self._broken(module)):
            broken.hint = "docs/ir.md has the promises between passes"
            raise PassError.because(f"pass '{self.name}' broke a promise", broken)

    def _broken(self, module: ir.Module) -> PassError | None:
        """Returns the error of `promises`, if it finds one."""
        try:
            if self.promises is not None:
                self.promises.run(module)
        except PassError as error:
            return error
        return None


def with_own(passes: Sequence[Pass], own: Sequence[tuple[str, Pass]]) -> tuple[Pass, ...]:
    """Returns `passes` with passes of the user inserted, each after the pass that it names.

    Raises:
        ValueError: there is no such pass, or it is the last one, which proves the program.
    """
    names = [step.name for step in passes]
    for after, step in own:
        if after not in names[:-1]:
            near = difflib.get_close_matches(after, names[:-1], n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"they are {', '.join(names[:-1])}"
            raise ValueError(f"pass '{step.name}': no pass before {names[-1]} is named '{after}'; {hint}")
    chain: list[Pass] = []
    for number, step in enumerate(passes):
        promises = next((VERIFIED_AFTER[type(each)] for each in passes[number:] if type(each) in VERIFIED_AFTER), None)
        chain += step, *(OwnPass(each, promises) for after, each in own if after == step.name)
    return tuple(chain)


PIPELINES: dict[str, Callable[..., tuple[Pass, ...]]] = {"mpmd": mpmd}
