"""A `Validator` in a child process: XLA may crash on a module that somebody else made."""

import io
import os
import pickle
import platform
import signal
import subprocess
import sys
import tempfile
import traceback
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp._xla import NO_FMA
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import bytecode
from jaxpp.validation.compare import Difference, HostArray
from jaxpp.validation.first_nan import FirstNan
from jaxpp.validation.observed import WrongValue
from jaxpp.validation.records import Record
from jaxpp.validation.validator import Findings, Given, ValidationError, Validator

_CHILD = "from jaxpp.validation import apart; apart.serve()"


class Apart:
    """A `Validator` with these arguments, run in a child process. Raises ValidationError where that process dies."""

    def __init__(self, *arguments: Any) -> None:
        self._errors = tempfile.TemporaryFile()  # the child may write more than a pipe holds
        # -P: a folder named jaxpp in the current one is not the package.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "XLA_FLAGS": _flags()},
        )
        weakref.finalize(self, _end, self._child, self._errors)
        self._send(arguments)

    def refer(self, module: ir.Module, cannot: str, given: Given | None = None) -> None:
        """Runs the first module, as `Validator.refer`."""
        self._ask("refer", cannot, module, cannot, given)

    def check(self, module: ir.Module, subject: str, made: str) -> None:
        """Runs another module and compares its results, as `Validator.check`."""
        self._ask("check", f"{made} does not run", module, subject, made)

    def differences(self, module: ir.Module, subject: str, made: str) -> list[Difference]:
        """Runs another module and returns the results that differ, as `Validator.differences`."""
        return self._ask("differences", f"{made} does not run", module, subject, made)

    def differing(self, results: Mapping[int, HostArray]) -> list[Difference]:
        """Compares other results, as `Validator.differing`."""
        return self._ask("differing", "the results can't be compared", results)

    def first_nan(self, module: ir.Module) -> FirstNan | None:
        """Returns the first NaN, as `Validator.first_nan`."""
        return self._ask("first_nan", "the module does not run", module)

    def wrong_value(self, before: ir.Module, after: ir.Module) -> WrongValue | None:
        """Returns the first value that differs, as `Validator.wrong_value`."""
        return self._ask("wrong_value", "the module does not run", before, after)

    def record(self, module: ir.Module, arguments: Mapping[int, HostArray]) -> Record:
        """Runs a module with these arguments, as `Validator.record`."""
        return self._ask("record", "the module does not run", module, arguments)

    def findings(self) -> Findings:
        """Returns the findings of all comparisons."""
        return self._ask("findings", "nothing is known of the comparison")

    def _ask(self, method: str, cannot: str, *arguments: Any) -> Any:
        """Calls a method in the child; `cannot` begins the error message where the child dies."""
        self._send((method, [bytecode(each.operation) if isinstance(each, ir.Module) else each for each in arguments]))
        try:
            kind, *answer = pickle.load(self._child.stdout or io.BytesIO())
        except EOFError:
            raise ValidationError(f"{cannot}: XLA crashes on it: {self._how_it_ended()}") from None
        if kind == "refused":
            error = ValidationError(answer[0], hint=answer[1])
            error.source = answer[2]
            raise error
        if kind == "failed":
            raise RuntimeError(answer[0])
        return answer[0]

    def _send(self, message: Any) -> None:
        stdin = self._child.stdin or io.BytesIO()
        try:
            pickle.dump(message, stdin)
            stdin.flush()
        except BrokenPipeError:
            pass  # the child died, so reading its answer fails too

    def _how_it_ended(self) -> str:
        code = self._child.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        check = next((line.partition("] ")[2] for line in lines if "Check failed" in line or "] Fatal" in line), "")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{how}, {check[:300]}" if check else how


def _flags() -> str:
    """Returns XLA's flags for the child."""
    flags = os.environ.get("XLA_FLAGS", "")
    return flags if "xla_cpu_max_isa" in flags or platform.machine() != "x86_64" else f"{flags} {NO_FMA}"


def _end(child: "subprocess.Popen[bytes]", errors: BinaryIO) -> None:
    child.kill()
    child.communicate()
    errors.close()


def serve() -> None:
    """Runs the child: reads calls from stdin, and writes their results or errors to stdout."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # XLA's prints go to stderr, so that stdout has replies only
    validator = Validator(*pickle.load(sys.stdin.buffer))
    with make_context(), ir.Location.unknown():  # one context for all modules, as their types are compared
        while True:
            try:
                method, arguments = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            pickle.dump(_answer(validator, method, arguments), replies)
            replies.flush()


def _answer(validator: Validator, method: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    try:
        given = [ir.Module.parse(each) if isinstance(each, bytes) else each for each in arguments]
        return "returned", getattr(validator, method)(*given)
    except PassError as error:
        return "refused", error.message, error.hint, error.source
    except Exception:  # a bug: the parent raises it
        return "failed", traceback.format_exc()
