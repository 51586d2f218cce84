"""The interfaces of passes and of their observers, and the function that runs passes in order."""

import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp._system import collector_paused
from jaxpp._versions import UnsupportedJaxError
from jaxpp.ir.attributes import tables_read_once
from jaxpp.ir.errors import PassError, one_line
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


class OwnPassError(PassError):
    """A pass of the user raised another error than a PassError, or left an invalid module: a bug of that pass."""


def is_own(step: Pass) -> bool:
    """Whether a pass is the user's, and not jaxpp's."""
    return _package(type(step).__module__) != _package(__name__)


def _package(module: str) -> str:
    return module.partition(".")[0]


def run_pass(step: Pass, module: ir.Module) -> None:
    """Runs one pass. For any error in a pass of the user raises OwnPassError, which names the user's file and line."""
    try:
        step.run(module)
    except (PassError, UnsupportedJaxError):
        raise
    except (Exception, SystemExit) as error:  # of any kind: the pass is not ours
        if not is_own(step):
            raise
        raise _own_error(step, error) from error


def _own_error(step: Pass, error: BaseException) -> OwnPassError:
    """Returns the error that names the user's line: the last one before it was raised."""
    package, places = _package(type(step).__module__), list[tuple[str, int]]()
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _package(str(frame.f_globals.get("__name__"))) == package:
            places.append((frame.f_code.co_filename, line))
    what = f"{type(error).__name__}: {error}"
    if "Traceback (most recent call last)" in what:  # of a callback of MLIR, which holds the error as text
        files, frames = {file for file, _ in places}, re.findall(r'File "(.+)", line (\d+)', what)
        places += [(file, int(line)) for file, line in frames if file in files]
        what = what.splitlines()[-1]
    raised = OwnPassError(f"pass '{step.name}' raised {one_line(what)}")
    raised.source = "{}:{}".format(*places[-1]) if places else None
    return raised


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


class VerifyOwn(Observer):
    """Verifies the module after each pass of the user. Raises OwnPassError."""

    def after(self, step: Pass, module: ir.Module) -> None:
        """Verifies the module, unless the pass is jaxpp's."""
        if not is_own(step):
            return
        try:
            module.operation.verify()
        except ir.MLIRError as error:
            message, found = f"pass '{step.name}' made an invalid module", list(error.error_diagnostics)
            if not found:  # a handler of diagnostics has them
                raise OwnPassError(message) from None
            location = ir.Location.from_attr(found[0].location.attr)  # of its own class, unlike that of a diagnostic
            raise OwnPassError(f"{message}: {found[0].message}", location=location) from None


STANDING: list[Observer] = []
"""Observers that every `run_passes` of this process adds to its own: with these the tests verify each phase."""


def run_passes(module: ir.Module, passes: Sequence[Pass], observers: Iterable[Observer] = ()) -> None:
    """Runs `passes` over `module` in order, in place, and calls the observers before and after each pass.

    After a pass the last observer comes first.

    Raises:
        PassError: when a pass refuses the module, or a pass of the user fails. The module is then in an unspecified
            state.
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
            run_pass(step, module)
        if any(observer.reads_program for observer in observers):
            relay.write()
        for observer in reversed(observers):
            observer.after(step, module)
        if observers:
            relay.check()
    return relay.lines if isinstance(relay.lines, MeshLines) else None
