"""Decides which operations of a backward make its input gradient, and which its weight gradients."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.cut import divide
from jaxpp.hlo_passes.stages.dependences import Dependences, opened_ops
from jaxpp.ir import attributes as at
from jaxpp.ir.accumulators import ADD, Accumulator
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import (
    body_of,
    has_side_effect,
    is_product,
    kind_and_stage,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import is_cheap, traits

_CONDITIONAL = ("conditional with a side effect", "compute both branches and choose with jnp.where")

# Operations that may make both gradients and can't be divided, each with what to write in its place.
_CONSTRUCTS = {
    "stablehlo.while": ("loop of unknown length", "use lax.scan, or fori_loop with constant bounds"),
    "stablehlo.case": _CONDITIONAL,
    "stablehlo.if": _CONDITIONAL,
    at.SHARD_MAP: ("shard_map", "unroll the loop that is in it or around it, or write it on whole arrays"),
}


class Backward:
    """The backward of one stage, as the loop body calls it.

    Attributes:
        stage: its number.
        body: its operations that something depends on.
        returned: what it returns.
        carried: for each argument that the loop carries from one microbatch to the next, which is then no residual, the
            numbers of the results that the next microbatch gets in its place.
        arguments: what it is called with.
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
        effects = [op for op in every if has_side_effect(op)]
        self._effects = {value for op in effects for value in (*op.results, *operands_with_captures(op))}
        self.body = Numbered(every)
        live = self.live(Dependences(self.body))
        used = [
            op
            for op, results in zip(every, self.body.results, strict=True)
            if op in effects or not live.isdisjoint(results)
        ]
        if len(used) < len(every):
            self.body = Numbered(used)
        self.arguments: list[ir.Value] = list(body_of(function).arguments)
        self.carried: dict[ir.Value, list[int]] = {}
        self.free: set[ir.Value] = set()
        carried = loop.carried
        for argument, value in zip(self.arguments, call.operands, strict=True):
            if value in carried:
                self.carried[argument] = _handed_on(loop, call, ir.BlockArgument(value).arg_number)
            elif not loop.is_of_a_task(value):
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

    @property
    def ops(self) -> Sequence[ir.Operation]:
        """The operations of its body, in program order."""
        return self.body.ops

    def live(self, needs: Dependences) -> set[ir.Value]:
        """The values that the results and the side effects depend on, with these themselves."""
        return needs.behind([*self.returned, *self._effects])

    def early(self, needs: Dependences, wanted: Collection[ir.Value] = ()) -> set[ir.Value]:
        """The values of the first half.

        They are what other tasks wait for and `wanted`, with all that these depend on, and those losses that need no
        further product.
        """
        awaited = {self.returned[number] for number in self.awaited}.union(wanted)
        while True:
            early = needs.behind(awaited)
            if not needs.products(early):
                early = needs.behind(awaited | needs.inner_products())
            # A value that the next microbatch's input gradient reads has to come from this one's.
            more = {self.returned[n] for value in early & self.carried.keys() for n in self.carried[value]}
            if more <= awaited:
                break
            awaited |= more
        for number in self.metrics:
            behind = needs.behind([self.returned[number]])
            if needs.products(behind) <= needs.products(early):
                early |= behind
        return early


def _handed_on(loop: MicrobatchLoop, call: ir.Operation, position: int) -> list[int]:
    value = terminator(loop.body).operands[position]
    return [number for number, result in enumerate(call.results) if result == value]


def _is_awaited(loop: MicrobatchLoop, call: ir.Operation, result: ir.Value) -> bool:
    """Whether another task uses `result`, in this microbatch or, as a value that the loop carries, in the next."""
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
    """The two halves of a backward, its operations by number in program order; cheap ones may be in both."""

    input_grad: list[int]
    weight_grad: list[int]
    kept: list[ir.Value]
    """What the first half makes for the second."""


def halve(backward: Backward) -> Halved:
    """Divide the operations of `backward`. Raises PassError where one that can't be divided makes both gradients."""
    # Only the body of a loop tells on which of its products those of the next trip depend.
    in_loops = backward.early(Dependences(backward.body, opened_ops(backward.ops)))
    values = backward.early(Dependences(backward.body), in_loops)
    ops, results = backward.ops, backward.body.results
    early = {number for number in range(len(ops)) if not values.isdisjoint(results[number])}
    late = [number for number in range(len(ops)) if number not in early]
    if not any(is_product(ops[number]) for number in late):
        _check_apart(backward)
    moved, again = divide(_Sides(backward, early), late)
    first, second = sorted(early | moved), sorted((set(late) - moved) | again)
    used = {value for number in second for value in backward.body.operands[number]}
    kept = [result for number in first if number not in again for result in results[number] if result in used]
    return Halved(first, second, kept)


def _check_apart(backward: Backward) -> None:
    """Raise PassError when the weights' gradients come out of an operation that makes the input gradient too."""
    needs = Dependences(backward.body, opened_ops(backward.ops))
    early, live = backward.early(needs), backward.live(needs)
    for op, _ in needs:
        sides = {result in early for result in op.results if result in live}
        if op.name in _CONSTRUCTS and len(sides) > 1 and is_product(op):
            name, instead = _CONSTRUCTS[op.name]
            raise PassError(
                f"the backward of stage {backward.stage} can't be split: a {name} makes its input gradient and its "
                "weight gradients together",
                location=op.location,
                hint=f"{instead}, or take a schedule of whole backwards",
            )


def may_be_in_either(op: ir.Operation) -> bool:
    """Whether `op` may be in either half: it is a known operation, and no product."""
    return traits(op).light


@dataclass(frozen=True)
class _Sides:
    """The two halves, as `divide` asks for them."""

    backward: Backward
    early: Collection[int]

    @property
    def body(self) -> Numbered:
        return self.backward.body

    def is_free(self, value: ir.Value) -> bool:
        return value in self.backward.free or value in self.backward.carried

    def is_early(self, value: ir.Value) -> bool:
        op = self.body.producers.get(value)
        return op is None or op in self.early

    def may_move(self, op: int) -> bool:
        return (
            may_be_in_either(self.backward.ops[op])
            and not any(value in self.backward.carried for value in self.body.operands[op])
            and not any(result in self.backward.returned for result in self.body.results[op])
        )

    def may_repeat(self, op: int) -> bool:
        return op in self.early and is_cheap(self.backward.ops[op])
