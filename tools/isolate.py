"""Passes that are tried in a child process first: C++ may abort there, instead of here."""

import faulthandler
import os
import signal
import warnings
from collections.abc import Callable

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Observer, Pass
from jaxpp.hlo_passes.mlir_pass import MlirPass


class CrashError(Exception):
    """The pass `step` ends its process by a signal."""

    def __init__(self, step: Pass, signal_name: str) -> None:
        super().__init__(f"pass '{step.name}' crashes on this module: {signal_name}")
        self.step = step


class Isolate(Observer):
    """Tries each pass of MLIR in a child process before it runs here; with `every`, each pass."""

    def __init__(self, every: bool) -> None:
        self._every = every

    def before(self, step: Pass, module: ir.Module) -> None:
        """Tries the pass. Raises CrashError if its process dies."""
        if not self._every and not isinstance(step, MlirPass):
            return
        if found := ended_by(lambda: step.run(module)):
            raise CrashError(step, found)


def ended_by(work: Callable[[], object]) -> str:
    """Does some work in a copy of this process; returns the name of the signal that ended it, or "".

    Errors of Python are left to the caller, who meets them again. The work must need no other thread.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of threads, which the child lacks
        child = os.fork()
    if not child:
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(silent, stream)
            faulthandler.disable()
            work()
        finally:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return signal.Signals(-code).name if code < 0 else ""
