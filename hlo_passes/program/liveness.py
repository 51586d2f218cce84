"""Live values along one mesh's sequence: the check of `jaxpp.last_use`, and the peaks of memory."""

from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir import attributes as at
from jaxpp.hlo_passes.ir.functions import body_of, operations, terminator
from jaxpp.hlo_passes.ir.values import byte_size, defining_op, is_used


@dataclass(frozen=True)
class Peak:
    """The most that is alive at once on one mesh: bytes of whole values, and microbatches with residuals."""

    bytes: int
    activations: int


def check_liveness(function: ir.Operation) -> Peak:
    """Walk one mesh's sequence. Raises PassError on a use after the last use and on a value that never dies."""
    walk = _Walk(function)
    for op in operations(body_of(function))[:-1]:
        walk.step(op)
    return walk.finish()


class _Walk:
    """The state of the walk: who may die, who is dead, how much is alive."""

    def __init__(self, function: ir.Operation) -> None:
        self._function = function
        block = body_of(function)
        entries = at.argument_attributes(function)
        self._returned = set(terminator(block).operands)
        self._mortal: set[ir.Value] = {
            value for value, entry in zip(block.arguments, entries, strict=True) if at.DONOR in entry
        }
        self._mortal -= self._returned
        self._dead: set[ir.Value] = set()
        self._bytes = self._peak_bytes = sum(byte_size(argument.type) for argument in block.arguments)
        self._residuals = _residuals(block)
        self._alive: dict[tuple[int, int], set[ir.Value]] = {}
        self._kept_for: dict[ir.Value, tuple[int, int]] = {}
        self._peak_activations = 0

    def step(self, op: ir.Operation) -> None:
        """Make the results of `op` alive, count, and let its last uses die."""
        operands = [value for value in op.operands if isinstance(value.type, ir.RankedTensorType)]
        results = [value for value in op.results if isinstance(value.type, ir.RankedTensorType)]
        if not self._dead.isdisjoint(operands):
            raise PassError(f"a {op.name} uses a value after its last use", location=op.location)
        if op.name != "stablehlo.constant":
            self._mortal.update(value for value in results if value not in self._returned)
        self._bytes += sum(byte_size(value.type) for value in results)
        self._peak_bytes = max(self._peak_bytes, self._bytes)
        key = _task(op)
        if key in self._residuals:
            values = self._residuals.pop(key)
            self._alive[key] = set(values)
            self._kept_for.update((value, key) for value in values)
            self._peak_activations = max(self._peak_activations, len(self._alive))
        for number in at.integers(op, at.LAST_USE):
            if not number < len(operands) or operands[number] not in self._mortal:
                raise PassError(f"{at.LAST_USE} names operand {number}, which must not die here", location=op.location)
        self._die({operands[number] for number in at.integers(op, at.LAST_USE)})
        self._die({value for value in results if value in self._mortal and not is_used(value)})

    def _die(self, values: set[ir.Value]) -> None:
        for value in values:
            self._dead.add(value)
            self._bytes -= byte_size(value.type)
            key = self._kept_for.pop(value, None)
            if key is not None:
                self._alive[key].discard(value)
                if not self._alive[key]:
                    del self._alive[key]

    def finish(self) -> Peak:
        """The peaks. Raises PassError when a value of the program is neither returned nor dead."""
        for value in self._mortal - self._dead:
            if is_used(value):
                op = defining_op(value) or self._function
                raise PassError(f"a value is never freed: {value.type}", location=op.location, hint="run plan-buffers")
        return Peak(self._peak_bytes, self._peak_activations)


def _residuals(block: ir.Block) -> dict[tuple[int, int], list[ir.Value]]:
    """For each (stage, microbatch): what its forward received or made that its backward uses."""
    origin: dict[ir.Value, int | None] = {}
    seen: dict[tuple[int, int], set[ir.Value]] = {}
    found: dict[tuple[int, int], list[ir.Value]] = {}
    for op in operations(block)[:-1]:
        if op.name == "stablehlo.recv":
            origin[op.results[0]] = None
        key = _task(op)
        if key is None:
            continue
        own = [value for value in op.operands if origin.get(value, -1) in (None, key[1])]
        if key not in seen:
            seen[key] = {*own, *op.results}
        else:
            kept = [value for value in dict.fromkeys(own) if value in seen[key]]
            if kept:
                found[key] = kept
        origin.update((result, key[1]) for result in op.results)
    return found


def _task(op: ir.Operation) -> tuple[int, int] | None:
    if op.name != "func.call":
        return None
    stage, microbatch = at.integer(op, at.STAGE), at.integer(op, at.MICROBATCH)
    return None if stage is None or microbatch is None else (stage, microbatch)
