"""`split-forward`: the residuals of a stage made again by a task of their own, where the schedule asks for it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import (
    body_of,
    call,
    callee,
    functions,
    has_side_effect,
    kind_and_stage,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.outlining import outline
from jaxpp.ir.phases import check_tasks
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.values import defining_op

BACKWARDS = ("backward", "input_grad", "weight_grad")
"""The kinds of tasks that read the residuals of their stage."""

Uses = Sequence[tuple[ir.Operation, int]]


@dataclass(frozen=True)
class SplitForward(Pass):
    """Makes a second task of a forward, `@recompute_i`, for the stages whose schedule recomputes their residuals.

    - The forward returns what other stages, later microbatches and the results of the loop need of it, and no more; a
      forward of which nobody else needs anything, as the last stage's, goes.
    - The recompute makes what the backward of its own stage reads: the residuals. It takes what the forward took, the
      stage's input, the weights, the keys of random numbers, and does the same operations. XLA may fuse them otherwise,
      and so round a residual otherwise in its last place. What the user put under `jax.checkpoint` is no residual, and
      stays in the backward.
    - An operation that does something besides its results (`debug.print`, a callback with effects) runs once, in the
      forward; residuals that depend on its results can't be made again, and are refused.

    For the microbatches that the schedule does not recompute `fuse-tasks` puts the two together again. A stage whose
    forward and backward are one task keeps no residuals, and stays as it is.

    Preconditions: `outline-stages` ran, and `split-backward` for a schedule that splits.

    ```mlir
    %y:2 = call @forward_0(%x, %w)     ==>   %y = call @forward_0(%x, %w)
                                             %r = call @recompute_0(%x, %w)
    %d = call @backward_0(%y#1, %dy)         %d = call @backward_0(%r, %dy)
    ```
    """

    name: ClassVar[str] = "split-forward"

    def run(self, module: ir.Module) -> None:
        """Split the forwards of `module`. Raises PassError for residuals that can't be made again."""
        loop = MicrobatchLoop.of(module)
        stages = loop.stages_with("recompute")
        if not stages:
            return
        check_tasks(module, loop.body)
        by_name = functions(module)
        forwards = {("forward", stage) for stage in stages}
        for op in operations(loop.body):
            if op.name == "func.call" and kind_and_stage(by_name[callee(op)]) in forwards:
                _split(module, by_name, op)


def _split(module: ir.Module, by_name: Mapping[str, ir.Operation], old: ir.Operation) -> None:
    """Replace `old`, the call of a forward, by calls of what it hands on and of what makes its residuals."""
    function = by_name[callee(old)]
    block, stage = body_of(function), old.attributes[at.STAGE]
    number = ir.IntegerAttr(stage).value
    returned = list(terminator(block).operands)
    inside = [_uses_of_backward(use_of, by_name, number) for use_of in old.results]
    residuals = list(dict.fromkeys(returned[n] for n, (own, _) in enumerate(inside) if own))
    if not residuals:
        return
    handed_on = list(dict.fromkeys(returned[n] for n, (_, others) in enumerate(inside) if others))
    shardings = Shardings(module)
    old_name = callee(old)
    function.attributes["sym_name"] = ir.StringAttr.get(f"{old_name}_whole")
    arguments: dict[ir.Value, ir.Value] = dict(zip(block.arguments, old.operands, strict=True))
    made: dict[str, dict[ir.Value, ir.Value]] = {}
    for kind, name, outputs in (
        ("forward", old_name, handed_on),
        ("recompute", f"recompute_{number}", residuals),
    ):
        ops = _behind(block, outputs, effects=kind == "forward")
        if not ops and not outputs:  # the last stage's forward, where the loss is made in its backward
            continue
        if kind == "recompute":
            _check_pure(ops, number)
        attributes = {at.KIND: ir.StringAttr.get(kind), at.STAGE: stage}
        part = outline(module, name, ops, outputs, attributes, shardings)
        operands = [arguments[value] for value in part.inputs]
        types = [value.type for value in outputs]
        new = call(name, types, operands, {at.STAGE: stage}, ir.InsertionPoint(old), old.location)
        made[kind] = dict(zip(outputs, new.results, strict=True))
    for n, (own, others) in enumerate(inside):
        for uses, kind in ((own, "recompute"), (others, "forward")):
            for op, position in uses:
                op.operands[position] = made[kind][returned[n]]
    old.erase()
    function.erase()


def _uses_of_backward(value: ir.Value, by_name: Mapping[str, ir.Operation], stage: int) -> tuple[Uses, Uses]:
    """The uses (operation, number of the operand) of `value` by the backward of its own stage, and all others."""
    own: list[tuple[ir.Operation, int]] = []
    others: list[tuple[ir.Operation, int]] = []
    for use in value.uses:
        op = use.owner.operation
        kind, of = kind_and_stage(by_name[callee(op)]) if op.name == "func.call" else ("", -1)
        (own if kind in BACKWARDS and of == stage else others).append((op, use.operand_number))
    return own, others


def _behind(block: ir.Block, outputs: Collection[ir.Value], *, effects: bool) -> list[ir.Operation]:
    """The operations that `outputs` depend on, in program order; with `effects` also those that act by themselves."""
    ops = operations(block)[:-1]
    needed = {op for value in outputs if (op := defining_op(value)) is not None}
    for op in reversed(ops):
        if op in needed or (effects and has_side_effect(op)):
            needed.add(op)
            needed.update(made for value in operands_with_captures(op) if (made := defining_op(value)) is not None)
    return [op for op in ops if op in needed]


def _check_pure(ops: Sequence[ir.Operation], stage: int) -> None:
    op = next(filter(has_side_effect, ops), None)
    if op is not None:
        raise PassError(
            f"the residuals of stage {stage} can't be made again: a {op.name} with side effects is among what they "
            "depend on",
            location=op.location,
            hint="give the schedule without the recompute of this stage, or mark a stage end behind it",
        )
