"""Divides a backward between its input gradient and its weight gradient, also inside of loops and conditionals."""

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.cut import divide
from jaxpp.hlo_passes.stages.dependences import Dependences, opened_ops
from jaxpp.hlo_passes.stages.halves import Backward
from jaxpp.hlo_passes.stages.two_halves import Halved
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import blocks_of, is_product, loop_body, operations, terminator
from jaxpp.ir.ops import is_cheap, traits
from jaxpp.ir.values import byte_size

_CONDITIONAL = ("conditional that returns a token", "compute both branches and choose with jnp.where")

# Operations that may make both gradients and can't be divided: the name of each, and a hint for the user.
_CONSTRUCTS = {
    "stablehlo.while": ("loop of unknown length", "use lax.scan, or fori_loop with constant bounds"),
    "stablehlo.case": _CONDITIONAL,
    "stablehlo.if": _CONDITIONAL,
    at.SHARD_MAP: ("shard_map", "unroll the loop that is in it or around it, or write it on whole arrays"),
}


def halve(backward: Backward) -> Halved:
    """Decides what the input gradient and the weight gradient of `backward` make.

    A loop that makes both gradients, such as that of a `lax.scan` over layers, becomes two, and so does a conditional.
    The first one makes the values that the input gradient needs. The second one makes the others from values that the
    first one keeps, in each trip of a loop. One minimum cut chooses the kept values inside and outside of loops.

    Raises:
        PassError: an operation that can't be divided makes both gradients.
    """
    opened = opened_ops(backward.ops)
    needs = Dependences(backward.body, opened)
    early, live = backward.early(needs), backward.live(needs)
    constructs = list(_of_both(backward.ops, opened, needs, early, live))
    while True:
        sides = _Sides(backward, constructs, early)
        whole = sides.undivided
        if not whole:
            break
        constructs = [op for op in constructs if op not in whole]
    if not any(is_product(sides.body.ops[number]) for number in sides.late_ops):
        _check_apart(backward, needs, early, live)
    return sides.halved()


def _of_both(
    ops: Iterable[ir.Operation],
    opened: Collection[ir.Operation],
    needs: Dependences,
    early: Collection[ir.Value],
    live: Collection[ir.Value],
) -> Iterator[ir.Operation]:
    """Yields the loops and conditionals that make values of both halves, also those inside of others.

    The late results of each need products that the early half does not make.
    """
    made = needs.products(early)
    for op in ops:
        if op in opened:
            values = loop_body(op).arguments if op.name == "stablehlo.while" else op.results
            late = [value for value in values if value in live and value not in early]
            some_early = any(value in early for value in values)
            if some_early and not needs.products(needs.values_behind(late)) <= made:
                yield op
                for block in blocks_of(op):
                    yield from _of_both(operations(block), opened, needs, early, live)


def _check_apart(
    backward: Backward, needs: Dependences, early: Collection[ir.Value], live: Collection[ir.Value]
) -> None:
    """Raises PassError where an operation that can't be divided makes the input gradient and weight gradients."""
    for op in needs.ops:
        sides = {result in early for result in op.results if result in live}
        if op.name in _CONSTRUCTS and len(sides) > 1 and is_product(op):
            name, instead = _CONSTRUCTS[op.name]
            raise PassError(
                f"the backward of stage {backward.stage} can't be split: a {name} makes its input gradient and its "
                "weight gradients together",
                location=op.location,
                hint=f"{instead}, or take a schedule of whole backwards",
            )


class _Sides:
    """The input gradient as the early half and the weight gradient as the late one, for `cut.divide`.

    Inside of `constructs` the late half does not wait at a barrier of `jax.checkpoint`: it reads the barrier's
    operands, not its results.

    Attributes:
        body: the operations of the backward and of `constructs`, without the tests of loops.
        late_ops: the operations that only the late half needs.
    """

    def __init__(self, backward: Backward, constructs: list[ir.Operation], early: Collection[ir.Value]) -> None:
        self._backward = backward
        needs = Dependences(backward.body, constructs)
        self.body = body = Dependences(backward.body, constructs, needs.barriers)
        self._both = {*backward.free, *backward.carried}.union(*(loop.counts for loop, _ in body.loops))
        self._values = backward.early(needs, early)
        self._early = set(body.making(self._values))
        acting = set(body.acting) - self._early
        effects = [value for op in acting for value in (*body.results[op], *body.operands[op])]
        late = body.values_behind([*backward.returned, *effects])
        self._late = late.difference(self._values, body.barriers)
        self.late_ops = sorted(acting.union(body.making(self._late)) - self._early)

    def _past(self, value: ir.Value) -> ir.Value:
        """Returns the value that enters the chain of barriers that ends in `value`; `value` itself if none does."""
        return self.body.barriers.get(value, value)

    @property
    def undivided(self) -> list[ir.Operation]:
        """The loops in which the late half makes no product, and the conditionals without late results."""
        products = {number for number in self.late_ops if is_product(self.body.ops[number])}
        loops = [loop.op for loop, inside in self.body.loops if products.isdisjoint(inside)]
        return loops + [op for op in self.body.conditionals if self._late.isdisjoint(op.results)]

    def halved(self) -> Halved:
        """Returns the halves between which the fewest bytes are kept."""
        wanted = list(self._wanted())
        body, (moved, again) = self.body, divide(self, self.late_ops, wanted, self._size)
        first, second = sorted(self._early | moved), sorted({*self.late_ops}.difference(moved) | again)
        read = body.read(second, wanted)
        made = self._values.difference(body.producers, self._backward.arguments, self._both)
        kept = [value for value in read if value in made]
        kept += [result for op in first for result in body.results[op] if result in read]
        early, late = ([body.ops[op] for op in half if op in body.acting] for half in (first, second))
        return Halved(body.constructs, self._values, self._late, kept, (early, late), body.barriers, {})

    def _wanted(self) -> Iterator[ir.Value]:
        """Yields the values that the second of the two loops or conditionals reads besides the late operations."""
        for loop, _ in self.body.loops:
            for argument, position in loop.arguments.items():
                if argument in self._late:
                    yield self._past(loop.following[position])
                if argument in self._late or argument == loop.counter:
                    yield self._past(loop.op.operands[position])
        for op in self.body.conditionals:
            yield self._past(op.operands[0])
            for block in blocks_of(op):
                returned = zip(op.results, terminator(block).operands, strict=True)
                yield from (self._past(value) for result, value in returned if result in self._late)

    def _size(self, value: ir.Value) -> int:
        """Returns the cost of keeping `value`: its bytes, or for a value in a loop its bytes in all trips, plus 1."""
        trips = self.body.trips.get(value, 0)
        return trips * byte_size(value.type) + 1 if trips else byte_size(value.type)

    def is_free(self, value: ir.Value) -> bool:
        return value in self._both

    def is_early(self, value: ir.Value) -> bool:
        op = self.body.producers.get(value)
        return op in self._early if op is not None else value in self._values or value in self._backward.arguments

    def may_move(self, op: int) -> bool:
        return op not in self._fixed and traits(self.body.ops[op]).light

    @cached_property
    def _fixed(self) -> set[int]:
        """The operations that read what the microbatch loop carries, or whose results the backward returns."""
        carried, pairs = self._backward.carried, enumerate(self.body.operands)
        reading = {number for number, operands in pairs if any(value in carried for value in operands)}
        return reading.union(self.body.making(self._backward.returned))

    def may_repeat(self, op: int) -> bool:
        return op in self._early and is_cheap(self.body.ops[op])
