"""`mark-stages`: marks the ends of stages in a module that has no marks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import boundary
from jaxpp.ir.boundary import Boundary
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import nested, operations
from jaxpp.ir.locations import is_backward, is_in_scope
from jaxpp.ir.numbered import Numbered


@dataclass(frozen=True)
class MarkStages(Pass):
    """Puts stage marks into a training step that was lowered without any.

    A stage ends after each of the given scopes. JAX writes `jax.named_scope("layer0")` into the locations of the
    operations: `jvp(layer0)` in the forward, and `transpose(jvp(layer0))` in the backward. A jitted function `layer` is
    the scope `layer`, and `layer#1` is the second of its calls.

    The forward mark takes the values of the scope that later operations of the forward read. The backward mark takes
    the gradients that the backward of the scope reads, or that of an earlier scope. A forward alone gets no backward
    marks. The last stage needs no scope.

    Preconditions: the operations have their locations, in one function or one loop, and there are no marks. So it
    stands before `inline-calls`.

    Options:
        after: the scopes, in the order of the forward: "layer0 layer1", or "layer#0 layer#1".

    ```mlir
    %0 = stablehlo.tanh %x loc("jvp(layer0)/tanh")
    %1 = stablehlo.tanh %0 loc("jvp(layer1)/tanh")
    %3 = stablehlo.multiply %2, %0 loc("transpose(jvp(layer1))/mul")
    %4 = stablehlo.multiply %3, %x loc("transpose(jvp(layer0))/mul")
    ==>
    %0 = stablehlo.tanh %x
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {phase = "forward", stage = 0, ...}} %0
    %1 = stablehlo.tanh %m
    %3 = stablehlo.multiply %2, %m
    %g = stablehlo.optimization_barrier {jaxpp.boundary = {phase = "backward", stage = 0, ...}} %3
    %4 = stablehlo.multiply %g, %x
    ```
    """

    after: str

    def run(self, module: ir.Module) -> None:
        """Marks the stages of `module`. Raises PassError for a scope whose values or gradients can't be told."""
        every = list(nested(module.operation))
        marked = next((op for op in every if boundary.is_mark(op)), None)
        if marked is not None:
            raise PassError("the module has a stage mark", location=marked.location, hint="mark it in one way alone")
        names = self.after.split()
        block = _block_of(names, every)
        ...
