"""The run of `jaxpp-opt`: it reads modules, runs the passes under observers, and writes what comes out."""

import argparse
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp._plugins import PlugInError
from jaxpp._versions import UnsupportedJaxError
from jaxpp.hlo_passes.base import Observer, OwnPassError, Pass, is_own, run_passes
from jaxpp.hlo_passes.mlir_pass import MlirPass
from jaxpp.hlo_passes.pipelines import VerifyPhases
from jaxpp.hlo_passes.whole_sums import WholeSumsOfProgram
from jaxpp.ir.errors import PassError, one_line
from jaxpp.ir.functions import bytecode
from jaxpp.tools import diagnostics, listing, observers, op_stats, reproducer, source, streams
from jaxpp.tools.expected import Expectations
from jaxpp.tools.isolate import CrashError, Isolate
from jaxpp.tools.known_passes import KnownPasses
from jaxpp.tools.opt_pipeline import known_passes, pipeline_of
from jaxpp.tools.pipeline_text import PipelineTextError, parse_pipeline, pipeline_text
from jaxpp.validation import MOST_TRIPS, Validate, compare_modules

OK, BAD_INPUT, INTERNAL_ERROR = 0, 1, 70


@dataclass
class _Run:
    """One invocation of the tool: its options, and the exit code so far."""

    options: argparse.Namespace
    known: KnownPasses
    steps: tuple[Pass, ...]
    timing: observers.Timing = field(default_factory=observers.Timing)
    code: int = OK

    @property
    def name(self) -> str:
        """The name of the input in messages."""
        return streams.display_name(self.options.file)

    @property
    def trips(self) -> int:
        """The most iterations of a loop in a validation."""
        return self.options.validate_trips or MOST_TRIPS

    def report(self, code: int, *messages: str) -> None:
        """Prints messages, and raises the exit code to `code` if it was lower."""
        for message in messages:
            print(message, file=sys.stderr)
        self.code = max(self.code, code)


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Does what the command line asks for; returns the exit code."""
    known = known_passes(options, parser)
    steps = pipeline_of(options, known, parser)
    try:
        answer = _answer(options, known, steps)
    except PlugInError as error:
        parser.error(str(error))
    if answer is not None:
        print(answer)
        return OK
    this = _Run(options, known, steps)
    if options.compare:
        _compare(this)
        return this.code
    output = _transform(this)
    if options.time_passes:
        print(this.timing.table(), file=sys.stderr)
    if this.code == OK and not options.verify_diagnostics:
        try:
            streams.write(options.output, output if options.emit_bytecode else output.decode())
        except streams.InputError as error:
            this.report(BAD_INPUT, str(error))
    return this.code


def _answer(options: argparse.Namespace, known: KnownPasses, steps: tuple[Pass, ...]) -> str | None:
    """Returns the text that the flags ask for in place of a run; None if they ask for a run."""
    if options.version:
        return listing.versions()
    if options.print_pipeline:
        return pipeline_text(steps)
    if options.pass_doc is not None:
        return listing.pass_doc(known[options.pass_doc])
    return listing.list_passes(known) if options.list_passes else None


def _transform(run: _Run) -> bytes:
    """Returns the result, as bytes. The parts of a split input are independent: an error in one stops no other."""
    try:
        data = streams.read(run.options.file, source.EXPECTED, run.options.max_input)
        if run.options.run_reproducer:
            data = _reproduced(run, data)
    except streams.InputError as error:
        run.report(BAD_INPUT, str(error))
        return b""
    parts = source.split(data) if run.options.split_input_file else [data]
    return b"// -----\n".join([_transform_part(run, part) for part in parts])


def _reproduced(run: _Run, data: bytes) -> bytes:
    """Returns the module of a reproducer, and takes its passes. Raises InputError if the input is none."""
    found = reproducer.read(data.decode(errors="replace"))
    if found is None:
        what = "no reproducer: expected a resource mlir_reproducer with a pipeline"
        raise streams.refused(run.name, what)
    try:
        run.steps = parse_pipeline(found[1], run.known)
    except (PipelineTextError, PlugInError) as error:
        raise streams.refused(run.name, str(error)) from None
    return found[0].encode()


def _transform_part(run: _Run, data: bytes) -> bytes:
    """Transforms one module, from bytes to bytes; returns b"" if a pass failed."""
    results = list[bytes]()

    def transform(context: ir.Context) -> list[str]:
        module = _parse(run, data, context)
        if run.options.show_dialects:
            results.append(listing.dialects(module).encode())
            return []
        watching = _observers(run)
        run_passes(module, run.steps, watching)
        results.append(_result(module, run.options))
        warnings = [line for each in watching if isinstance(each, observers.IdleTasks) for line in each.lines]
        return warnings + [each.summary() for each in watching if isinstance(each, Validate)]

    _guarded(run, run.options.file, transform, data)
    return b"".join(results)


def _parse(run: _Run, data: bytes, context: ir.Context) -> ir.Module:
    whole = not (run.options.split_input_file or run.options.run_reproducer)
    return source.parse(data, run.options.file, context, whole=whole, steps=run.steps)


def _compare(run: _Run) -> None:
    """Runs two modules, and reports whether their results agree."""
    options, (one, other) = run.options, run.options.compare

    def compare(context: ir.Context) -> list[str]:
        modules = [source.read(path, context, options.max_input) for path in options.compare]
        names = streams.display_name(one), streams.display_name(other)
        return [compare_modules(modules, names, options.seed, run.trips, options.tolerance)]

    _guarded(run, other, compare)


def _guarded(run: _Run, path: str, work: Callable[[ir.Context], list[str]], data: bytes | None = None) -> None:
    """Runs `work`; reports MLIR's diagnostics and the lines that `work` returns, or its error.

    The user sees a traceback with --debug only. `data` is the module, to reproduce the failure of a pass.
    """
    name = streams.display_name(path)
    lines: list[str] = []
    run.timing.step = None
    try:
        context = make_context()
        with diagnostics.collected(context, name) as lines:
            said = work(context)
        code, messages = OK, [*lines, *said]
    except (Exception, SystemExit) as error:  # of any kind: this is the boundary of the tool
        step = error.step if isinstance(error, CrashError) else run.timing.step
        code, message = _explain(error, step, name)
        messages = [*lines, message]
        if run.options.debug:
            messages += traceback.format_exception(error)
        if data is not None and step is not None and not isinstance(error, UnsupportedJaxError):
            is_bug = code == INTERNAL_ERROR or isinstance(error, OwnPassError)
            messages += _reproduce(run, data, step, is_bug=is_bug)
    if run.options.verify_diagnostics and data is not None:
        wrong = Expectations(data.decode(errors="replace"), name).compared(messages)
        code, messages = (BAD_INPUT if wrong else OK), wrong
    run.report(code, *messages)


def _reproduce(run: _Run, data: bytes, failed: Pass, *, is_bug: bool) -> list[str]:
    """Writes a reproducer, after a bug in a pass or if the user asks for one; returns lines about it."""
    path = run.options.reproducer
    if path == "" or (path is None and not is_bug):
        return []
    try:
        name = reproducer.write(_parse(run, data, make_context()), run.steps, failed, path)
    except Exception as error:  # of any kind: the first error is the one to tell
        return [f"{run.name}: note: no reproducer: {one_line(str(error))}"]
    loads = "".join(f" --load-pass {each}" for each in run.options.load_pass) + " --isolate" * run.options.isolate
    return [f"{run.name}: note: {name} reproduces it: jaxpp-opt {name} --run-reproducer{loads}"]


def _explain(error: BaseException, step: Pass | None, name: str) -> tuple[int, str]:
    """Returns the exit code and the message for an error, which was raised in the pass `step` unless that is None."""
    if isinstance(error, streams.InputError):
        return BAD_INPUT, str(error)
    if isinstance(error, PassError):
        shows = " (--debug shows the traceback)" if isinstance(error, OwnPassError) and error.__cause__ else ""
        return BAD_INPUT, diagnostics.explained(error, name) + shows
    if isinstance(error, UnsupportedJaxError):
        return INTERNAL_ERROR, f"{name}: error: {error}"
    if isinstance(error, CrashError):
        is_ours = step is not None and not isinstance(step, MlirPass) and not is_own(step)
        return (INTERNAL_ERROR if is_ours else BAD_INPUT), f"{name}: error: {error}"
    if isinstance(error, observers.BrokenModuleError):
        return INTERNAL_ERROR, f"{name}: error: internal error: {error}"
    where = f" in pass '{step.name}'" if step else ""
    what = f"{type(error).__name__}: {one_line(str(error))}"
    return INTERNAL_ERROR, f"{name}: error: internal error{where}: {what} (--debug shows where)"


def _observers(run: _Run) -> list[Observer]:
    """Returns all observers of this run. After a pass the last one comes first: timing, verifying, then printing."""
    options = run.options
    watching: list[Observer] = [observers.IdleTasks(run.name)]
    if options.validate:
        watching += [
            Validate(options.seed, run.trips, options.tolerance, apart=True),
            VerifyPhases(),
            WholeSumsOfProgram(),
        ]
    if options.print_before_all or options.print_before:
        names = None if options.print_before_all else set(options.print_before)
        watching.append(observers.Print(sys.stderr, "before", names))
    if options.print_after_all or options.print_after:
        names = None if options.print_after_all else set(options.print_after)
        watching.append(observers.Print(sys.stderr, "after", names))
    if options.print_after_change:
        watching.append(observers.PrintChange(sys.stderr))
    if options.verify_each:
        watching.append(observers.VerifyEach())
    return [*watching, Isolate(options.isolate), run.timing]


def _result(module: ir.Module, options: argparse.Namespace) -> bytes:
    """Returns what the run prints of the module that came out."""
    if options.op_stats:
        rows = op_stats.rows_of(module)
        return (op_stats.as_json(rows) if options.op_stats == "json" else op_stats.as_table(rows)).encode()
    if options.emit_bytecode:
        return bytecode(module.operation)
    text = module.operation.get_asm(
        enable_debug_info=options.mlir_print_debuginfo, large_elements_limit=options.mlir_elide_elementsattrs_if_larger
    )
    return str(text).rstrip("\n").encode() + b"\n"
