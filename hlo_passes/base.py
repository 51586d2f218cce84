"""The interfaces of passes and of their observers, and the function that runs passes in order."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp._system import collector_paused
from jaxpp.ir.attributes import tables_read_once
from jaxpp.ir.mesh_lines import MeshLines
from jaxpp.ir.steps import Relay
from jaxpp.ir.write_lines import write_lines


@dataclass(frozen=True)
class Pass(ABC):
    """A named in-place rewrite of a module. A subclass that has fields, its options, is a dataclass.

    Attributes:
        name: as in `jaxpp-opt -p name`: for a class `InlineCalls` it is `inline-calls`.
        takes_lines: whether the pass takes the program as lines (`jaxpp.ir.mesh_lines`) from the pass before it. The
            mesh functions are written before any other pass runs.
    """

    name: ClassVar[str]
    takes_lines: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Names the pass, unless the class does it by itself."""
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @abstractmethod
    def run(self, module: ir.Module) -> None:
        """Rewrites `module`. Raises PassError on a module that breaks the preconditions in the class docstring."""


class Observer:
    """A watcher of a pipeline: printing, timing, verification and numeric validation are observers.

    This one does nothing. An observer must not change the module. A pass may use what the previous pass knew of it
    (`jaxpp.ir.steps`).

    Attributes:
        reads_program: whether the observer looks at mesh functions. They are not written if no observer does.
    """

    reads_program: ClassVar[bool] = True

    def before(self, step: Pass, module: ir.Module) -> None:
        """Runs before `step`."""

    def after(self, step: Pass, module: ir.Module) -> None:
        """Runs after `step`, unless `step` raised an error."""


STANDING: list[Observer] = []
"""Observers that every `run_passes` of this process adds to its own: with these the tests verify each phase."""


def run_passes(module: ir.Module, passes: Sequence[Pass], observers: Iterable[Observer] = ()) -> None:
    """Runs `passes` over `module` in order, in place, and calls the observers before and after each pass.

    After a pass the last observer comes first.

    Raises:
        PassError: when a pass refuses the module. The module is then in an unspecified state.
        RuntimeError: when an observer added or removed operations.
    """
    lines = run_unwritten(module, passes, observers)
    if lines is not None:
        write_lines(module, lines)


def run_unwritten(module: ir.Module, passes: Sequence[Pass], observers: Iterable[Observer] = ()) -> MeshLines | None:
    """Runs `passes` as `run_passes` does; if the last one takes lines, the module may lack the mesh functions.

    Returns their lines, which `write_lines` writes; None if the module is complete.
    """
    # Passes make many long-lived objects. To search them for cycles, the collector would take a quarter of the time.
    with module.context, ir.Location.unknown(), collector_paused(), tables_read_once():
        return _run(module, passes, (*STANDING, *observers))  # its objects are freed before the collector resumes


def _run(module: ir.Module, passes: Sequence[Pass], observers: Sequence[Observer]) -> MeshLines | None:
    relay = Relay(module)
    for step in passes:
        if not step.takes_lines:
            relay.write()
        for observer in observers:
            observer.before(step, module)
        with relay.lap():
            step.run(module)
        if any(observer.reads_program for observer in observers):
            relay.write()
        for observer in reversed(observers):
            observer.after(step, module)
        if observers:
            relay.check()
    return relay.lines if isinstance(relay.lines, MeshLines) else None
