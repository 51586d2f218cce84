"""`hoist-loop-invariants`: computes values that are the same for every microbatch once per step."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import boundary
from jaxpp.ir.build import rewire
from jaxpp.ir.functions import has_side_effect, operations, terminator
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.numbering import kind_of
from jaxpp.ir.ops import MOST_RECOMPUTED, float_width, is_cheap, traits
from jaxpp.ir.values import ByteSizes, closure, defining_op, viewed


class HoistLoopInvariants(Pass):
    """Moves operations that depend only on loop invariants and constants out of the microbatch loop.

    They then run once per step instead of once per microbatch.

    - The pass moves matrix products, transcendental functions, reductions and loops. It also moves casts to a smaller
      type (weights to bfloat16), arithmetic on whole weights (`w * scale`), and chains that are too long to recompute.
    - It leaves results that are cheap to recompute and big to keep: a broadcast, an iota, a mask, a transposition.
    - It leaves casts to 8-bit floats, which XLA fuses with their product, and operations that only these casts use.
    - It leaves operations with side effects, and values that the user sends to the next stage through a mark.
    - `jax.checkpoint` recomputes casts in the backward, after a barrier. Invariants bypass the barrier, so that forward
      and backward use one cast.

    `infer-placement` puts the moved operations on the meshes of their users. Gradients of a cast weight are still
    converted and added for each microbatch, so that the sum stays in the accumulator's own type.

    Preconditions: `number-stages` ran. A loop over one microbatch stays as it is.

    ```mlir
    %r = stablehlo.while(%i = %c0, %acc = %zero)         ==>   %b = stablehlo.convert %w : (f32) -> bf16
      { %b = stablehlo.convert %w : (f32) -> bf16              %r = stablehlo.while(%i = %c0, %acc = %zero)
        %y = stablehlo.dot_general %x, %b ... }                  { %y = stablehlo.dot_general %x, %b ... }
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Moves the invariants out of the loop of `module`. Raises PassError when there is no canonical loop."""
        loop = MicrobatchLoop.of(module)
        if loop.length > 1:
            _hoist(loop.op, _Invariants(loop.body))


class _Invariants(Numbered):
    """The loop-invariant operations of `body`, by their index in it.

    Attributes:
        behind_barriers: maps the results of barriers that are no marks to the invariants that they return.
            `jax.checkpoint` puts such a barrier before its recomputation.
    """

    def __init__(self, body: ir.Block) -> None:
        super().__init__(operations(body)[:-1])
        self.behind_barriers: dict[ir.Value, ir.Value] = {}
        self._invariant: list[bool] = []
        self._carried = set[ir.Value](body.arguments)
        self._sent = {value for op in self.ops if boundary.is_mark(op) for value in op.operands}
        for number in range(len(self.ops)):
            self._read(number)
        self._sizes = ByteSizes()
        for value in terminator(body).operands:
            if value in self.producers:
                self.users[self.producers[value]].append(len(self.ops))  # the loop itself
        self._for_8_bits = self._find_for_8_bits()
        # For each operation: how many operations recompute its result; if it is made of constants only; and the bytes
        # of the largest value from which it is made.
        self._length = [0] * len(self.ops)
        self._constant = [False] * len(self.ops)
        self._bytes = [0] * len(self.ops)
        self._worth = [self._invariant[n] and self._is_worth(n) for n in range(len(self.ops))]

    def hoisted(self) -> dict[int, bool]:
        """Maps the operations to compute before the loop, in program order, to whether the loop recomputes them too.

        The loop recomputes a cheap operation (a broadcast) that it uses, and that a moved operation also uses.
        """
        roots = {*(n for n, worth in enumerate(self._worth) if worth), *self._long_chains()}
        found = closure(roots, self.makers.__getitem__).keys()
        return {n: n not in roots and not found >= {*self.users[n]} for n in sorted(found)}

    def _read(self, number: int) -> None:
        op, results = self.ops[number], self.results[number]
        if self.behind_barriers:
            self.operands[number] = [self.behind_barriers.get(value, value) for value in self.operands[number]]
            self.makers[number] = [self.producers[value] for value in self.operands[number] if value in self.producers]
        values, makers = self.operands[number], self.makers[number]
        if boundary.is_barrier(op):
            for result, value, is_fixed in zip(results, op.operands, map(self._is_fixed, op.operands), strict=True):
                if is_fixed:
                    self.behind_barriers[result] = self.behind_barriers.get(value, value)
        self._invariant.append(
            all([self._invariant[maker] for maker in makers])
            and (len(makers) == len(values) or all(map(self._is_fixed, values)))
            and op.name != boundary.BARRIER
            and self._sent.isdisjoint(results)
            and all(isinstance(result.type, ir.RankedTensorType) for result in results)
            and not _casts_to_8_bits(op)
            and not has_side_effect(op)
        )

    def _is_fixed(self, value: ir.Value) -> bool:
        value = self.behind_barriers.get(value, value)
        number = self.producers.get(value)
        return value not in self._carried if number is None else self._invariant[number]

    def _find_for_8_bits(self) -> list[bool]:
        """Returns for each operation whether it is a cast to 8-bit floats, or is cheap and only such casts use it."""
        found = [*map(_casts_to_8_bits, self.ops), False]
        for number in reversed(range(len(self.ops) if any(found) else 0)):
            op, users = self.ops[number], self.users[number]
            found[number] = found[number] or (is_cheap(op) and bool(users) and all(found[user] for user in users))
        return found

    def _is_worth(self, number: int) -> bool:
        """Whether to keep the result of an invariant operation through the step, instead of recomputing it.

        Also fills `_length`, `_constant` and `_bytes` of the operation.
        """
        op, producers = self.ops[number], self.makers[number]
        if op.name == "stablehlo.constant":
            self._constant[number], self._length[number] = True, 1
            return False
        outside = [value for value in self.operands[number] if value not in self.producers]
        size = sum([self._sizes[result.type] for result in op.results])
        self._constant[number] = all(self._constant[n] for n in producers) and all(map(_is_constant, outside))
        sources = [self._sizes[value.type] for value in outside if not _is_constant(value)]
        sources += [self._bytes[n] for n in producers if not self._constant[n]]
        self._bytes[number] = max(sources, default=0)
        scalar = all(ir.RankedTensorType(result.type).rank == 0 for result in op.results)
        if not is_cheap(op):
            worth = True
        elif op.name == "stablehlo.convert":
            worth = 0 < size < self._bytes[number] and size < self._sizes[op.operands[0].type] and not scalar
        else:
            worth = _is_arithmetic(op) and size <= self._bytes[number] and not scalar
        worth = worth and not self._for_8_bits[number]
        if worth:
            self._bytes[number] = size
        else:
            length = 1 + sum(self._length[n] for n in producers)
            self._length[number] = min(length, MOST_RECOMPUTED + 1)
        return worth

    def _long_chains(self) -> list[int]:
        """Returns the invariants that the loop uses and that take more than `MOST_RECOMPUTED` operations to recompute.

        A cheap operation that enlarges its operands (a broadcast) is not among them. In its place are the operations
        that make its operands, if they take that many too.
        """
        work = [
            number
            for number, users in enumerate(self.users)
            if self._length[number] > MOST_RECOMPUTED
            and not self._for_8_bits[number]
            and not all(user < len(self.ops) and self._invariant[user] for user in users)
        ]
        found: list[int] = []
        seen = set(work)
        while work:
            number = work.pop()
            op = self.ops[number]
            inward = max((self._sizes[value.type] for value in op.operands), default=0)
            if is_cheap(op) and sum(self._sizes[result.type] for result in op.results) > inward:
                fresh = [n for n in self.makers[number] if self._length[n] > MOST_RECOMPUTED and n not in seen]
                seen.update(fresh)
                work.extend(fresh)
            else:
                found.append(number)
        return found


def _hoist(loop: ir.Operation, invariants: _Invariants) -> None:
    """Moves the operations of `_Invariants.hoisted` in front of `loop`, or clones those that the loop recomputes too.

    An operation that equals one in front of it is merged with that one.
    """
    values: dict[ir.Value, ir.Value] = {}
    made: dict[object, Sequence[ir.Value]] = {}
    merged: list[ir.Operation] = []
    for number, inside_too in invariants.hoisted().items():
        op = invariants.ops[number]
        if inside_too:
            op = op.clone(ir.InsertionPoint(loop)).operation
        else:
            op.move_before(loop)
        rewire(op, values, invariants.behind_barriers)
        kind, uses = kind_of(op)  # equal operations can be merged: none has a side effect
        results = list(op.results)
        first = made.setdefault((kind, *uses), results)
        if first is not results:
            for old, new in zip(results, first, strict=True):
                old.replace_all_uses_with(new)
            merged.append(op)
        values.update((old, new) for old, new in zip(invariants.results[number], first, strict=True) if old != new)
    for op in merged:
        op.erase()


def _is_arithmetic(op: ir.Operation) -> bool:
    """Whether a cheap `op` is elementwise, and neither a view nor one that makes booleans (a mask)."""
    element = ir.RankedTensorType(op.results[0].type).element_type
    mask = isinstance(element, ir.IntegerType) and element.width == 1
    return traits(op).elementwise and not traits(op).view and not mask


def _casts_to_8_bits(op: ir.Operation) -> bool:
    """Whether `op` is a cast to floats of 8 bits or less."""
    return op.name == "stablehlo.convert" and 0 < float_width(op.results[0]) <= 8


def _is_constant(value: ir.Value) -> bool:
    """Whether a value from outside the loop is a constant or an iota, perhaps seen through views."""
    op = defining_op(viewed(value))
    return op is not None and op.name in ("stablehlo.constant", "stablehlo.iota")
