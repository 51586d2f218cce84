"""What a pass is, how passes are named in text, and the one seam between them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from jaxlib.mlir import ir

from jaxpp._system import collector_paused
from jaxpp.ir.attributes import tables_read_once
from jaxpp.ir.steps import Relay


@dataclass(frozen=True)
class Pass(ABC):
    """A named rewrite of one module, in place. Its fields are its options, with their documented defaults."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, module: ir.Module) -> None:
        """Rewrite `module`. Raises PassError on a module that breaks the preconditions in the class docstring."""


class Observer(Protocol):
    """What watches a pipeline: printing, timing, verification and numeric validation are all observers.

    An observer must not change the module: a pass may go by what the one before it left there (`jaxpp.ir.steps`).
    """

    def before(self, step: Pass, module: ir.Module) -> None:
        """Called before `step` runs."""
        ...

    def after(self, step: Pass, module: ir.Module) -> None:
        """Called after `step` ran without an error."""
        ...


class Watch:
    """An observer that does nothing: the base of those that act only before or only after a pass."""

    def before(self, step: Pass, module: ir.Module) -> None:
        """Do nothing."""

    def after(self, step: Pass, module: ir.Module) -> None:
        """Do nothing."""


STANDING: list[Observer] = []
"""Observers of every run in this process, besides those that it is given: the tests verify each phase."""


def run_passes(module: ir.Module, passes: Sequence[Pass], observers: Iterable[Observer] = ()) -> None:
    """Run `passes` over `module` in order, in place, showing each step to the observers.

    Raises:
        PassError: a pass refused the module; the module is then in an unspecified state.
        RuntimeError: an observer added or removed operations.
    """
    # Passes make many objects that live on; searching them for cycles would take a quarter of their time.
    with module.context, ir.Location.unknown(), collector_paused(), tables_read_once():
        _run(module, passes, (*observers, *STANDING))  # all that it made is gone before the collector comes back


def _run(module: ir.Module, passes: Sequence[Pass], observers: Sequence[Observer]) -> None:
    relay = Relay(module)
    for step in passes:
        for observer in observers:
            observer.before(step, module)
        with relay.lap():
            step.run(module)
        for observer in observers:
            observer.after(step, module)
        if observers:
            relay.check()
