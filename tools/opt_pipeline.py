"""The passes that the command line of `jaxpp-opt` asks for."""

import argparse
import inspect
import re
from collections.abc import Sequence

from jaxpp._plugins import PlugInError
from jaxpp.hlo_passes import PIPELINES
from jaxpp.hlo_passes.base import Pass
from jaxpp.tools.known_passes import KnownPasses
from jaxpp.tools.opt_arguments import pipeline_parameters
from jaxpp.tools.pipeline_text import PipelineTextError, parse_pipeline, unknown

_OPTIONS = {"keep": "recompute", "stages": "offload"}
"""Options of passes that have another name in a pipeline."""
_LISTS = {"recompute", "offload", "memory_limit", "host_memory_limit"}


def known_passes(options: argparse.Namespace, parser: argparse.ArgumentParser) -> KnownPasses:
    """Returns the passes that the command line can name. A mistake in it ends in `parser.error` (exit code 2)."""
    try:
        return KnownPasses(options.load_pass)
    except PlugInError as error:
        parser.error(str(error))


def pipeline_of(options: argparse.Namespace, known: KnownPasses, parser: argparse.ArgumentParser) -> tuple[Pass, ...]:
    """Returns the passes that the command line asks for. A mistake in it ends in `parser.error` (exit code 2)."""
    if options.pass_doc is not None and options.pass_doc not in known:
        parser.error(unknown("pass", options.pass_doc, known))
    given = [each.flag for name, each in pipeline_parameters().items() if getattr(options, name) is not None]
    if mistake := _exclusive(options) or _for_a_pipeline(options, given):
        parser.error(mistake)
    try:
        is_named = options.pipeline is not None
        steps = _named_pipeline(options) if is_named else parse_pipeline(options.passes or "", known)
        steps = _selected(steps, options)
        for name in (*(options.print_before or ()), *(options.print_after or ())):
            if name not in known and name not in [step.name for step in steps]:
                raise PipelineTextError(unknown("pass", name, known))
    except (PipelineTextError, PlugInError) as error:
        parser.error(str(error))
    return steps


def _exclusive(options: argparse.Namespace) -> str:
    """Returns the error for options that exclude each other, or ""."""
    if options.emit_bytecode and options.split_input_file:
        return "--emit-bytecode writes one module; it does not go with --split-input-file"
    if options.pipeline is not None and options.passes is not None:
        return "-p and --pipeline exclude each other"
    own = (options.pipeline, options.passes, options.start_after, options.stop_after)
    if options.run_reproducer and (own != (None,) * 4 or options.disable or options.print_pipeline):
        return "--run-reproducer takes the passes from the file, without options that name or print passes"
    if options.op_stats and (options.emit_bytecode or options.show_dialects):
        return "--op-stats prints no module: it does not go with --emit-bytecode and --show-dialects"
    if options.run_reproducer and options.split_input_file:
        return "--run-reproducer takes one module; it does not go with --split-input-file"
    if options.compare and (options.file != "-" or options.passes is not None or options.pipeline or options.validate):
        return "--compare A B takes two files, and runs no pass"
    return ""


def _for_a_pipeline(options: argparse.Namespace, given: Sequence[str]) -> str:
    if options.pipeline is None and given:
        return f"{given[0]} is for --pipeline; a pass takes options as name{{option=value}}"
    return ""


def _named_pipeline(options: argparse.Namespace) -> tuple[Pass, ...]:
    name = options.pipeline
    if name not in PIPELINES:
        raise PipelineTextError(unknown("pipeline", name, PIPELINES))
    values = {key: getattr(options, key) for key in pipeline_parameters() if getattr(options, key) is not None}
    for key in values.keys() - inspect.signature(PIPELINES[name]).parameters.keys():
        raise PipelineTextError(f"pipeline '{name}' takes no {pipeline_parameters()[key].flag}")
    # Lists have commas on the command line, and blanks in the options of these passes.
    values |= {key: values[key].replace(",", " ") for key in _LISTS & values.keys()}
    try:
        return PIPELINES[name](**values)
    except ValueError as error:
        raise PipelineTextError(f"pipeline '{name}': {_with_flag(str(error))}") from None


def _selected(steps: tuple[Pass, ...], options: argparse.Namespace) -> tuple[Pass, ...]:
    """Returns the passes without those that --start-after, --stop-after and --disable leave out."""
    names = [step.name.partition("{")[0] for step in steps]  # of a pass of MLIR, without its options
    flags = {"--start-after": [options.start_after], "--stop-after": [options.stop_after], "--disable": options.disable}
    for flag, values in flags.items():
        for value in values:
            if value is not None and value not in names:
                raise PipelineTextError(f"{flag}: {unknown('pass', value, dict.fromkeys(names))}")
    first = names.index(options.start_after) + 1 if options.start_after else 0
    end = len(names) - names[::-1].index(options.stop_after) if options.stop_after else len(names)
    if first > end:
        raise PipelineTextError(f"--start-after {options.start_after} is after --stop-after {options.stop_after}")
    return tuple(step for step in steps[first:end] if step.name.partition("{")[0] not in options.disable)


def _with_flag(message: str) -> str:
    """Returns the message of a pass about an option, with the flag that set it instead of the option's name."""
    option = re.split(r"\W", message, maxsplit=1)[0]
    known = pipeline_parameters().get(_OPTIONS.get(option, option))
    return message.replace(option, known.flag, 1) if known else message
