"""Validation of edits, for the tests of this folder."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.hlo_passes.base import Pass, run_passes
from jaxpp.validation import MOST_TRIPS, Validate


@dataclass(frozen=True)
class Edit(Pass):
    """Whatever a test wants."""

    change: Callable[[ir.Module], None]

    def run(self, module: ir.Module) -> None:
        """Do it."""
        self.change(module)


def validate(text: str, *changes: Callable[[ir.Module], None], seed: int = 0, most_trips: int = MOST_TRIPS) -> str:
    """The summary of a validation of edits."""
    with make_context() as context:
        module = ir.Module.parse(text, context)
        validation = Validate(seed, most_trips)
        run_passes(module, [Edit(change) for change in changes], [validation])
        return validation.summary()


def becomes(text: str) -> Callable[[ir.Module], None]:
    """An edit that makes another module of it."""

    def change(module: ir.Module) -> None:
        other = ir.Module.parse(text, module.context)
        for op in list(module.body.operations):
            op.operation.erase()
        for op in list(other.body.operations):
            module.body.append(op)
        for name in other.operation.attributes:
            module.operation.attributes[name] = other.operation.attributes[name]

    return change


def nothing(module: ir.Module) -> None:
    del module
