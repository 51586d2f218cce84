"""Numeric validation: the module after each pass must compute the same as the module before it."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass
from jaxpp.validation.apart import Apart
from jaxpp.validation.bound import MOST_TRIPS
from jaxpp.validation.validator import Validator

_CANNOT = "the module can't be run to validate what becomes of it"


class Validate(Observer):
    """An observer that runs the module after each pass and compares all results with those before the first pass.

    `Validator` describes the comparison. The arguments of this class are those of `Validator`, and one more.

    Args:
        apart: whether a child process runs the modules. A module on which XLA crashes then raises an error, and does
            not end this process.

    Raises:
        ValidationError: the module can't be run (from `before` and `after`), or its results differ (from `after`).
    """

    def __init__(
        self, seed: int = 0, most_trips: int = MOST_TRIPS, tolerance: float | None = None, *, apart: bool = False
    ) -> None:
        self._validator = (Apart if apart else Validator)(seed, most_trips, tolerance)
        self._passes: int | None = None

    def before(self, step: Pass, module: ir.Module) -> None:
        """Runs the module for reference, before the first pass."""
        if self._passes is None:
            self._validator.refer(module, _CANNOT)
            self._passes = 0

    def after(self, step: Pass, module: ir.Module) -> None:
        """Runs the module again, if `step` changed it, and compares the results."""
        self._passes = (self._passes or 0) + 1
        self._validator.check(module, f"pass '{step.name}'", f"what pass '{step.name}' made")

    def summary(self) -> str:
        """Returns a line about the comparison, and a line for each result that could not be compared."""
        if self._passes is None:
            return "validated: no pass ran"
        found = self._validator.findings()
        return found.summary(f"validated: {found.agree} results agree after each of {self._passes} passes")


def compare_modules(
    modules: Sequence[ir.Module], names: tuple[str, str], seed: int, most_trips: int, tolerance: float | None
) -> str:
    """Compares the results of two modules, in a child process; returns the summary. Raises ValidationError.

    names: the names of the modules in messages.
    """
    validator = Apart(seed, most_trips, tolerance)
    validator.refer(modules[0], f"{names[0]} can't be run")
    validator.check(modules[1], names[1], names[1])
    found = validator.findings()
    return found.summary(f"compared: {found.agree} results agree")
