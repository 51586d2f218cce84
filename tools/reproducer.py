"""Reproducers: a module and the passes that fail on it, in the format of MLIR's own."""

import re
import tempfile
from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass, run_passes
from jaxpp.tools import listing, streams
from jaxpp.tools.pipeline_text import pass_text, pipeline_text

_RESOURCE = re.compile(r'\{-#.*?mlir_reproducer: *\{.*?pipeline: *"((?:[^"\\]|\\.)*)".*?#-\}\s*\Z', re.DOTALL)


def write(module: ir.Module, steps: Sequence[Pass], failed: Pass, path: str | None) -> str:
    """Writes the module before the pass that fails, and the passes from there on; returns the name of the file.

    Args:
        module: the input, read again.
        steps: all passes.
        failed: the pass of `steps` that fails.
        path: the name of the file; None: a new file in the folder for temporary files.
    """
    first = next(number for number, step in enumerate(steps) if step is failed)
    run_passes(module, steps[:first])
    pipeline = pipeline_text(steps[first:])
    quoted = pipeline.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A")
    text = module.operation.get_asm(enable_debug_info=True)
    name = path or _new_file(failed)
    streams.write(
        name,
        f"// Made by {listing.versions()}; `jaxpp-opt --run-reproducer FILE` runs it.\n{text}\n"
        f'{{-#\n  external_resources: {{\n    mlir_reproducer: {{\n      pipeline: "{quoted}",\n'
        "      disable_threading: true,\n      verify_each: true\n    }\n  }\n#-}\n",
    )
    return name


def _new_file(failed: Pass) -> str:
    name = re.sub(r"\W+", "-", pass_text(failed).partition("{")[0])
    with tempfile.NamedTemporaryFile(prefix=f"jaxpp-opt-{name}-", suffix=".mlir", delete=False) as made:
        return made.name


def read(text: str) -> tuple[str, str] | None:
    """Returns the module and the pipeline of a reproducer; None if the text has no pipeline."""
    start = text.rfind("{-#")  # the last: the module may have resources of its own
    found = _RESOURCE.match(text[start:]) if start >= 0 else None
    if found is None:
        return None
    pipeline = re.sub(r"\\(0A|.)", lambda each: "\n" if each[1] == "0A" else each[1], found[1], flags=re.DOTALL)
    return text[:start], pipeline
