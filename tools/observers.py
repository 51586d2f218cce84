"""The observers of `jaxpp-opt`: they verify, print and time the passes."""

import difflib
import time
from collections.abc import Collection
from typing import Literal, TextIO

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass, VerifyOwn
from jaxpp.hlo_passes.program.unroll_microbatches import UnrollMicrobatches
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import callee, functions, kind_and_stage, operations
from jaxpp.ir.kinds import HALVES
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.tools import diagnostics


class BrokenModuleError(Exception):
    """A pass of jaxpp left a module that does not verify, which is a bug. MLIR's diagnostics describe the fault."""


class VerifyEach(VerifyOwn):
    """Verifies the module after every pass. Raises BrokenModuleError, or OwnPassError for a pass of the user."""

    def after(self, step: Pass, module: ir.Module) -> None:
        """Verifies the module."""
        super().after(step, module)
        try:
            module.operation.verify()
        except ir.MLIRError:
            raise BrokenModuleError(f"pass '{step.name}' left an invalid module") from None


class Print(Observer):
    """Prints the module before or after the passes of the given names, or of all (None)."""

    def __init__(self, stream: TextIO, when: Literal["before", "after"], names: Collection[str] | None) -> None:
        self._stream, self._when, self._names = stream, when, names

    def before(self, step: Pass, module: ir.Module) -> None:
        """Prints the module, if that is asked for before this pass."""
        self._print("before", step, module)

    def after(self, step: Pass, module: ir.Module) -> None:
        """Prints the module, if that is asked for after this pass."""
        self._print("after", step, module)

    def _print(self, when: str, step: Pass, module: ir.Module) -> None:
        if when == self._when and (self._names is None or step.name in self._names):
            print(f"// -----// {when} {step.name} //----- //\n{module}", file=self._stream)


class PrintChange(Observer):
    """Prints the lines that each pass changes, as a diff; for a pass that changes nothing, only its name."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text: list[str] = []

    def before(self, step: Pass, module: ir.Module) -> None:
        """Keeps the text of the module."""
        self._text = str(module).splitlines()

    def after(self, step: Pass, module: ir.Module) -> None:
        """Prints the difference to the text before."""
        lines = list(difflib.unified_diff(self._text, str(module).splitlines(), lineterm=""))[2:]
        text = "\n".join(lines) or "(no change)"
        print(f"// -----// after {step.name} //----- //\n{text}", file=self._stream)


class IdleTasks(Observer):
    """Finds the kinds of tasks and the stages in a schedule for which the module has no work.

    Attributes:
        lines: a warning for each kind and each stage.
    """

    reads_program = False

    def __init__(self, name: str) -> None:
        self.lines: list[str] = []
        self._name = name

    def before(self, step: Pass, module: ir.Module) -> None:
        """Compares the tasks of the loop with those of its schedule, right before they are unrolled."""
        if not isinstance(step, UnrollMicrobatches):
            return
        try:
            loop = MicrobatchLoop.of(module)
            tasks = [(task.kind, task.stage) for task in loop.plan]
        except PassError:
            return  # the pass reports the error
        by_name = functions(module)
        calls = (op for op in operations(loop.body) if op.name == "func.call")
        there = {kind_and_stage(by_name[callee(op)]) for op in calls}
        kinds = {kind for kind, _ in there}
        if not kinds.isdisjoint(HALVES):
            kinds.add("backward")  # of a stage that is split, the schedule may have both
        elif "backward" in kinds:
            kinds.update(HALVES)
        idle = [f"tasks of the kind {kind}" for kind in dict.fromkeys(kind for kind, _ in tasks) if kind not in kinds]
        stages = {stage for _, stage in tasks} - {stage % loop.stages_per_slice for _, stage in there}
        idle += [f"stage {stage}" for stage in sorted(stages)]
        place = diagnostics.place(loop.op.location, self._name)
        self.lines += [f"{place}: warning: the schedule has {what}, the module has no work for it" for what in idle]


class Timing(Observer):
    """Times the passes. It is the last observer, so that the others' time does not count.

    Attributes:
        step: the last pass that began, for messages about errors; None before the first one.
    """

    reads_program = False

    def __init__(self) -> None:
        self.step: Pass | None = None
        self._began = 0.0
        self._seconds: list[tuple[str, float]] = []

    def before(self, step: Pass, module: ir.Module) -> None:
        """Starts the clock."""
        self.step, self._began = step, time.perf_counter()

    def after(self, step: Pass, module: ir.Module) -> None:
        """Records the time of the pass."""
        self._seconds.append((step.name, time.perf_counter() - self._began))

    def table(self) -> str:
        """Returns one line per pass in the order in which they ran, and the total."""
        total = sum(seconds for _, seconds in self._seconds)
        width = max([len(name) for name, _ in self._seconds] + [len("total")])
        rows = [*self._seconds, ("total", total)]
        lines = [f"{n:<{width}}  {1e3 * s:>10.2f} ms  {100 * s / total if total else 0:>5.1f} %" for n, s in rows]
        return "\n".join([f"{'pass':<{width}}  {'time':>13}  {'share':>7}", *lines])
