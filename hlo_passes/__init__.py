"""The passes that turn a lowered module into a program module, one file each (docs/passes.md).

`PASSES` maps each pass's name to its class, in the order in which the `mpmd` pipeline runs them. `verify-loop` stands
at the end of phase 3, `verify-main` at the end of phase 4, and `verify-program` comes last. The passes that follow are
in no pipeline: `verify-gradients`, `mark-stages`, `place-tasks`, and those from and to Shardy's dialects.
docs/your-first-pass.md shows how to write a pass, with the helpers of `jaxpp.ir` that it needs.
"""

from jaxpp.hlo_passes.base import Observer, Pass, run_passes
from jaxpp.hlo_passes.loop.mark_stages import MarkStages
from jaxpp.hlo_passes.pipelines import PIPELINES, mpmd, with_verification
from jaxpp.hlo_passes.program.place_tasks import PlaceTasks
from jaxpp.hlo_passes.program.verify_gradients import VerifyGradients
from jaxpp.hlo_passes.shardy.export_shardy_mpmd import ExportShardyMpmd
from jaxpp.hlo_passes.shardy.import_shardings import ImportShardings
from jaxpp.hlo_passes.shardy.import_shardy_mpmd import ImportShardyMpmd
from jaxpp.ir.errors import PassError

PASSES: dict[str, type[Pass]] = {step.name: type(step) for step in with_verification(mpmd())} | {
    step.name: step
    for step in (VerifyGradients, MarkStages, PlaceTasks, ImportShardings, ImportShardyMpmd, ExportShardyMpmd)
}

__all__ = ["PASSES", "PIPELINES", "Observer", "Pass", "PassError", "run_passes"]
