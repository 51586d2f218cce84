"""Fission: splits each loop or conditional that makes both the input gradient and weight gradients into two."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.block_halves import BlockHalves, Known, made_by
from jaxpp.hlo_passes.stages.conditional_fission import divide_conditional
from jaxpp.hlo_passes.stages.cut import divide
from jaxpp.hlo_passes.stages.dependences import Dependences, opened_ops
from jaxpp.hlo_passes.stages.halves import Backward
from jaxpp.hlo_passes.stages.two_loops import Half, TwoLoops, tested
from jaxpp.ir.counted import counters, trips
from jaxpp.ir.functions import blocks_of, is_product, loop_body, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import byte_size, is_used


def divide_constructs(backward: Backward, mesh: MeshAxes | None) -> bool:
    """Splits the loops and conditionals of `backward` that make both gradients. Returns whether there were any.

    An example is the loop of a `lax.scan` over layers. The first of the two new loops makes the values that the input
    gradient needs. The second loop makes the others, from values that the first loop stacks in each trip. The stacks
    have the fewest bytes, like the values kept between the halves of any backward. Nested loops and conditionals are
    split before the ones that contain them.
    """
    opened = opened_ops(backward.ops)
    needs = Dependences(backward.body, opened)
    arguments = set(backward.arguments).difference(backward.carried)
    known = Known(backward.early(needs), set(backward.free), arguments)
    plans = _plans(backward.ops, opened, needs, known.early, backward.live(needs))
    if plans:
        known.add_free(backward.ops, opened)
    for plan in plans:
        _divide(plan, known, mesh)
    for plan in plans:
        if not any(map(is_used, plan.op.results)):
            plan.op.erase()
    return bool(plans)


@dataclass(frozen=True)
class _Plan:
    """A loop or a conditional to split, and the plans for the ones inside of it, which are split first."""

    op: ir.Operation
    inner: list["_Plan"]


def _plans(
    ops: Iterable[ir.Operation],
    opened: Collection[ir.Operation],
    needs: Dependences,
    early: Collection[ir.Value],
    live: Collection[ir.Value],
) -> list[_Plan]:
    """Returns plans for the loops and conditionals of one block that make values of both halves.

    Only those are split whose late results need products that the early half does not make.
    """
    plans: list[_Plan] = []
    made = needs.products(early)
    for op in ops:
        if op in opened:
            values = loop_body(op).arguments if op.name == "stablehlo.while" else op.results
            late = [value for value in values if value in live and value not in early]
            some_early = any(value in early for value in values)
            if some_early and not needs.products(needs.behind(late)) <= made:
                inside = [inner for block in blocks_of(op) for inner in operations(block)]
                plans.append(_Plan(op, _plans(inside, opened, needs, early, live)))
    return plans


def _divide(plan: _Plan, known: Known, mesh: MeshAxes | None) -> None:
    for inner in plan.inner:
        _divide(inner, known, mesh)
    if plan.op.name != "stablehlo.while":
        divide_conditional(plan.op, known, mesh)
        return
    halves = _LoopHalves(plan.op, known)
    if halves.has_late_products:
        known.divided(plan.op, halves.divided().write(mesh).first.results)


class _LoopHalves(BlockHalves):
    """The body of a loop, as an early and a late half.

    Attributes:
        has_late_products: whether the late half makes a product; without one the loop stays whole.
    """

    def __init__(self, loop: ir.Operation, known: Known) -> None:
        block = loop_body(loop)
        following: dict[ir.Value, ir.Value] = dict(zip(block.arguments, terminator(block).operands, strict=True))
        self._loop, self._trips, self._tested = loop, trips(loop) or 0, tested(loop)
        super().__init__(block, known, self._tested, following)
        results = zip(following, loop.results, strict=True)
        values, self._late = self.find_late(
            argument for argument, result in results if is_used(result) and argument not in self.values
        )
        self._late_arguments = [argument for argument in following if argument in values]
        self.has_late_products = any(is_product(self.body.ops[number]) for number in self._late)

    def divided(self) -> TwoLoops:
        """Returns the two loops, with the fewest bytes of stacks between them."""
        last = [self.past(self.following[argument]) for argument in self._late_arguments]
        moved, again = divide(self, self._late, last, self._size)
        first = sorted(self.early | moved)
        rest = (set(self._late) - moved) | again
        used = {value for op in rest for value in self.body.operands[op]}.union(last)
        counting = [argument for argument in self._counting(used) if argument not in self._late_arguments]
        behind = Dependences(Numbered(self.body.ops)).behind(self.following[argument] for argument in counting)
        second = sorted(rest | self.making(behind))
        made = set(made_by(self.body, second))
        carried = [argument for argument in self.following if argument in self.values]
        here = [argument for argument in carried if argument not in counting] + made_by(self.body, first)
        kept = [value for value in here if value in used and value not in made]
        late = [*counting, *self._late_arguments]
        position = {argument: number for number, argument in enumerate(self.following)}
        return TwoLoops(
            self._loop,
            Half([position[argument] for argument in carried], self.all(first), self.late_barriers()),
            Half([position[argument] for argument in late], self.all(second), self.before_barriers),
            kept,
        )

    def _counting(self, used: Collection[ir.Value]) -> list[ir.Value]:
        """Returns the arguments of the body that the test reads, and the counters among `used`, in order."""
        arguments = list(self.following)
        read = {arguments[position] for position, *_ in counters(self._loop)}.intersection(used)
        return [argument for argument in arguments if argument in read or argument in self._tested]

    def _size(self, value: ir.Value) -> int:
        """Returns the cost of keeping `value`: its bytes, or for a value of the body its bytes in all trips, plus 1."""
        inside = value in self.body.producers or value in self.following
        return self._trips * byte_size(value.type) + 1 if inside else byte_size(value.type)
