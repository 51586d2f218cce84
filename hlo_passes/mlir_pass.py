"""Passes of MLIR, StableHLO and Shardy, as jaxlib has them."""

import re
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from jaxpp._compat import make_context
from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.errors import PassError


@dataclass(frozen=True)
class MlirPass(Pass):
    """Runs a pass that jaxlib has: of MLIR (`canonicalize`, `cse`), of StableHLO, or of Shardy (`sdy-...`).

    Attributes:
        text: the pass in MLIR's syntax, such as `cse`, `canonicalize{top-down=false}` or `func.func(cse)`.

    Raises:
        ValueError: jaxlib has no such pass, or no such option of it. The message is MLIR's.
    """

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.text)  # the name of a class would be the same for all of them
        self._manager(make_context())

    def _manager(self, context: ir.Context) -> PassManager:
        """Returns MLIR's manager of the pass. A pass of functions alone runs on each function."""
        stablehlo.register_stablehlo_passes()
        try:
            return PassManager.parse(f"builtin.module({self.text})", context)
        except ValueError as error:
            message = " ".join(str(error).split())
        if "restricted to 'func.func'" in message:
            return PassManager.parse(f"builtin.module(func.func({self.text}))", context)
        raise ValueError(re.sub(r"^MLIR Textual PassPipeline Parser:\S* error: ", "", message).removesuffix(" ^"))

    def run(self, module: ir.Module) -> None:
        """Runs the pass on the module. Raises PassError if it fails; MLIR's diagnostics say why."""
        try:
            self._manager(module.context).run(module.operation)
        except ir.MLIRError:
            raise PassError(f"pass '{self.name}' failed") from None
