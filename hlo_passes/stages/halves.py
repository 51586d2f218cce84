"""Which operations of a backward are its input gradient, and which its weight gradient."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import PassError
from jaxpp.hlo_passes.ir.cheap import is_cheap
from jaxpp.hlo_passes.ir.functions import (
    body_of,
    has_side_effect,
    kind_and_stage,
    nested,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.hlo_passes.ir.loop import MicrobatchLoop
from jaxpp.hlo_passes.ir.values import defining_op, is_used
from jaxpp.hlo_passes.program.accumulators import ADD, Accumulator
from jaxpp.hlo_passes.stages.cut import divide

# What makes the gradient of a weight: never moved from one half to the other.
_PRODUCTS = {f"stablehlo.{name}" for name in ("dot_general", "dot", "convolution", "scatter", "custom_call")}

# Besides what is cheap: as much work in one half as in the other, and often a small result of big operands.
_LIGHT = {
    "stablehlo." + name
    for name in (
        "atan2 cbrt cosine exponential exponential_minus_one gather log log_plus_one logistic power reduce rsqrt sine "
        "sqrt tan tanh"
    ).split()
}

_CONSTRUCTS = {
    "stablehlo.while": "scan or while loop",
    "stablehlo.case": "conditional",
    "stablehlo.if": "conditional",
    "sdy.manual_computation": "shard_map",
}


class Backward:
    """The backward of one stage, as the loop body calls it.

    Attributes:
        stage: its number.
        ops: its operations that something depends on, in program order.
        returned: what it returns.
        carried: for each argument that the loop carries from one microbatch to the next, which is then no residual, the
            numbers of the results that the next microbatch gets in its place.
        free: arguments that are there for every microbatch, such as weights.
        awaited: the numbers of the results that another task waits for.
        metrics: those of losses and the like: stacks, maxima, and sums that are a single number.
    """

    def __init__(
        self, loop: MicrobatchLoop, function: ir.Operation, call: ir.Operation, sums: Mapping[ir.Value, Accumulator]
    ) -> None:
        self.stage = kind_and_stage(function)[1]
        every = operations(body_of(function))[:-1]
        self.returned = list(terminator(body_of(function)).operands)
        self._operands = {op: operands_with_captures(op) for op in every}
        self._producers: dict[ir.Value, ir.Operation] = {result: op for op in every for result in op.results}
        effects = [op for op in every if has_side_effect(op)]
        live = self.behind([*self.returned, *(value for op in effects for value in self._operands[op])])
        live.update(effects)
        self.ops = [op for op in every if op in live]
        self.carried: dict[ir.Value, list[int]] = {}
        self.free: set[ir.Value] = set()
        for argument, value in zip(body_of(function).arguments, call.operands, strict=True):
            if defining_op(value) is None and value.owner == loop.body and _number(value) not in loop.indices:
                self.carried[argument] = _handed_on(loop, call, _number(value))
            elif not _made_by_task(loop, value):
                self.free.add(argument)
        self.awaited = {
            number
            for number, result in enumerate(call.results)
            if result not in sums and _is_awaited(loop, call, result)
        }
        self.metrics = [
            number
            for number, result in enumerate(call.results)
            if result in sums and (sums[result].operator != ADD or ir.RankedTensorType(result.type).rank == 0)
        ]

    def operands(self, op: ir.Operation) -> Sequence[ir.Value]:
        """What `op` uses, also in its regions."""
        return self._operands[op]

    def producer(self, value: ir.Value) -> ir.Operation | None:
        """The operation that makes `value`; None for an argument."""
        return self._producers.get(value)

    def behind(self, values: Collection[ir.Value]) -> set[ir.Operation]:
        """The operations that `values` depend on."""
        found: set[ir.Operation] = set()
        work = list(values)
        while work:
            op = self._producers.get(work.pop())
            if op is not None and op not in found:
                found.add(op)
                work.extend(self._operands[op])
        return found


def _number(value: ir.Value) -> int:
    return ir.BlockArgument(value).arg_number


def _made_by_task(loop: MicrobatchLoop, value: ir.Value) -> bool:
    op = defining_op(value)
    return op is not None and op.name == "func.call" and op.block == loop.body


def _handed_on(loop: MicrobatchLoop, call: ir.Operation, position: int) -> list[int]:
    value = terminator(loop.body).operands[position]
    return [number for number, result in enumerate(call.results) if result == value]


def _is_awaited(loop: MicrobatchLoop, call: ir.Operation, result: ir.Value) -> bool:
    """Whether another task uses `result`, of this microbatch or, as a value that the loop carries, of the next."""
    for use in result.uses:
        op = use.owner.operation
        if op.name == "func.call":
            return True
        users = (other.owner.operation for other in loop.body.arguments[use.operand_number].uses)
        if any(user != call for user in users):
            return True
    return False


@dataclass(frozen=True)
class Halved:
    """The two halves of a backward, each in program order; cheap operations may be in both."""

    input_grad: list[ir.Operation]
    weight_grad: list[ir.Operation]
    kept: list[ir.Value]
    """What the first half makes for the second."""


def halve(backward: Backward) -> Halved:
    """Divide the operations of `backward`. Raises PassError where a loop holds both halves."""
    early = _input_gradient(backward)
    late = [op for op in backward.ops if op not in early]
    _check_apart(backward, early, late)
    moved, again = divide(_Sides(backward, early), late)
    first = early | moved
    second = (set(late) - moved) | again
    used = {value for op in second for value in backward.operands(op)}
    made = (result for op in backward.ops if op in first and op not in again for result in op.results)
    kept: list[ir.Value] = [result for result in made if result in used]
    return Halved([op for op in backward.ops if op in first], [op for op in backward.ops if op in second], kept)


def _input_gradient(backward: Backward) -> set[ir.Operation]:
    """The operations that other tasks wait for, and the losses that need no product of the weight gradient."""
    early = _awaited(backward)
    for number in backward.metrics:
        behind = backward.behind([backward.returned[number]])
        if not any(map(is_product, behind - early)):
            early |= behind
    return early


def _awaited(backward: Backward) -> set[ir.Operation]:
    awaited = {backward.returned[number] for number in backward.awaited}
    while True:
        early = backward.behind(awaited)
        if not any(map(is_product, early)):
            early = backward.behind(awaited | _inner_products(backward))
        # What the next microbatch's input gradient reads has to come from this one's.
        read = {value for op in early for value in backward.operands(op)}
        more = {backward.returned[n] for value in read & backward.carried.keys() for n in backward.carried[value]}
        if more <= awaited:
            return early
        awaited |= more


def is_product(op: ir.Operation) -> bool:
    """Whether `op` is a matrix product, a convolution or the like, or holds one."""
    return op.name in _PRODUCTS or any(inner.name in _PRODUCTS for inner in nested(op))


def _inner_products(backward: Backward) -> set[ir.Value]:
    """The results of products that other products depend on."""
    wanted: set[ir.Value] = set()
    inner: set[ir.Value] = set()
    for op in reversed(backward.ops):
        below = any(result in wanted for result in op.results)
        product = is_product(op)
        if below and product:
            inner.update(op.results)
        if below or product:
            wanted.update(backward.operands(op))
    return inner


def _check_apart(backward: Backward, early: Collection[ir.Operation], late: Sequence[ir.Operation]) -> None:
    """Raise PassError when the weights' gradients come out of a loop that makes the input gradient too."""
    if any(map(is_product, late)):
        return
    used = {value for op in early for value in backward.operands(op)}
    used.update(backward.returned[number] for number in backward.awaited)
    for op in early:
        if op.name in _CONSTRUCTS and is_product(op):
            apart = [result for result in op.results if is_used(result) and result not in used]
            if apart:
                raise PassError(
                    f"the backward of stage {backward.stage} can't be split: a {_CONSTRUCTS[op.name]} makes its input "
                    "gradient and its weight gradients together",
                    location=op.location,
                    hint="write the layers out (a Python loop, or scan with unroll=True), or take a schedule of whole "
                    "backwards",
                )


@dataclass(frozen=True)
class _Sides:
    """The two halves, as `divide` asks for them."""

    backward: Backward
    early: Collection[ir.Operation]

    def operands(self, op: ir.Operation) -> Sequence[ir.Value]:
        return self.backward.operands(op)

    def producer(self, value: ir.Value) -> ir.Operation | None:
        return self.backward.producer(value)

    def is_free(self, value: ir.Value) -> bool:
        return value in self.backward.free or value in self.backward.carried

    def is_early(self, value: ir.Value) -> bool:
        op = self.backward.producer(value)
        return op is None or op in self.early

    def may_move(self, op: ir.Operation) -> bool:
        return (
            (is_cheap(op) or op.name in _LIGHT)
            and not any(value in self.backward.carried for value in self.operands(op))
            and not any(result in self.backward.returned for result in op.results)
        )

    def may_repeat(self, op: ir.Operation) -> bool:
        return op in self.early and is_cheap(op)
