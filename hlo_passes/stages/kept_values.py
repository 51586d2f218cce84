"""What a forward keeps for the recompute of its residuals: as the user says it, and as a minimum cut."""

import math
import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.ir.errors import PassError
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import has_side_effect, nested, operands_with_captures
from jaxpp.ir.ops import traits
from jaxpp.ir.recomputation import Recomputation, Step, Value
from jaxpp.ir.values import byte_size, defining_op

INPUTS, SELECTIVE = "inputs", "selective"
EXPECTED = "expected 'inputs', 'selective', a share of a forward's FLOPs from 0 to 1, or bytes such as '4096B'"

Recompute = str | float | Mapping[int, str | float]
"""What users say of all stages, or of some: INPUTS, SELECTIVE, a share of a forward's FLOPs, or bytes."""

_BYTES = re.compile(r"([0-9]{1,18})B")
_ENTRY = re.compile(r"(?:(?P<stage>[0-9]{1,6}):)?(?P<keep>[^\s:]+)")


@dataclass(frozen=True)
class Keep:
    """What the forward of a stage keeps of what its backward reads; the rest is computed again.

    Attributes:
        inputs: the inputs of the stage, and nothing else.
        budget: the FLOPs of the recompute, at most, as a share of the forward's; None: any number, but no product of
            activations with weights.
        size: the bytes that are kept at most, for the fewest FLOPs, in place of a budget; None: as few as it takes.
    """

    inputs: bool = False
    budget: float | None = None
    size: int | None = None

    @property
    def repeats_products(self) -> bool:
        """Whether products with weights may be done again."""
        return self.budget is not None or self.size is not None


def parse_keep(text: str) -> dict[int | None, Keep]:
    """What each stage keeps; under None what all others keep, if the text says it: `selective`, `0:inputs 3:0.05`.

    Raises:
        ValueError: the text is not of that form.
    """
    found: dict[int | None, Keep] = {}
    for word in text.split():
        match = _ENTRY.fullmatch(word)
        keep = _keep(match["keep"]) if match else None
        if match is None or keep is None:
            raise ValueError(f"keep is '{word}', {EXPECTED}, for all stages or as STAGE:KEEP")
        stage = None if match["stage"] is None else int(match["stage"])
        if stage in found:
            raise ValueError(f"keep names {'all stages' if stage is None else f'stage {stage}'} twice: '{text}'")
        found[stage] = keep
    return found


def keep_text(recompute: Recompute | None) -> str:
    """What `parse_keep` reads. Raises ValueError, or TypeError, for what says no such thing."""
    if recompute is None:
        return ""
    each: Mapping[Any, Any] = recompute if isinstance(recompute, Mapping) else {None: recompute}
    for stage, keep in each.items():
        if isinstance(keep, bool) or not isinstance(keep, str | int | float) or not _is_stage(stage):
            raise TypeError(f"recompute is {recompute!r}, {EXPECTED}, or a mapping from stages to these")
        if _keep(str(keep)) is None:
            raise ValueError(f"recompute is {keep!r}, {EXPECTED}")
    return " ".join(f"{'' if stage is None else f'{stage}:'}{keep}" for stage, keep in each.items())


def _is_stage(stage: object) -> bool:
    return stage is None or (isinstance(stage, int) and not isinstance(stage, bool) and 0 <= stage < 10**6)


def _keep(text: str) -> Keep | None:
    if text == INPUTS:
        return Keep(inputs=True)
    if text == SELECTIVE:
        return Keep()
    if match := _BYTES.fullmatch(text):
        return Keep(size=int(match[1]))
    try:
        budget = float(text)
    except ValueError:
        return None
    return Keep(budget=budget) if 0 <= budget <= 1 else None


