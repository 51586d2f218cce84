"""The run of `jaxpp-bisect`."""

import argparse
import sys
from functools import partial

from jaxpp._compat import make_context
from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.errors import PassError
from jaxpp.tools import diagnostics, source, streams
from jaxpp.tools.opt_pipeline import known_passes, pipeline_of
from jaxpp.validation import MOST_TRIPS
from jaxpp.validation.bisection import Bisection, refer


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, words: str) -> int:
    """Does what the command line asks for; returns the exit code. `words` are the arguments of the command line."""
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
    if found is None:
        agree = "no value is NaN" if options.nan else "the results agree"
        print(f"{name}: {agree} after {len(steps)} passes")
        return 0
    print(found)
    return 1
