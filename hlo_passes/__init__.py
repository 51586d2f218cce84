"""The passes that turn a lowered module into a program module, one file each (docs/passes.md).

`PASSES` maps each pass's name to its class, in the order in which the `mpmd` pipeline runs them.
"""

from jaxpp.hlo_passes.base import Observer, Pass, PassError, run_passes
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.loop.propagate_shardings import PropagateShardings
from jaxpp.hlo_passes.program.deduplicate_functions import DeduplicateFunctions
from jaxpp.hlo_passes.program.infer_placement import InferPlacement
from jaxpp.hlo_passes.program.insert_transfers import InsertTransfers
from jaxpp.hlo_passes.program.plan_buffers import PlanBuffers
from jaxpp.hlo_passes.program.unroll_microbatches import UnrollMicrobatches
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.hlo_passes.stages.outline_stages import OutlineStages

PASSES: dict[str, type[Pass]] = {
    step.name: step
    for step in (
        InlineCalls,
        FindMicrobatchLoop,
        PropagateShardings,
        OutlineStages,
        UnrollMicrobatches,
        InferPlacement,
        InsertTransfers,
        PlanBuffers,
        DeduplicateFunctions,
        VerifyProgram,
    )
}

__all__ = ["PASSES", "Observer", "Pass", "PassError", "run_passes"]
