"""Pipelines: passes in order, each with the reason why it stands there."""

from collections.abc import Callable, Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass, Watch
from jaxpp.hlo_passes.loop.assign_stages import AssignStages
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.loop.forward_rows import ForwardRows
from jaxpp.hlo_passes.loop.hoist_loop_invariants import HoistLoopInvariants
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.loop.merge_constants import MergeConstants
from jaxpp.hlo_passes.loop.merge_stages import MergeStages
from jaxpp.hlo_passes.loop.place_reshards import PlaceReshards
from jaxpp.hlo_passes.loop.propagate_shardings import PropagateShardings
from jaxpp.hlo_passes.loop.split_accumulators import SplitAccumulators
from jaxpp.hlo_passes.loop.split_caches import SplitCaches
from jaxpp.hlo_passes.loop.split_conditionals import SplitConditionals
from jaxpp.hlo_passes.loop.split_shard_maps import SplitShardMaps
from jaxpp.hlo_passes.loop.split_stacks import SplitStacks
from jaxpp.hlo_passes.loop.unroll_layers import UnrollLayers
from jaxpp.hlo_passes.loop.unroll_slices import UnrollSlices
from jaxpp.hlo_passes.loop.verify_loop import VerifyLoop
from jaxpp.hlo_passes.program.copy_host_state import CopyHostState
from jaxpp.hlo_passes.program.deduplicate_functions import DeduplicateFunctions
from jaxpp.hlo_passes.program.fuse_tasks import FuseTasks
from jaxpp.hlo_passes.program.gather_weights import GatherWeights
from jaxpp.hlo_passes.program.infer_placement import InferPlacement
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.scatter_gradients import ScatterGradients
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.hlo_passes.program.share_tasks import ShareTasks
from jaxpp.hlo_passes.program.unroll_microbatches import UnrollMicrobatches
from jaxpp.hlo_passes.program.unroll_steps import UnrollSteps
from jaxpp.hlo_passes.program.verify_placed import VerifyPlaced
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.hlo_passes.program.verify_unrolled import VerifyUnrolled
from jaxpp.hlo_passes.program.weave_units import WeaveUnits
from jaxpp.hlo_passes.stages.call_operations import CallOperations
from jaxpp.hlo_passes.stages.merge_slices import MergeSlices
from jaxpp.hlo_passes.stages.move_residuals import MoveResiduals
from jaxpp.hlo_passes.stages.outline_stages import OutlineStages
from jaxpp.hlo_passes.stages.place_residuals import PlaceResiduals
from jaxpp.hlo_passes.stages.split_backward import SplitBackward
from jaxpp.hlo_passes.stages.split_forward import SplitForward
from jaxpp.hlo_passes.stages.verify_tasks import VerifyTasks


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
) -> tuple[Pass, ...]:
    """From a lowered training step to the program of its meshes.

    Args:
        schedule: a schedule's name, file or text, instead of the one that the loop carries.
        meshes: the number of meshes of a schedule given by name.
        cuts: option of `merge-stages`.
        gather_weights: option of `delay-reductions`, as is the next.
        scatter_gradients: see above.
        recompute: option `keep` of `split-forward`.
        offload: option `stages` of `move-residuals`.
        memory_limit: option of `verify-program`, as is the next.
        host_memory_limit: see above.
        transport: option of `insert-transfers` and of `verify-program`.
        share_tasks: option `when` of `share-tasks`.
    """
    return (
        InlineCalls(),  # marks inside helpers come up to the loop body
        SplitConditionals(),  # before the first pass that follows values: none looks into branches
        UnrollSlices(schedule, meshes),  # before the loops over layers inside of those over slices
        UnrollLayers(schedule, meshes),  # before marks are counted; after inlining, which shows those in scans
        SplitShardMaps(schedule, meshes),  # after unrolling, likewise; before stage marks are counted
        MergeConstants(),  # after inlining and unrolling, which repeat them; before the passes that walk over the loop
        MergeStages(cuts),  # after unrolling, which shows the marks of all layers; before they are counted
        ForwardRows(),  # after unrolling, which shows what each layer reads; before hoisting, which moves whole stacks
        FindMicrobatchLoop(schedule, meshes),  # errors of the user's marks and loop, before anything is changed
        HoistLoopInvariants(),  # before propagation, which gives what leaves the loop its shardings
        AssignStages(),  # after hoisting: what is done once per step is in no task; before the first pass that asks
        SplitStacks(),  # after hoisting, which casts whole stacks; before propagation, which gives the blocks shardings
        SplitAccumulators(),  # before propagation, which gives the new sums their shardings
        SplitCaches(),  # likewise; after the tasks are assigned, each of which puts together what it reads
        PropagateShardings(),  # on the whole module, so that every value that is cut knows its sharding
        PlaceReshards(),  # needs the shardings; before the marks become transfers
        DelayReductions(gather_weights, scatter_gradients),  # needs the shardings; before anything is cut
        PlaceResiduals(),  # after the last pass that makes operations in the loop, some of which may move too
        OutlineStages(),  # before unrolling: one body per task, however many microbatches
        SplitBackward(),  # before unrolling, likewise; needs to know which values cross to other tasks
        SplitForward(recompute),  # after the backward's halves, which read the residuals that are made again
        CallOperations(),  # likewise; before the residuals go elsewhere
        MoveResiduals(offload),  # what the backwards read, when they are cut
        MergeSlices(),  # the last of the phase: each slice has all its functions
        UnrollMicrobatches(),  # the schedule's order
        FuseTasks(),  # after unrolling, which says what is one task
        WeaveUnits(),  # the tasks of a call are in one function
        GatherWeights(gather_weights),  # what tasks are calls now, and in which order
        ScatterGradients(),  # likewise; behind the gathers, which end no run
        InferPlacement(),  # needs the meshes of the task calls
        ShareFunctions(),  # needs the functions around the loop; before what is written on each call
        UnrollSteps(),  # when everything of one step is on a mesh: an update is placed once
        ShareTasks(share_tasks),  # behind the last pass for which a task is one call
        InsertTransfers(transport),  # needs everything on a mesh
        CopyHostState(),  # per mesh; makes calls, whose operands die like those of others
        PlanBuffers(),  # per mesh: a value may live on after it was sent
        DeduplicateFunctions(),  # after donation is known: functions that donate differently differ
        VerifyProgram(memory_limit, host_memory_limit, transport),  # the proof, and the peaks of memory
    )


