"""Replaces calls of a function by calls of the functions into which it was split."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.ir.functions import body_of
from jaxpp.ir.outlining import Outlined
from jaxpp.ir.steps import MainLine, Step


@dataclass(frozen=True)
class Split:
    """A function that was split into others, its parts.

    Attributes:
        function: the function.
        returned: the values that it returned.
        parts: the new functions, in the order of their calls. Their inputs and outputs are values of `function`.
    """

    function: ir.Operation
    returned: Sequence[ir.Value]
    parts: Sequence[Outlined]


def split_calls(line: MainLine, splits: Mapping[str, Split]) -> list[Step]:
    """Calls the parts of functions, by their names in `splits`, in place of these functions, which are erased.

    The new calls have the attributes of the old ones. Returns the new steps of `line`.
    """
    steps: list[Step] = []
    instead: dict[ir.Value, ir.Value] = {}
    for step in line.steps:
        if not instead.keys().isdisjoint(step.operands):
            step.operands = [instead.get(value, value) for value in step.operands]
        if step.callee not in splits:
            steps.append(step)
            continue
        old, split = step.op, splits[step.callee]
        attributes = {name: old.attributes[name] for name in old.attributes if name != "callee"}
        values: dict[ir.Value, ir.Value] = dict(zip(body_of(split.function).arguments, step.operands, strict=True))
        made: defaultdict[ir.Value, list[ir.Value]] = defaultdict(list)
        for part in split.parts:
            new = part.call(values, attributes, old)
            steps.append(Step.of(new))
            for value, result in zip(part.outputs, new.results, strict=True):
                values[value] = result
                made[value].append(result)
        for value, result in zip(split.returned, step.results, strict=True):
            # A value that is returned twice has two results, each with a buffer that its users may reuse.
            instead[result] = made[value].pop(0) if made[value] else values[value]
            result.replace_all_uses_with(instead[result])
        old.erase()
    for split in splits.values():
        split.function.erase()
    return steps
