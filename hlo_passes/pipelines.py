"""Pipelines: passes in order, each with the reason why it stands there."""

from collections.abc import Callable

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.loop.forward_gathers import ForwardGathers
from jaxpp.hlo_passes.loop.hoist_loop_invariants import HoistLoopInvariants
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.loop.place_reshards import PlaceReshards
from jaxpp.hlo_passes.loop.propagate_shardings import PropagateShardings
from jaxpp.hlo_passes.loop.split_conditionals import SplitConditionals
from jaxpp.hlo_passes.loop.split_stacks import SplitStacks
from jaxpp.hlo_passes.loop.unroll_layers import UnrollLayers
from jaxpp.hlo_passes.program.deduplicate_functions import DeduplicateFunctions
from jaxpp.hlo_passes.program.fuse_tasks import FuseTasks
from jaxpp.hlo_passes.program.infer_placement import InferPlacement
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.hlo_passes.program.unroll_microbatches import UnrollMicrobatches
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.hlo_passes.stages.outline_stages import OutlineStages
from jaxpp.hlo_passes.stages.split_accumulators import SplitAccumulators
from jaxpp.hlo_passes.stages.split_backward import SplitBackward


def mpmd(
    schedule: str = "", meshes: int = 0, *, gather_weights: str = "microbatch", scatter_gradients: str = "microbatch"
) -> tuple[Pass, ...]:
    """From a lowered training step to the program of its meshes.

    Args:
        schedule: a schedule's name, file or text, instead of the one that the loop carries.
        meshes: the number of meshes of a schedule given by name.
        gather_weights: option of `delay-reductions`, as is the next.
        scatter_gradients: see above.
    """
    return (
        InlineCalls(),  # marks inside helpers come up to the loop body
        UnrollLayers(),  # before the marks are counted; after inlining, which shows the marks in the bodies of scans
        FindMicrobatchLoop(schedule, meshes),  # errors of the user's marks and loop, before anything is changed
        SplitConditionals(),  # before the passes that follow values, which don't look into branches
        HoistLoopInvariants(),  # before propagation, which gives what leaves the loop its shardings
        ForwardGathers(),  # after hoisting, which casts what was gathered; before the rows of the stacks are followed
        SplitStacks(),  # after hoisting, which casts whole stacks; before propagation, which gives the blocks shardings
        SplitAccumulators(),  # before propagation, which gives the new sums their shardings
        PropagateShardings(),  # on the whole module, so that every value that is cut knows its sharding
        PlaceReshards(),  # needs the shardings; before the marks become transfers
        DelayReductions(gather_weights, scatter_gradients),  # needs the shardings; before anything is cut
        OutlineStages(),  # before unrolling: one body per task, however many microbatches
        SplitBackward(),  # before unrolling, likewise; needs to know which values cross to other tasks
        UnrollMicrobatches(),  # the schedule's order
        FuseTasks(),  # after unrolling, which says what is one task
        InferPlacement(),  # needs the meshes of the task calls
        ShareFunctions(),  # needs the functions around the loop; before what is written on each call
        InsertTransfers(),  # needs everything on a mesh
        PlanBuffers(),  # per mesh: a value may live on after it was sent
        DeduplicateFunctions(),  # after donation is known: functions that donate differently differ
        VerifyProgram(),  # the proof, and the peaks of memory
    )


PIPELINES: dict[str, Callable[..., tuple[Pass, ...]]] = {"mpmd": mpmd}
