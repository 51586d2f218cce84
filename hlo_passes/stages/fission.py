"""Fission: a loop or a conditional that makes the input gradient and the weights' gradients becomes one for each."""

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
    """Divide the loops and conditionals of `backward` that make both gradients; False for none.

    Such a loop is that of a scan over layers. The first of the two loops makes what the input gradient needs, and
    stacks what the second reads of it, trip by trip. The second makes the rest. What is stacked is chosen like what is
    kept between the halves of any backward: the fewest bytes. What stands inside is divided first.
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
    """Plans to divide a loop or a conditional, after those inside of it."""

    op: ir.Operation
    inner: list["_Plan"]


def _plans(
    ops: Iterable[ir.Operation],
    opened: Collection[ir.Operation],
    needs: Dependences,
    early: Collection[ir.Value],
    live: Collection[ir.Value],
) -> list[_Plan]:
    """Those of one block of which the late half needs products that the early half does not make."""
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
    """The body of a loop as the two halves."""

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
        """The two loops, with the fewest bytes between them."""
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
        """Return the carried values that the test of the second half reads, and the counters that its body reads."""
        arguments = list(self.following)
        read = {arguments[position] for position, *_ in counters(self._loop)}.intersection(used)
        return [argument for argument in arguments if argument in read or argument in self._tested]

    def _size(self, value: ir.Value) -> int:
        """Return the cost of keeping `value`: its bytes, or for a value of the body those of all trips and 1 more."""
        inside = value in self.body.producers or value in self.following
        return self._trips * byte_size(value.type) + 1 if inside else byte_size(value.type)
