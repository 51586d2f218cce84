"""Live values along one mesh's sequence: the check of `jaxpp.last_use`, and the peaks of memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, terminator
from jaxpp.hlo_passes.ir.program import Instruction
from jaxpp.hlo_passes.ir.values import byte_size, defining_op


@dataclass(frozen=True)
class Peak:
    """The most that is alive at once on one mesh: bytes of whole values, and microbatches with residuals."""

    bytes: int
    activations: int


def check_liveness(function: ir.Operation, line: Sequence[Instruction]) -> Peak:
    """Walk the instructions `line` of one mesh.

    Raises PassError on a use after the last use and on a value that never dies.
    """
    walk = _Walk(function, line)
    for step in line:
        walk.step(step)
    return walk.finish()


class _Walk:
    """The state of the walk: who may die, who is dead, how much is alive."""

    def __init__(self, function: ir.Operation, line: Sequence[Instruction]) -> None:
        self._function = function
        self._sizes: dict[ir.Type, int] = {}
        block = body_of(function)
        entries = at.argument_attributes(function)
        self._returned = set(terminator(block).operands)
        self._mortal: set[ir.Value] = {
            value for value, entry in zip(block.arguments, entries, strict=True) if at.DONOR in entry
        }
        self._mortal -= self._returned
        self._dead: set[ir.Value] = set()
        self._bytes = self._peak_bytes = sum(map(self._size, block.arguments))
        self._used = {value for step in line for value in step.operands}
        self._residuals = _residuals(line)
        self._alive: dict[tuple[int, int], set[ir.Value]] = {}
        self._kept_for: dict[ir.Value, tuple[int, int]] = {}
        self._peak_activations = 0

    def _size(self, value: ir.Value) -> int:
        size = self._sizes.get(value.type)
        if size is None:
            size = self._sizes[value.type] = byte_size(value.type)
        return size

    def step(self, step: Instruction) -> None:
        """Make the results of `step` alive, count, and let its last uses die."""
        operands, results = step.operands, step.results
        if not self._dead.isdisjoint(operands):
            raise PassError(f"a {step.name} uses a value after its last use", location=step.op.location)
        if step.name != "stablehlo.constant":
            self._mortal.update(value for value in results if value not in self._returned)
        self._bytes += sum(map(self._size, results))
        self._peak_bytes = max(self._peak_bytes, self._bytes)
        for task in step.tasks:
            if task in self._residuals:
                values = self._residuals.pop(task)
                self._alive[task] = set(values)
                self._kept_for.update((value, task) for value in values)
        self._peak_activations = max(self._peak_activations, len(self._alive))
        for number in step.last_use:
            if not 0 <= number < len(operands) or operands[number] not in self._mortal:
                message = f"{at.LAST_USE} names operand {number}, which must not die here"
                raise PassError(message, location=step.op.location)
        self._die({operands[number] for number in step.last_use})
        self._die({value for value in results if value in self._mortal and value not in self._used})

    def _die(self, values: set[ir.Value]) -> None:
        for value in values:
            self._dead.add(value)
            self._bytes -= self._size(value)
            if value in self._kept_for:
                key = self._kept_for.pop(value)
                self._alive[key].discard(value)
                if not self._alive[key]:
                    del self._alive[key]

    def finish(self) -> Peak:
        """The peaks. Raises PassError when a value of the program is neither returned nor dead."""
        for value in self._mortal - self._dead:
            if value in self._used:
                op = defining_op(value) or self._function
                raise PassError(f"a value is never freed: {value.type}", location=op.location, hint="run plan-buffers")
        return Peak(self._peak_bytes, self._peak_activations)


def _residuals(line: Sequence[Instruction]) -> dict[tuple[int, int], set[ir.Value]]:
    """For each (stage, microbatch): what a call of it received or made that a later call of it uses.

    What the forward hands to the backward, and the input gradient to the weight gradient.
    """
    origin: dict[ir.Value, frozenset[int] | None] = {}
    seen: dict[tuple[int, int], set[ir.Value]] = {}
    found: dict[tuple[int, int], set[ir.Value]] = {}
    for step in line:
        if step.tasks:
            here = frozenset(microbatch for _, microbatch in step.tasks)
            for key in step.tasks:
                # A sum that earlier microbatches added to is none of this one's.
                own = [value for value in step.operands if _is_of(key[1], origin.get(value, frozenset()))]
                known = seen.setdefault(key, set())
                kept = known.intersection(own)
                if kept:
                    found.setdefault(key, set()).update(kept)
                known.update(own, step.results)
            origin.update((result, here) for result in step.results)
        elif step.name == "stablehlo.recv":
            origin[step.results[0]] = None
    return found


def _is_of(microbatch: int, made_for: frozenset[int] | None) -> bool:
    return made_for is None or microbatch in made_for