VERIFIED_AFTER: dict[type[Pass], Pass] = {
    AssignStages: VerifyLoop(),
    PlaceResiduals: VerifyLoop(),  # the last pass of the phase
    MergeSlices: VerifyTasks(),  # the last pass of the phase
    ScatterGradients: VerifyUnrolled(),  # the last pass of the phase
    ShareFunctions: VerifyPlaced(),
}
"""What checks the promises of docs/ir.md that hold after a pass."""


class VerifyPhases(Watch):
    """An observer that checks the promises of each phase where it ends: in tests, and under `--validate`."""

    def after(self, step: Pass, module: ir.Module) -> None:
        """Check `module`, if a phase ends with `step`. Raises PassError for a promise that is broken."""
        if type(step) in VERIFIED_AFTER:
            VERIFIED_AFTER[type(step)].run(module)


def with_verification(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """`passes`, and the `verify-*` passes where the phases end, each once."""
    last = {type(verify): step for step, verify in VERIFIED_AFTER.items()}
    verifies = {step: VERIFIED_AFTER[step] for step in last.values()}
    every = ([step, verifies.get(type(step))] for step in passes)
    return tuple(step for both in every for step in both if step is not None)


PIPELINES: dict[str, Callable[..., tuple[Pass, ...]]] = {"mpmd": mpmd}
