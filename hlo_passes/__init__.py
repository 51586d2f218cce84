"""The passes that turn a lowered module into a program module, one file each (docs/passes.md).

`PASSES` maps each pass's name to its class, in the order in which the `mpmd` pipeline runs them.
"""

from jaxpp.hlo_passes.base import Observer, Pass, PassError, run_passes
from jaxpp.hlo_passes.pipelines import PIPELINES, mpmd

PASSES: dict[str, type[Pass]] = {step.name: type(step) for step in mpmd()}

__all__ = ["PASSES", "PIPELINES", "Observer", "Pass", "PassError", "run_passes"]
