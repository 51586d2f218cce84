"""The table of `CompiledStep.gradients`: how the gradient of each parameter is summed."""

from collections.abc import Iterable

from jaxlib.mlir import ir

from jaxpp.ir.linear_terms import FACTOR, LATER
from jaxpp.ir.microbatch_sums import NO_SUMS, UNKNOWN, Sum, Sums
from jaxpp.ir.step_sums import step_sums
from jaxpp.lowering.lower import Lowered
from jaxpp.runtime import Program
from jaxpp.runtime.measuring.analysis import microbatches, parameters
from jaxpp.runtime.measuring.units import table
from jaxpp.schedules.errors import counted

_COLUMNS = ("parameter", "stages", "summed over", "scale")
_UNKNOWN = "unknown"
_NOTES = (
    "Scale: the factor of each microbatch's gradient, where an operation that is not linear first reads their sum;",
    "otherwise in the new value itself: -0.1 / 8 for a descent by 0.1 times the mean of 8 microbatches.",
    "Times a value: and by a factor that is no constant, such as a mask, a clip, or a rate that is an argument.",
    "The scale of a loss also has the factor of the mean in the loss function.",
    "Axes: of collectives in a `shard_map`, and of sums that are reduced after the loop. XLA adds over all others.",
)


def gradients_table(module: ir.Module, program: Program, lowered: Lowered) -> str:
    """Returns a table of the parameters of a step, and of its other results that are sums over microbatches."""
    several = microbatches(program) > 1
    results = {
        number: frozenset(each for each in sums if each.microbatches > 1 or not several)
        for number, sums in step_sums(module).results.items()
    }  # without values of one microbatch, such as the last one
    fed = {argument: result for result, argument in lowered.feeds.items()}
    rows = [
        _row(lowered.in_names[number], results.get(fed[number], NO_SUMS))
        for number in sorted(parameters(program, set(fed)))
    ]
    others = sorted(results.keys() - lowered.feeds.keys())
    rows += [_row(lowered.out_names[number], results[number]) for number in others if results[number]]
    return "\n".join([*table(_COLUMNS, rows), "", *_NOTES])


def _row(name: str, sums: Sums) -> tuple[str, str, str, str]:
    if not sums or UNKNOWN in sums:
        return name, _UNKNOWN, _UNKNOWN, _UNKNOWN
    stages = sorted({each.stage for each in sums})
    return (
        name,
        ", ".join(map(str, stages)) if stages[0] >= 0 else _UNKNOWN,
        _joined(_summed_over(each) for each in sorted(sums)),
        _joined(f"{each.scale:g}" + " times a value" * (FACTOR in each.axes) for each in sorted(sums)),
    )


def _summed_over(each: Sum) -> str:
    axes = (axis.removesuffix(LATER) for axis in each.mesh_axes)
    return ", ".join([counted(each.microbatches, "microbatch", "es"), *axes])


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))
