"""An observer of the sums over the microbatches."""

from collections.abc import Collection
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.program.share_functions import ShareFunctions
from jaxpp.hlo_passes.program.verify_gradients import raise_first
from jaxpp.hlo_passes.program.verify_program import VerifyProgram
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.manual_sums import unreduced
from jaxpp.ir.microbatch_sums import UNKNOWN
from jaxpp.ir.step_sums import StepSums, step_sums


class WholeSums(Observer):
    """Checks after some passes what `verify-gradients` checks, unless the user's step has sums that are not whole.

    Raises PassError.
    """

    reads_program = False
    checked_after: ClassVar[Collection[type[Pass]]] = (DelayReductions, ShareFunctions)

    def __init__(self) -> None:
        self._module: ir.Module | None = None

    def after(self, step: Pass, module: ir.Module) -> None:
        """Reads the sums when the loop is found, and checks those after other passes."""
        if type(step) is FindMicrobatchLoop:
            raise_first([*unreduced(module)])
            if MicrobatchLoop.of(module).length > 1:  # otherwise all values may move out of the loop
                self._begin(module)
        elif self._module is module and type(step) in self.checked_after:
            self._check(step, module)
        if type(step) is VerifyProgram:
            self._module = None

    def _begin(self, module: ir.Module) -> None:
        """Reads the sums that the user wrote."""
        self._module, self._known = module, step_sums(module)
        results = self._known.results.values()
        self._is_known = all(UNKNOWN not in each.own | each.whole for each in results)

    def _check(self, step: Pass, module: ir.Module) -> None:
        self._whole(module)

    def _whole(self, module: ir.Module) -> StepSums:
        """Returns the sums of a step. Raises PassError for the first that is not whole."""
        sums = step_sums(module)
        raise_first(sums.wrong if self._is_known else ())
        return sums
