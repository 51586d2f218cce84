"""Loop fission: a loop that makes the input gradient and the weights' gradients becomes a loop for each."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from jaxpp.hlo_passes.stages.cut import divide
from jaxpp.hlo_passes.stages.dependences import Dependences
from jaxpp.hlo_passes.stages.halves import Backward, may_be_in_either
from jaxpp.hlo_passes.stages.two_loops import Half, TwoLoops, tested
from jaxpp.ir.counted import counted_loops, counters, trips
from jaxpp.ir.functions import has_side_effect, is_product, loop_body, operands_with_captures, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import byte_size, is_used


def divide_loops(backward: Backward, mesh: MeshAxes | None) -> bool:
    """Divide the loops of `backward` that make both gradients, such as that of a scan over layers; False for none.

    The first of the two loops makes what the input gradient needs, and stacks what the second reads of it, trip by
    trip. The second makes the rest. What is stacked is chosen like what is kept between the halves of any backward: the
    fewest bytes. Loops inside of such a loop are divided first.
    """
    loops = counted_loops(backward.ops)
    needs = Dependences(backward.body, loops)
    arguments = set(backward.arguments).difference(backward.carried)
    known = _Known(backward.early(needs), set(backward.free), arguments)
    plans = _plans(backward.ops, loops, needs, known.early, backward.live(needs))
    if plans:
        known.add_free(backward.ops, loops)
    for plan in plans:
        _divide(plan, known, mesh)
    for plan in plans:
        if not any(map(is_used, plan.loop.results)):
            plan.loop.erase()
    return bool(plans)


@dataclass(frozen=True)
class _Plan:
    """Plans to divide a loop, after the loops inside of it."""

    loop: ir.Operation
    inner: list["_Plan"]


def _plans(
    ops: Iterable[ir.Operation],
    loops: Collection[ir.Operation],
    needs: Dependences,
    early: Collection[ir.Value],
    live: Collection[ir.Value],
) -> list[_Plan]:
    """The loops of one block in which the late half needs products that the early half does not make."""
    plans: list[_Plan] = []
    made = needs.products(early)
    for op in ops:
        if op in loops:
            body = loop_body(op)
            late = [argument for argument in body.arguments if argument in live and argument not in early]
            if len(late) < len(body.arguments) and not needs.products(needs.behind(late)) <= made:
                plans.append(_Plan(op, _plans(operations(body), loops, needs, early, live)))
    return plans


@dataclass
class _Known:
    """Holds what is known of the values of a backward, also inside of its loops.

    Attributes:
        early: those that the first half makes.
        free: those that both halves can have at no cost: weights, counters of loops, what is cheaply made of these.
        arguments: those that are there before the first half.
        replaced: the results of loops that were divided.
    """

    early: set[ir.Value]
    free: set[ir.Value]
    arguments: set[ir.Value]
    replaced: set[ir.Value] = field(default_factory=set[ir.Value])

    def add_free(self, ops: Iterable[ir.Operation], loops: Collection[ir.Operation]) -> None:
        """Find what is free among the results of `ops` and inside of `loops`."""
        for op in ops:
            if op in loops:
                body = loop_body(op)
                self.free.update(body.arguments[position] for position, *_ in counters(op))
                self.add_free(operations(body), loops)
            elif is_cheap(op) and all(value in self.free for value in operands_with_captures(op)):
                self.free.update(op.results)


def _divide(plan: _Plan, known: _Known, mesh: MeshAxes | None) -> None:
    for inner in plan.inner:
        _divide(inner, known, mesh)
    halves = _LoopHalves(plan.loop, known)
    if not halves.has_late_products:
        return
    known.replaced.update(plan.loop.results)
    known.early.difference_update(plan.loop.results)
    known.early.update(halves.divided().write(mesh).first.results)


class _LoopHalves:
    """The body of a loop, its operations numbered, as the halves that `cut.divide` moves operations between.

    The late half reads the operands of a barrier of `jax.checkpoint`, not its results: it need not wait.
    """

    def __init__(self, loop: ir.Operation, known: _Known) -> None:
        block = loop_body(loop)
        self._loop, self._known, self._trips = loop, known, trips(loop) or 0
        ops = [op for op in operations(block)[:-1] if known.replaced.isdisjoint(op.results)]
        self._before_barriers = _before_barriers(ops)
        self.body = Numbered(ops, self._before_barriers)
        self._next: dict[ir.Value, ir.Value] = dict(zip(block.arguments, terminator(block).operands, strict=True))
        self._tested = tested(loop)
        roots = [value for value in (*self._next, *self.body.producers) if value in known.early]
        self._values = Dependences(Numbered(ops), instead=self._next).behind([*roots, *self._tested])
        self._early = self._making(self._values)
        self._late_arguments, self._late = self._find_late()
        self.has_late_products = any(is_product(self.body.ops[number]) for number in self._late)

    def _past(self, value: ir.Value) -> ir.Value:
        return self._before_barriers.get(value, value)

    def _making(self, values: Collection[ir.Value]) -> set[int]:
        """The operations that make any of `values`."""
        return {number for number, op in enumerate(self.body.ops) if any(result in values for result in op.results)}

    def _find_late(self) -> tuple[list[ir.Value], list[int]]:
        """The values that only the second half carries, and the operations of the second half."""
        late = [number for number in range(len(self.body.ops)) if number not in self._early]
        effects = {number for number in late if has_side_effect(self.body.ops[number])}
        results = zip(self._next, self._loop.results, strict=True)
        roots = [argument for argument, result in results if is_used(result) and argument not in self._values]
        roots += [value for op in effects for value in (*self.body.results[op], *self.body.operands[op])]
        needs = Dependences(self.body, instead=self._next | self._before_barriers)
        values = needs.behind(roots).difference(self._values, self._before_barriers)
        needed = effects | self._making(values)
        return [argument for argument in self._next if argument in values], [op for op in late if op in needed]

    def divided(self) -> TwoLoops:
        """The two loops, with the fewest bytes between them."""
        last = [self._past(self._next[argument]) for argument in self._late_arguments]
        moved, again = divide(self, self._late, last, self._size)
        first = sorted(self._early | moved)
        rest = (set(self._late) - moved) | again
        used = {value for op in rest for value in self.body.operands[op]}.union(last)
        counting = [argument for argument in self._counting(used) if argument not in self._late_arguments]
        behind = Dependences(Numbered(self.body.ops)).behind(self._next[argument] for argument in counting)
        second = sorted(rest | self._making(behind))
        made = {result for op in second for result in self.body.results[op]}
        carried = [argument for argument in self._next if argument in self._values]
        here = [argument for argument in carried if argument not in counting]
        here += [result for op in first for result in self.body.results[op]]
        kept = [value for value in here if value in used and value not in made]
        late = [*counting, *self._late_arguments]
        position = {argument: number for number, argument in enumerate(self._next)}
        return TwoLoops(
            self._loop,
            Half([position[argument] for argument in carried], self._all(first), self._late_barriers()),
            Half([position[argument] for argument in late], self._all(second), self._before_barriers),
            kept,
        )

    def _all(self, numbers: Iterable[int]) -> list[ir.Operation]:
        return [self.body.ops[number] for number in numbers]

    def _late_barriers(self) -> dict[ir.Value, ir.Value]:
        """For each result of a barrier that the first half does not have, the value before the barrier."""
        return {result: value for result, value in self._before_barriers.items() if result not in self._values}

    def _counting(self, used: Collection[ir.Value]) -> list[ir.Value]:
        """Return the carried values that the test of the second half reads, and the counters that its body reads."""
        arguments = list(self._next)
        read = {arguments[position] for position, *_ in counters(self._loop)}.intersection(used)
        return [argument for argument in arguments if argument in read or argument in self._tested]

    def _size(self, value: ir.Value) -> int:
        """Return the cost of keeping `value`: its bytes, or for a value of the body those of all trips and 1 more."""
        inside = value in self.body.producers or value in self._next
        return self._trips * byte_size(value.type) + 1 if inside else byte_size(value.type)

    def is_free(self, value: ir.Value) -> bool:
        return value in self._known.free and value not in self.body.producers

    def is_early(self, value: ir.Value) -> bool:
        if value in self.body.producers:
            return self.body.producers[value] in self._early
        if value in self._next:
            return value in self._values
        return value in self._known.early or value in self._known.arguments

    def may_move(self, op: int) -> bool:
        return may_be_in_either(self.body.ops[op])

    def may_repeat(self, op: int) -> bool:
        return op in self._early and is_cheap(self.body.ops[op])


def _before_barriers(ops: Iterable[ir.Operation]) -> dict[ir.Value, ir.Value]:
    """Return for each result of a barrier the value before all barriers."""
    before: dict[ir.Value, ir.Value] = {}
    for op in ops:
        if op.name == "stablehlo.optimization_barrier":
            for result, value in zip(op.results, op.operands, strict=True):
                before[result] = before.get(value, value)
    return before
