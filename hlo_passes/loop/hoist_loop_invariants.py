"""`hoist-loop-invariants`: what is the same for every microbatch is computed once per step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.loop.invariants import Invariants
from jaxpp.ir.build import rewire
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbering import kind_of


@dataclass(frozen=True)
class HoistLoopInvariants(Pass):
    """Moves what depends only on loop invariants and constants out of the microbatch loop: once per step is enough.

    - Moved: matrix products, transcendental functions, reductions, loops... of invariants; a cast to a smaller type
      (weights to bfloat16); arithmetic on whole weights (`w * scale`); chains of more operations than are worth
      computing again.
    - Not moved: what is cheap to compute again and big to keep (a broadcast, an iota, a mask, a transposition); casts
      to 8-bit floats, which XLA fuses with their product, and operations that only these use; side effects; a value
      that the user sends to the next stage through a mark.
    - `jax.checkpoint` computes its casts again in the backward, behind a barrier: invariants pass it, so that the
      forward and the backward use one cast.

    `infer-placement` puts the moved operations where their users are. Gradients of a cast weight are converted and
    added for each microbatch as before: they stay sums in the accumulator's own type.

    Preconditions: `find-microbatch-loop` ran. A loop over one microbatch stays as it is.

    ```mlir
    %r = stablehlo.while(%i = %c0, %acc = %zero)         ==>   %b = stablehlo.convert %w : (f32) -> bf16
      { %b = stablehlo.convert %w : (f32) -> bf16              %r = stablehlo.while(%i = %c0, %acc = %zero)
        %y = stablehlo.dot_general %x, %b ... }                  { %y = stablehlo.dot_general %x, %b ... }
    ```
    """

    name: ClassVar[str] = "hoist-loop-invariants"

    def run(self, module: ir.Module) -> None:
        """Move the invariants out of the loop of `module`. Raises PassError when there is none in canonical form."""
        loop = MicrobatchLoop.of(module)
        if loop.length > 1:
            _Hoist(loop.op, Invariants(loop.body)).run()


class _Hoist:
    """Moves operations in front of the loop; those that the loop needs too, to compute them again, are cloned."""

    def __init__(self, loop: ir.Operation, invariants: Invariants) -> None:
        self._loop = loop
        self._invariants = invariants
        self._values: dict[ir.Value, ir.Value] = {}
        self._made: dict[object, Sequence[ir.Value]] = {}
        self._dead: list[ir.Operation] = []

    def run(self) -> None:
        """Move them all."""
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
        """Let the equal operation that was moved before, if there is one, stand for `op`."""
        results = list(op.results)
        kind, uses = kind_of(op)  # none has a side effect
        first = self._made.setdefault((kind, *uses), results)
        if first is not results:
            for old, new in zip(results, first, strict=True):
                old.replace_all_uses_with(new)
            self._dead.append(op)
            results = first
        for old, new in zip(originals, results, strict=True):
            if old != new:
                self._values[old] = new
