"""The run of `jaxpp-reduce`: it tries reductions, large ones first, and keeps those that the test still accepts."""

import argparse
import contextlib
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired

from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir.errors import PassError, one_line
from jaxpp.schedules.errors import ScheduleError
from jaxpp.tools import diagnostics, opt_run, source, streams
from jaxpp.tools.isolate import CrashError, ended_by
from jaxpp.tools.opt_pipeline import known_passes, pipeline_of
from jaxpp.tools.reductions import REDUCTIONS, Reduction, clean, size

Test = Callable[[str], tuple[bool, str]]
"""Whether the module in a file is interesting, and the output of the test."""


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Does what the command line asks for; returns the exit code. Writes the best module also after Ctrl-C."""
    steps = pipeline_of(options, known_passes(options, parser), parser) if options.test is None else ()
    name = streams.display_name(options.file)
    output = options.file if options.in_place else options.output
    with tempfile.TemporaryDirectory(prefix="jaxpp-reduce-") as folder:
        path = os.path.join(folder, "candidate.mlir")
        test = _command(options) if options.test is not None else _passes(options, parser)
        try:
            reducer = Reducer(_text(source.read(options.file, make_context(), steps=steps)), path, test)
            keeps, said = reducer.tests(reducer.best)
            if not keeps:
                wanted = "exit code 0" if options.expect is None else f"{options.expect!r}"
                found = one_line(said) or "no output"
                raise streams.InputError(
                    f"{name}: error: not interesting: expected {wanted} of the test, found {found}"
                )
            try:
                reducer.run()
            finally:  # after Ctrl-C too
                streams.write(output, reducer.best)
        except streams.InputError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def _text(module: ir.Module) -> str:
    return f"{str(module).rstrip()}\n"


class Reducer:
    """Makes a module smaller by delta debugging: each reduction is tried at all sites, then at halves, and so on.

    Attributes:
        best: the text of the smallest interesting module so far.
    """

    def __init__(self, text: str, path: str, test: Test) -> None:
        self.best = text
        self._path, self._test = path, test
        self._seen = {text}
        self._tests, self._start = 0, time.monotonic()
        self._size = self._first = self._measure(text)

    def run(self) -> None:
        """Reduces the module until no reduction of a single site is accepted."""
        level, goes_on = 0, True
        while goes_on:
            before, chunks = self.best, [self._shrink(reduction, level) for reduction in REDUCTIONS]
            goes_on = max(chunks) > 1 or self.best != before
            level += 1
        self._report(f"{self._first} -> {self._size} operations in {self._tests} tests")

    def tests(self, text: str) -> tuple[bool, str]:
        """Whether a module is interesting, and the output of the test."""
        self._tests += 1
        with open(self._path, "w", encoding="utf-8") as file:
            file.write(text)
        return self._test(self._path)

    def _shrink(self, reduction: Reduction, level: int) -> int:
        """Tries a reduction at neighbouring sites, 2^level chunks of them; returns the size of a chunk."""
        count = self._count(reduction)
        chunk = max(1, count >> level)
        position = 0
        while position < count:
            if self._try(reduction, position, position + chunk):
                count = self._count(reduction)
            else:
                position += chunk
        return chunk

    def _count(self, reduction: Reduction) -> int:
        with make_context() as context, ir.Location.unknown():
            return len(reduction.sites(ir.Module.parse(self.best, context)))

    def _measure(self, text: str) -> int:
        with make_context() as context:
            return size(ir.Module.parse(text, context))

    def _try(self, reduction: Reduction, first: int, end: int) -> bool:
        """Applies a reduction at some sites of the best module; takes the result if it is interesting."""
        text = self._reduced(reduction, first, end)
        if text is None or text in self._seen:
            return False
        self._seen.add(text)
        if not self.tests(text)[0]:
            return False
        before, now = self._size, self._measure(text)
        self._report(f"{reduction.name}: {before} -> {now} operations, {len(self.best)} -> {len(text)} characters")
        self.best, self._size = text, now
        return True

    def _reduced(self, reduction: Reduction, first: int, end: int) -> str | None:
        """Returns the text of a smaller module; None if there is none, or it does not verify."""
        context = make_context()
        with context, ir.Location.unknown(), diagnostics.collected(context, self._path):
            try:
                module = ir.Module.parse(self.best, context)
                module = reduction.apply(module, reduction.sites(module)[first:end])
                clean(module)
                return _text(module) if module.operation.verify() else None
            except (ir.MLIRError, ValueError, PassError, ScheduleError, CrashError):
                return None

    def _report(self, line: str) -> None:
        print(f"{line} ({time.monotonic() - self._start:.1f} s)", file=sys.stderr, flush=True)


def _command(options: argparse.Namespace) -> Test:
    """Returns the test that runs a shell command."""

    def test(path: str) -> tuple[bool, str]:
        command = f"{options.test} {shlex.quote(path)}"
        with Popen(command, shell=True, start_new_session=True, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT) as child:
            try:
                output, _ = child.communicate(timeout=options.timeout)
            except TimeoutExpired:
                return False, f"no end within {options.timeout} s"
            finally:  # also what the shell started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        text = output.decode(errors="replace")
        return (child.returncode == 0 if options.expect is None else options.expect in text), text

    return test


def _passes(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Test:
    """Returns the test that runs `jaxpp-opt` in a copy of this process."""
    options = argparse.Namespace(**{**vars(options), "output": os.devnull, "reproducer": ""})

    def test(path: str) -> tuple[bool, str]:
        options.file = path
        with tempfile.TemporaryFile("w+") as output:

            def work() -> None:
                signal.alarm(options.timeout)
                os.dup2(output.fileno(), 2)
                with contextlib.redirect_stderr(output):
                    opt_run.run(options, parser)
                    output.flush()

            ended = ended_by(work)
            output.seek(0)
            text = f"{output.read()}{ended}"
            return options.expect in text, text

    return test
