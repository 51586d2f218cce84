"""`hoist-loop-invariants`: computes values that are the same for every microbatch once per step."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.invariants import Invariants
from jaxpp.ir.build import rewire
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbering import kind_of


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
            _Hoist(loop.op, Invariants(loop.body)).run()


class _Hoist:
    """The rewrite of the loop: moves operations in front of it, or clones them where the loop recomputes them too."""

    def __init__(self, loop: ir.Operation, invariants: Invariants) -> None:
        self._loop = loop
        self._invariants = invariants
        self._values: dict[ir.Value, ir.Value] = {}
        self._made: dict[object, Sequence[ir.Value]] = {}
        self._dead: list[ir.Operation] = []

    def run(self) -> None:
        """Moves or clones all operations of `Invariants.hoisted`."""
        for number, inside_too in self._invariants.hoisted().items():
            op = self._invariants.ops[number]
            results = list(op.results)
            if inside_too:
                op = op.clone(ir.InsertionPoint(self._loop)).operation
            else:
                op.move_before(self._loop)
            rewire(op, self._values, self._invariants.behind_barriers)
            self._settle(op, results)
        for op in self._dead:
            op.erase()

    def _settle(self, op: ir.Operation, originals: Sequence[ir.Value]) -> None:
        """Replaces `op`, now in front of the loop, by an equal operation that moved before it, if there is one.

        Later operations that move use the results instead of `originals`.
        """
        results = list(op.results)
        kind, uses = kind_of(op)  # equal operations can be merged: none has a side effect
        first = self._made.setdefault((kind, *uses), results)
        if first is not results:
            for old, new in zip(results, first, strict=True):
                old.replace_all_uses_with(new)
            self._dead.append(op)
            results = first
        for old, new in zip(originals, results, strict=True):
            if old != new:
                self._values[old] = new
