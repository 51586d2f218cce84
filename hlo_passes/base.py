"""What a pass is, how passes are named in text, and the one seam between them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from jaxlib.mlir import ir

from jaxpp.schedules.collector import collector_paused


class PassError(Exception):
    """A pass refused a module: the user's mistake, in one short message.

    `location` is that of the guilty op (JAX puts the user's file and line in it), `message` says what was found and
    expected, `hint` what to do.
    """

    def __init__(self, message: str, *, location: ir.Location | None = None, hint: str = "") -> None:
        from jaxpp.hlo_passes.ir.locations import source_of

        self.message = message
        self.hint = hint
        self.source = source_of(location) if location is not None else None
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}error: {self.message}" + (f"\n  {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Pass(ABC):
    """A named rewrite of one module, in place. Its fields are its options, with their documented defaults."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, module: ir.Module) -> None:
        """Rewrite `module`. Raises PassError on a module that breaks the preconditions in the class docstring."""


class Observer(Protocol):
    """What watches a pipeline: printing, timing, verification and numeric validation are all observers."""

    def before(self, step: Pass, module: ir.Module) -> None:
        """Called before `step` runs."""
        ...

    def after(self, step: Pass, module: ir.Module) -> None:
        """Called after `step` ran without an error."""
        ...


def run_passes(module: ir.Module, passes: Sequence[Pass], observers: Iterable[Observer] = ()) -> None:
    """Run `passes` over `module` in order, in place, showing each step to the observers.

    Raises:
        PassError: a pass refused the module; the module is then in an unspecified state.
    """
    observers = tuple(observers)
    # Passes make many objects that live on; searching them for cycles would take a quarter of their time.
    with module.context, ir.Location.unknown(), collector_paused():
        for step in passes:
            for observer in observers:
                observer.before(step, module)
            step.run(module)
            for observer in observers:
                observer.after(step, module)
