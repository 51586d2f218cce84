"""The texts that `jaxpp-opt --list-passes`, `--pass-doc` and `--show-dialects` print."""

import inspect
import re
from collections import Counter
from importlib.metadata import version

from jaxlib.mlir import ir

import jaxpp
from jaxpp._plugins import PlugInError
from jaxpp.hlo_passes import PIPELINES
from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.functions import nested
from jaxpp.tools.known_passes import KnownPasses
from jaxpp.tools.pipeline_text import Option, options_of, quote


def versions() -> str:
    """Returns the versions of jaxpp, jax and jaxlib."""
    return ", ".join([f"jaxpp {jaxpp.__version__}", *(f"{each} {version(each)}" for each in ("jax", "jaxlib"))])


def list_passes(known: KnownPasses) -> str:
    """Lists every pass with its first line and its options, and every pipeline; for a broken plug-in its error."""
    lines: list[str] = []
    for name in known:
        try:
            lines.append(f"{name}\n    {first_line(known[name])}")
            lines += [f"    {describe_option(option)}" for option in options_of(known[name])]
        except PlugInError as error:
            lines.append(f"{name}\n    {error}")
    lines += known.shadowed
    for name, pipeline in PIPELINES.items():
        lines.append(f"--pipeline {name}\n    {first_line(pipeline)}")
    return "\n".join(lines)


def pass_doc(step: type[Pass]) -> str:
    """Returns the name of a pass and its whole docstring."""
    lines = [step.name, "", inspect.getdoc(step) or "", "", *map(describe_option, options_of(step))]
    return "\n".join(lines).rstrip()


def dialects(module: ir.Module) -> str:
    """Lists the dialects of the operations of a module, with their numbers of operations."""
    counts = Counter(op.name.partition(".")[0] for op in nested(module.operation))
    return "".join(f"{count:>9,}  {name}\n" for name, count in sorted(counts.items()))


def describe_option(option: Option) -> str:
    """Returns `{name=<type>}` and the default of an option."""
    default = "required" if option.default is None else f"default {quote(option.default)}"
    return f"{{{option}}}  {default}"


def first_line(thing: object) -> str:
    """Returns the first sentence of a docstring, or its whole first paragraph if no sentence ends there."""
    paragraph = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    end = re.search(r"[.:](?= |$)", paragraph)
    return paragraph[: end.start()] + "." if end else paragraph
