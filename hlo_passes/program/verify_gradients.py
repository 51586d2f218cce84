"""`verify-gradients`: checks that each sum over the microbatches has every microbatch once, by one factor."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.errors import PassError
from jaxpp.ir.linear_terms import WrongSum
from jaxpp.ir.manual_sums import unreduced
from jaxpp.ir.step_sums import step_sums


class VerifyGradients(Pass):
    """Checks that each sum over the microbatches is whole where it is read, and changes nothing.

    Gradients and losses are such sums. Tasks add to them, on one mesh or on several, and the parts of several meshes
    are added after the tasks. The pass looks at what leaves the step, and at what enters an operation that is not
    linear, such as a norm, a clip, or an optimizer's update. It follows that value back through all additions:

    - If several microbatches of a stage have a term in it, all microbatches have one of which the stage has such tasks.
    - Each of these terms has the same factor, and is summed over the same axes. No term is there twice.
    - What leaves a `shard_map` without an axis in its sharding is no sum of each device's own rows along that axis.

    The pass can't tell a sum that the user wrote from one that a pass spoiled in all its terms. `--validate` compares
    the sums of each phase with those of the step as the user wrote it. Nor does the pass say anything about values of
    one microbatch, moving averages, maxima and stacks, or about the values that a task makes itself. That a call reads
    the values of its own microbatch is for `verify-program` to prove.

    Data and tensor parallelism inside of a task are XLA's own. There a value that is sharded over an axis is whole, so
    this pass has nothing to check. It follows explicit collectives in a `shard_map`, and the reductions that
    `delay-reductions` and `once-per-run` moved behind the tasks.

    Preconditions: `find-microbatch-loop` ran. A module with its loop keeps every such sum.

    ```mlir
    %a = call @backward_0(%x0, %zero) {jaxpp.microbatch = 0, ...}   ==>   error: a sum over 3 microbatches lacks what
    %b = call @backward_0(%x1, %zero) {jaxpp.microbatch = 1, ...}         the backward of stage 0 adds for microbatch 0
    %c = call @backward_0(%x2, %b) {jaxpp.microbatch = 2, ...}
    return %c
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Checks `module`. Raises PassError, at the operation that reads the sum."""
        raise_first([*unreduced(module), *step_sums(module).wrong])


def raise_first(found: Sequence[WrongSum]) -> None:
    """Raises PassError for the first wrong sum, if there is one."""
    for message, location, hint in found:
        raise PassError(message, location=location, hint=hint)
