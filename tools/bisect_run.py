"""The run of `jaxpp-bisect`."""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.errors import PassError
from jaxpp.tools import diagnostics, source, streams
from jaxpp.tools.opt_pipeline import known_passes, pipeline_of
from jaxpp.validation import MOST_TRIPS
from jaxpp.validation.apart import Apart
from jaxpp.validation.bisection import Bisection, WrongResult, refer
from jaxpp.validation.compare import Tolerance
from jaxpp.validation.records import Record, is_record

_ADVICE = "jaxpp-bisect on the lowered step, with the passes that made these programs"


def search(options: argparse.Namespace, parser: argparse.ArgumentParser, words: str) -> int:
    """Searches among the passes; returns the exit code. `words` are the arguments of the command line."""
    steps, name = pipeline_of(options, known_passes(options, parser), parser), streams.display_name(options.file)

    def advice(step: Pass) -> str:
        return f"jaxpp-reduce {words} --stop-after {step.name} --validate --expect 'changed what the module computes'"

    context = make_context()
    with diagnostics.collected(context, name) as lines:
        try:
            module = source.read(options.file, context, steps=steps)
            new = partial(refer, options.seed, options.validate_trips or MOST_TRIPS, options.tolerance, module)
            bisection = Bisection(module, steps, new, lambda line: print(line, file=sys.stderr, flush=True))
            if options.nan:
                found = bisection.validator.first_nan(bisection.after(len(steps)))
            else:
                found = bisection.wrong_pass(advice)
        except streams.InputError as error:
            print(error, file=sys.stderr)
            return 1
        except PassError as error:
            place = diagnostics.with_name(error.source, name)
            print(*lines, f"{place}: error: {error.message}", sep="\n", file=sys.stderr)
            return 1
    agree = "no value is NaN" if options.nan else "the results agree"
    return _told(found, f"{name}: {agree} after {len(steps)} passes")


def compare(options: argparse.Namespace) -> int:
    """Compares two modules or records; returns the exit code."""
    names = [streams.display_name(each) for each in (options.file, options.other)]
    context = make_context()
    try:
        one, other = (_read(each, context) for each in (options.file, options.other))
        if isinstance(one, ir.Module) and isinstance(other, ir.Module):
            found = _of_modules(one, other, names, options)
        else:
            found = _of_records(one, other, names, options)
    except streams.InputError as error:
        print(error, file=sys.stderr)
        return 1
    except PassError as error:
        print(diagnostics.explained(error, names[1]), file=sys.stderr)
        return 1
    return _told(found, f"{names[1]}: the results agree with {names[0]}")


def _told(found: Any, agree: str) -> int:
    print(found or agree)
    return int(found is not None)


def _read(path: str, context: ir.Context) -> ir.Module | Record:
    """Reads a module or a record. Raises InputError."""
    data = streams.read(path, "an MLIR module or a record")
    if not is_record(data):
        return source.parse(data, path, context, whole=True)
    try:
        return Record.from_bytes(data)
    except ValueError as error:
        raise streams.refused(path, str(error)) from None


def _of_modules(one: ir.Module, other: ir.Module, names: list[str], options: argparse.Namespace) -> WrongResult | None:
    validator = Apart(options.seed, options.validate_trips or MOST_TRIPS, options.tolerance)
    validator.refer(one, f"{names[0]} can't be run")
    differences = validator.differences(other, names[1], names[1])
    if not differences:
        return None
    return WrongResult.of(f"{names[1]} beside {names[0]}", differences, _ADVICE, validator.wrong_value(one, other))


def _of_records(
    one: ir.Module | Record, other: ir.Module | Record, names: list[str], options: argparse.Namespace
) -> WrongResult | None:
    """Compares records; a module first runs with the arguments of the record beside it."""
    arguments = next(each.arguments for each in (one, other) if isinstance(each, Record))
    records = [each if isinstance(each, Record) else _recorded(each, arguments, options) for each in (one, other)]
    own = options.tolerance
    tolerance = Tolerance(max(each.relative for each in records)) if own is None else Tolerance(own, exact=True)
    try:
        differences = records[0].differences(records[1], tolerance)
    except ValueError as error:
        raise streams.refused(names[1], str(error)) from None
    if not differences:
        return None
    value = records[0].wrong_value(records[1], tolerance)
    return WrongResult.of(f"{names[1]} beside {names[0]}", differences, _ADVICE, value)


def _recorded(module: ir.Module, arguments: Mapping[int, Any], options: argparse.Namespace) -> Record:
    return Apart(options.seed, options.validate_trips or MOST_TRIPS, None).record(module, arguments)