class Forward:
    """The computation of a forward, as far as its residuals depend on it.

    Args:
        module: whose functions and meshes its operations name.
        ops: the operations of the forward, in program order.
        residuals: the values that the backward reads.
        free: arguments that are there for the backward anyway: weights, the batch.
    """

    def __init__(
        self,
        module: ir.Module,
        ops: Sequence[ir.Operation],
        residuals: Sequence[ir.Value],
        free: Collection[ir.Value],
    ) -> None:
        self._counter = FlopCounter(module)
        self._all_ops = ops
        self._ops = behind(ops, residuals)
        self._operands = {op: operands_with_captures(op) for op in self._ops}
        self._free = self._find_free(free)
        self._residuals = residuals

    def recomputed(self, keep: Keep) -> list[ir.Operation]:
        """The operations that the recompute does, in program order.

        Raises:
            PassError: it can't keep as few bytes.
        """
        if keep.inputs:
            return self._ops
        graph, ops = self._graph(keep)
        again = graph.fewest_bytes(self.budget(keep)) if keep.size is None else _fewest_flops(graph, keep.size)
        if again is None:
            least = graph.kept_bytes(graph.fewest_bytes())
            raise PassError(
                f"a forward can't keep as little as {keep.size:,} bytes of a microbatch: {least:,} is the least",
                location=self._all_ops[0].location,
                hint="keep more, or offload what is kept",
            )
        wanted = {ops[number] for number in again}
        return self._with_free(wanted)

    def choices(self, count: int) -> list[tuple[int, int]]:
        """From all residuals kept to the least: (bytes that are kept, FLOPs that are done again), up to `count` more.

        Each has the fewest FLOPs for its bytes; the bytes of all devices of the mesh together, of one microbatch.
        """
        graph, _ = self._graph(Keep(budget=1))
        most, least = graph.kept_bytes(set()), graph.kept_bytes(graph.fewest_bytes())
        found: list[Set[int]] = [set()]
        for number in range(1, count + 1):
            again = _fewest_flops(graph, most - number * (most - least) // count)
            if again is not None and graph.kept_bytes(again) < graph.kept_bytes(found[-1]):
                found.append(again)
        return [(graph.kept_bytes(again), graph.flops(again)) for again in found]

    def budget(self, keep: Keep) -> int | None:
        """The FLOPs that a recompute may take; None for any number."""
        if keep.budget is None:
            return None
        return math.floor(keep.budget * sum(map(self._counter.of, self._all_ops)))

    def _find_free(self, free: Collection[ir.Value]) -> set[ir.Value]:
        """`free`, and what is made of it without a FLOP: constants, masks of positions, slices of the batch."""
        found = set(free)
        for op in self._ops:
            if not self._counter.of(op) and not has_side_effect(op) and found.issuperset(self._operands[op]):
                found.update(op.results)
        return found

    def _graph(self, keep: Keep) -> tuple[Recomputation, list[ir.Operation]]:
        """The choice that there is, and the operation of each of its steps."""
        ops = [op for op in self._ops if self._free.isdisjoint(op.results)]
        numbers: dict[ir.Value, int] = {}
        values: list[Value] = []

        def number(value: ir.Value, step: int | None = None) -> int:
            if value not in numbers:
                numbers[value] = len(values)
                values.append(Value(byte_size(value.type), step))
            return numbers[value]

        steps: list[Step] = []
        for at, op in enumerate(ops):
            operands = tuple(number(value) for value in self._operands[op] if value not in self._free)
            steps.append(Step(operands, self._counter.of(op) if self._may_repeat(op, keep) else None))
            for result in op.results:
                number(result, at)
        wanted = [number(value) for value in self._residuals if value not in self._free]
        return Recomputation(tuple(values), tuple(steps), tuple(wanted)), ops

    def _may_repeat(self, op: ir.Operation, keep: Keep) -> bool:
        if has_side_effect(op):
            return False
        return keep.repeats_products or not any(map(_is_costly, (op, *nested(op))))

    def _with_free(self, again: Collection[ir.Operation]) -> list[ir.Operation]:
        """The operations `again`, and those that make what is free of what they or the backward read."""
        needed = {value for op in again for value in self._operands[op]}.union(self._residuals) & self._free
        done: set[ir.Operation] = set(again)
        for op in reversed(self._ops):
            if not needed.isdisjoint(op.results):
                done.add(op)
                needed.update(self._operands[op])
        return [op for op in self._ops if op in done]


@lru_cache(maxsize=64)  # stages are often alike, and a search asks again and again
def _fewest_flops(graph: Recomputation, size: int) -> frozenset[int] | None:
    again = graph.fewest_flops(size)
    return None if again is None else frozenset(again)


def _is_costly(op: ir.Operation) -> bool:
    """Whether `op` is what a selective recompute keeps the result of: a product with weights, or what may be one.

    Products with batch dimensions are those of activations with each other, as attention has them: `jax.checkpoint`
    tells them apart in the same way (`dots_with_no_batch_dims_saveable`).
    """
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return not len(numbers.lhs_batching_dimensions)
    return traits(op).product or traits(op).collective


def behind(ops: Sequence[ir.Operation], outputs: Collection[ir.Value], *, effects: bool = False) -> list[ir.Operation]:
    """Those of `ops` that `outputs` depend on, in program order; with `effects` also those that act by themselves."""
    needed = {op for value in outputs if (op := defining_op(value)) is not None}
    for op in reversed(ops):
        if op in needed or (effects and has_side_effect(op)):
            needed.add(op)
            needed.update(made for value in operands_with_captures(op) if (made := defining_op(value)) is not None)
    return [op for op in ops if op in needed]
