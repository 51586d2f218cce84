"""Fission: splits each loop or conditional that makes both the input gradient and weight gradients into two."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.block_halves import BlockHalves, Known
from jaxpp.hlo_passes.stages.conditional_fission import divide_conditional
from jaxpp.hlo_passes.stages.cut import divide
from jaxpp.hlo_passes.stages.dependences import Dependences, opened_ops
from jaxpp.hlo_passes.stages.halves import Backward
from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.hlo_passes.stages.two_loops import Written
from jaxpp.ir.functions import blocks_of, is_product, loop_body, operations
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
    if any(is_product(halves.body.ops[number]) for number in halves.late):  # otherwise the loop stays whole
        known.divided(plan.op, halves.write(mesh).op.results)


class _LoopHalves(BlockHalves):
    """The body of a loop, as an early and a late half."""

    def __init__(self, op: ir.Operation, known: Known) -> None:
        self._loop = loop = OpenLoop(op)
        following = dict(zip(loop.arguments, loop.following, strict=True))
        super().__init__(loop.body.ops, known, loop.tested, following)
        pairs = zip(following, op.results, strict=True)
        values = self.find_late(value for value, result in pairs if is_used(result) and value not in self.values)
        self._late = [argument for argument in following if argument in values]

    def write(self, mesh: MeshAxes | None) -> Written:
        """Writes the two loops, with the fewest bytes of stacks between them. Returns the first one."""
        loop, early = self._loop, [argument for argument in self.following if argument in self.values]
        last = [self.past(self.following[argument]) for argument in self._late]
        _, second, kept = divide(self, self.late, last, self._size).halves(self.body, self.early, self.late, last)
        read = self.body.read(second, last)
        # Both loops carry the counters that they read, and the values that the test reads.
        both = {*loop.counts, *loop.tested}
        kept = [*(value for value in early if value in read and value not in both), *kept]
        acting = set(self.body.acting)
        first = loop.first(
            map(loop.arguments.__getitem__, early), kept, mesh, self.late_barriers(), self.all(acting & self.early)
        )
        late = map(loop.arguments.__getitem__, self._late)
        loop.second(late, first.stacks, mesh, self.before_barriers, self.all(acting.intersection(self.late)))
        return first

    def _size(self, value: ir.Value) -> int:
        """Returns the cost of keeping `value`: its bytes, or for a value of the body its bytes in all trips, plus 1."""
        inside = value in self.body.producers or value in self.following
        return self._loop.trips * byte_size(value.type) + 1 if inside else byte_size(value.type)
