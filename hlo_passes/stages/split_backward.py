"""`split-backward`: splits the backward of a stage into two tasks, where the schedule asks for it."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.stages.fission import halve
from jaxpp.hlo_passes.stages.halves import Backward, weight_shapes
from jaxpp.hlo_passes.stages.two_halves import write_constructs
from jaxpp.ir.accumulators import find_accumulators
from jaxpp.ir.functions import body_of, bytecode_of, callee, functions, kind_and_stage, operations, terminator
from jaxpp.ir.kinds import HALVES
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.outlining import outline_task
from jaxpp.ir.phases import check_tasks, tasks_of
from jaxpp.ir.shardings import MeshAxes


class SplitBackward(Pass):
    """Splits a backward into `@input_grad_i` and `@weight_grad_i`, for the stages whose schedule asks for these tasks.

    - The input gradient makes the results that other tasks wait for, and everything on which they depend. The main one
      is the gradient that crosses to the previous stage. The input gradient also makes what is no gradient of a weight,
      such as losses, unless that needs a product of a weight gradient. A sum that is a scalar, or has the shape of no
      weight that the stage reads, is no gradient of a weight.
    - The weight gradient makes the other results: the products that are gradients of weights, their sums over the
      microbatches, and metrics of them.
    - In the first stage no gradient crosses, as its input needs none. There the input gradient makes the products on
      which other products depend, as in any stage.
    - The pass chooses the values that the input gradient keeps for the weight gradient, so that the fewest bytes stay
      alive. The weight gradient recomputes cheap values. Elementwise operations and reductions that only the weight
      gradient needs, such as the gradient of a norm's scale, may move to the input gradient. Products never move.
    - A loop that makes both gradients, such as a `lax.scan` over layers, becomes two loops. The first loop stacks the
      values that the second reads in each trip, again the fewest bytes. A conditional becomes two conditionals, which
      take the same branch. Nested loops and conditionals are split too.
    - The pass refuses a loop that makes both gradients if it runs an unknown number of times or stands in a
      `shard_map`. It also refuses such a conditional if it returns a token. Each callback stays in one of the two.

    A half without operations is no task: a stage without weights has no weight gradient. If the last stage's forward
    and backward are one task, the forward becomes a part of the input gradient. A schedule may split a stage for some
    microbatches only (DualPipe). For the others `unroll-microbatches` joins the halves again.

    Preconditions: `outline-stages` ran.

    ```mlir
    %d:2 = call @backward_1(%x, %w, %dy, %sum)    ==>   %d:2 = call @input_grad_1(%x, %w, %dy)
                                                        %s = call @weight_grad_1(%x, %d#1, %sum)
    ```
    """

    def run(self, module: ir.Module) -> None:
        """Splits the backwards of `module`. Raises PassError for one that can't be split."""
        loop = MicrobatchLoop.of(module)
        stages = loop.stages_with(*HALVES)
        if not stages:
            return
        check_tasks(module, loop.body)
        by_name = functions(module)
        sums = {value: each for each in find_accumulators(loop, by_name).values() for value in each.values}
        calls = {stage: op for (kind, stage), op in tasks_of(module, loop.body).items() if kind == "backward"}
        split = [(by_name[callee(op)], op) for stage, op in calls.items() if stage in stages]
        # All backwards are read before the first edit, because the calls use each other's results.
        mesh, weights = MeshAxes.of(module), weight_shapes(loop)
        backwards = [Backward(loop, *each, sums, weights[kind_and_stage(each[0])[1]]) for each in split]
        _treat_slices_alike(loop, split, backwards)
        for each, backward in zip(split, backwards, strict=True):
            _split(module, *each, backward, mesh)


def _treat_slices_alike(
    loop: MicrobatchLoop, split: Sequence[tuple[ir.Operation, ir.Operation]], backwards: Sequence[Backward]
) -> None:
    """Makes the slices of a stage agree on the awaited results and on the free arguments, so that they are split alike.

    No task awaits the gradients of keys and values of the first slice. Some slices read rows of keys and values from
    another slice, which keeps them. The same arguments are zeros in the first slice. No slice has to keep them.
    """
    groups: dict[bytes, list[Backward]] = {}
    for (function, _), backward in zip(split, backwards, strict=True) if loop.slices > 1 else ():
        groups.setdefault(bytecode_of(function), []).append(backward)
    for group in groups.values():
        awaited = set[int]().union(*(backward.awaited for backward in group))
        free = {k for backward in group for k, each in enumerate(backward.arguments) if each in backward.free}
        for backward in group:
            backward.awaited = awaited
            backward.free.update(backward.arguments[k] for k in free)


def _split(
    module: ir.Module, function: ir.Operation, old: ir.Operation, backward: Backward, mesh: MeshAxes | None
) -> None:
    """Replaces `old`, the call of `function`, by calls of its halves, and erases `function`."""
    halved = halve(backward)
    kept = write_constructs(halved, mesh)
    body = Numbered(operations(body_of(function))[:-1]) if halved.constructs else backward.body
    values: dict[ir.Value, ir.Value] = dict(zip(body_of(function).arguments, old.operands, strict=True))
    returned = list(terminator(body_of(function)).operands)
    sides: tuple[list[ir.Value], list[ir.Value]] = ([], [])
    for value, before in zip(returned, backward.returned, strict=True):
        if value in body.producers:
            sides[before not in halved.early].append(value)
    first, second = (list(dict.fromkeys(outputs)) for outputs in ([*sides[0], *kept], sides[1]))
    _, input_grad = body.part(first, {}, halved.acting[0])
    _, weight_grad = body.part(second, dict.fromkeys(kept, ()), halved.acting[1])
    both = {*input_grad}.intersection(weight_grad)
    for kind, ops, outputs in (("input_grad", input_grad, first), ("weight_grad", weight_grad, second)):
        members = [body.member(op, moves=op not in both) for op in ops]
        values |= outline_task(module, kind, f"{kind}_{backward.stage}", members, outputs, old, values)
    for result, value in zip(old.results, returned, strict=True):
        result.replace_all_uses_with(values[value])
    old.erase()
    function.erase()
