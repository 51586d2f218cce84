"""`split-forward`: recomputes the residuals of a stage in a separate task, where the schedule asks for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.stages.kept_values import INPUTS, Keep, parse_keep
from jaxpp.hlo_passes.stages.remade_values import Forward, Remaking
from jaxpp.hlo_passes.stages.ties import read_together
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import (
    body_of,
    callee,
    functions,
    has_side_effect,
    kind_and_stage,
    nested,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.kinds import BACKWARDS
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Member, Numbered
from jaxpp.ir.outlining import outline_task
from jaxpp.ir.phases import check_tasks, tasks_of
from jaxpp.schedules.model.task import Unit

Uses = Sequence[tuple[ir.Operation, int]]

_INPUTS = Keep(inputs=True)


@dataclass(frozen=True)
class SplitForward(Pass):
    """Splits a forward into `@forward_i` and `@recompute_i`, for the stages whose schedule recomputes their residuals.

    - The forward returns only the values that other stages, later microbatches or the results of the loop need, and the
      kept values. If only its own backward needs its results, as for the last stage, the forward goes away, and no
      values are kept.
    - The recompute makes the residuals, which the backward of its own stage reads. It makes them from the kept values,
      and from values that exist anyway: weights, the batch, keys of random numbers. It runs the forward's operations.
      XLA may fuse these differently, and then a residual may differ in its last place. Values that the user put under
      `jax.checkpoint` are no residuals, and stay in the backward.
    - The kept values are the stage's inputs, or the fewest bytes from which the residuals can be made within a limit.
      With `selective`, the recompute runs no product with weights, no convolution and no other costly operation. It may
      run products of activations, as in attention (the selective recomputation of Korthikanti et al.,
      arXiv:2205.05198). With a number, it takes at most this share of the forward's FLOPs, in operations of any kind.
      With bytes, such as `4096B`, the forward keeps at most so many for a microbatch, on all devices of the mesh
      together. The recompute then takes the fewest FLOPs.
    - A loop that runs a known number of times, such as a `lax.scan` over layers, may be recomputed in part. The forward
      then has a loop that stacks the kept values of each trip. The recompute has a loop that reads them and makes the
      others. The same holds for nested loops.
    - An operation with a side effect (`debug.print`, a callback with effects) runs once, in the forward. Its results
      are kept. With `inputs`, the pass refuses residuals that depend on them.

    For the microbatches that the schedule does not recompute, `unroll-microbatches` joins the two tasks again. A stage
    whose forward and backward are one task keeps no residuals, and stays as it is. Where `keep` names a stage that the
    schedule does not recompute, the pass adds a recompute before each of its backwards. An entry of `keep` for all
    stages adds recomputes only to a schedule that has none.

    Options:
        keep: the values to keep: `inputs`, `selective`, a number from 0 to 1, or bytes; for single stages
            `0:selective 3:0.05`. If empty, the inputs of the stages that the schedule recomputes.

    Preconditions: `outline-stages` ran, and `split-backward` for a schedule that splits.

    ```mlir
    %y:2 = call @forward_0(%x, %w)     ==>   %y = call @forward_0(%x, %w)
                                             %r = call @recompute_0(%x, %w)
    %d = call @backward_0(%y#1, %dy)         %d = call @backward_0(%r, %dy)
    ```
    """

    keep: str = ""

    def __post_init__(self) -> None:
        parse_keep(self.keep)

    def run(self, module: ir.Module) -> None:
        """Splits the forwards of `module`. Raises PassError for residuals that can't be recomputed."""
        loop = MicrobatchLoop.of(module)
        keeps = parse_keep(self.keep)
        if keeps:
            loop = _with_recomputes(loop, keeps)
        stages = loop.stages_with("recompute")
        if not stages:
            return
        check_tasks(module, loop.body)
        count = loop.stages_per_slice
        for (kind, stage), op in tasks_of(module, loop.body).items():
            if kind == "forward" and stage in stages:
                # Earlier splits have changed the functions of the module.
                split = _SplitForward(module, loop, functions(module), op)
                split.split(keeps.get(stage % count, keeps.get(None, _INPUTS)))


def choices(module: ir.Module, count: int) -> dict[int, list[tuple[int, int]]]:
    """Returns each stage's choices as (kept bytes, recomputed FLOPs), from keeping all residuals to the fewest bytes.

    A stage has up to `count` choices besides keeping all. The bytes are for one microbatch, on all devices of the mesh
    together. A stage whose residuals can't be recomputed, or that keeps none, has only one choice. `outline-stages`
    must have run.
    """
    loop, by_name = MicrobatchLoop.of(module), functions(module)
    found = {stage: [(0, 0)] for stage in range(loop.stages)}
    for (kind, stage), op in tasks_of(module, loop.body).items():
        if kind == "forward":
            split = _SplitForward(module, loop, by_name, op)
            each = split.forward.choices(count)
            # A forward that vanishes runs only as the recompute, which takes no additional FLOPs.
            found[stage] = [each[0], (0, 0)] if split.vanishes else each
    return found


def _with_recomputes(loop: MicrobatchLoop, keeps: Mapping[int | None, Keep]) -> MicrobatchLoop:
    """Returns the loop, with recomputes in its schedule for the stages of `keeps` that have none.

    An entry for all stages adds recomputes only to a schedule without any, and only to stages that keep residuals.

    Raises:
        PassError: `keeps` names a stage that does not exist.
    """
    named = {stage for stage in keeps if stage is not None}
    count = loop.stages_per_slice
    if named and max(named) >= count:
        message = f"there is no stage {max(named)} to recompute: the stages are 0 to {count - 1}"
        raise PassError(message, location=loop.op.location)
    present = {stage % count for stage in loop.stages_with("recompute")}
    if None in keeps and not present:
        named |= _waiting_stages(loop.plan)
    if named <= present:
        return loop
    return loop.rescheduled(lambda plan: schedules.recompute(plan, *sorted(named - present)))


def _waiting_stages(schedule: schedules.Schedule) -> set[int]:
    """Returns the stages that keep residuals: some backward does not follow its forward at once."""
    found: set[int] = set()
    for row in schedule.cells:
        last: set[Unit] = set()
        for cell in row:
            found |= {task.stage for task in cell if task.kind in BACKWARDS[:2] and task.unit not in last}
            last = {task.unit for task in cell} if any(task.kind == "forward" for task in cell) else set()
    return found


@dataclass(frozen=True)
class _SplitForward:
    """The split of one forward.

    Attributes:
        module: the module of the loop.
        loop: the loop over microbatches.
        by_name: the functions of the module.
        old: the call of the forward.
    """

    module: ir.Module
    loop: MicrobatchLoop
    by_name: Mapping[str, ir.Operation]
    old: ir.Operation

    def split(self, keep: Keep) -> None:
        """Replaces the call by a call of a forward, which keeps the values that `keep` allows, and of a recompute."""
        name, given = callee(self.old), dict(self._given)
        if not self._residuals:
            return
        again = self._recomputed(_INPUTS if self.vanishes else keep)
        values, residuals = self._values, self._residuals  # read again: `_recomputed` may have split loops
        handed_on = [value for value, _, others in values if others]
        remade = {result: result for op in again.ops for result in op.results} | again.twins
        read = [value for op in again.ops for value in operands_with_captures(op)]
        kept = [value for value in dict.fromkeys([*residuals, *read]) if value not in remade and value not in given]
        self._function.attributes["sym_name"] = ir.StringAttr.get(f"{name}_whole")
        outputs = list(dict.fromkeys([*handed_on, *kept]))
        body = Numbered([op for op in self._ops if op not in again.replaced])
        members = [body.member(number) for number in body.behind(outputs, also=body.acting)]
        given |= outline_task(self.module, "forward", name, members, outputs, self.old, given)
        for value, twin in again.twins.items():  # only the recompute is still to be outlined
            value.replace_all_uses_with(twin)
        outputs = [remade[value] for value in residuals if value in remade]
        name, members = f"recompute_{self._stage}", list(map(Member.of, again.ops))
        found = given | outline_task(self.module, "recompute", name, members, outputs, self.old, given)
        for value, own, others in values:
            for op, position in own:
                op.operands[position] = found[remade.get(value, value)]
            for op, position in others:
                op.operands[position] = given[value]
        self.old.erase()
        self._function.erase()

    @property
    def vanishes(self) -> bool:
        """Whether only the backward needs the forward's results, and the forward has no side effects.

        Such a forward becomes the recompute, and keeps no values.
        """
        return not any(others for _, _, others in self._values) and not any(map(has_side_effect, self._ops))

    @cached_property
    def forward(self) -> Forward:
        """The computation of the residuals, in which the arguments that the backward has anyway are free."""
        free = [argument for argument, value in self._given.items() if self._is_there(value)]
        return Forward(self.module, self._ops, self._residuals, free, list(self._together()))

    def _together(self) -> Iterator[list[ir.Value]]:
        """Yields, for each operation of a backward whose result jumps, the residuals that it reads."""
        read: dict[str, dict[ir.Value, ir.Value]] = {}
        for value, own, _ in self._values:
            for op, position in own:
                argument = body_of(self.by_name[callee(op)]).arguments[position]
                read.setdefault(callee(op), {})[argument] = value
        for name, arguments in read.items():
            ops = operations(body_of(self.by_name[name]))[:-1]
            yield from read_together(Numbered([each for op in ops for each in (op, *nested(op))]), arguments)

    @cached_property
    def _function(self) -> ir.Operation:
        return self.by_name[callee(self.old)]

    @property
    def _ops(self) -> list[ir.Operation]:
        return operations(body_of(self._function))[:-1]

    @cached_property
    def _given(self) -> dict[ir.Value, ir.Value]:
        """The arguments of the function, each with the operand of the call."""
        return dict(zip(body_of(self._function).arguments, self.old.operands, strict=True))

    @property
    def _values(self) -> list[tuple[ir.Value, Uses, Uses]]:
        """The values that the function returns, each with its uses by the backward of its stage, and its other uses."""
        returned = terminator(body_of(self._function)).operands
        return [(value, *self._uses(result)) for value, result in zip(returned, self.old.results, strict=True)]

    @property
    def _residuals(self) -> list[ir.Value]:
        return list(dict.fromkeys(value for value, own, _ in self._values if own and value not in self._given))

    @property
    def _stage(self) -> int:
        return kind_and_stage(self.by_name[callee(self.old)])[1]

    def _uses(self, value: ir.Value) -> tuple[Uses, Uses]:
        """Returns the uses (operation, operand index) of `value` by the backward of its own stage, and all others."""
        own: list[tuple[ir.Operation, int]] = []
        others: list[tuple[ir.Operation, int]] = []
        for use in value.uses:
            op = use.owner.operation
            (own if self._is_backward(op) else others).append((op, use.operand_number))
        return own, others

    def _is_backward(self, op: ir.Operation) -> bool:
        kind, stage = kind_and_stage(self.by_name[callee(op)]) if op.name == "func.call" else ("", -1)
        return kind in BACKWARDS and stage == self._stage

    def _recomputed(self, keep: Keep) -> Remaking:
        again = self.forward.recomputed(keep, [value for value, _, others in self._values if others])
        effect = next(filter(has_side_effect, again.ops), None)
        if effect is not None:
            raise PassError(
                f"the residuals of stage {self._stage} can't be made again: a {effect.name} with side effects is among "
                "what they depend on",
                location=effect.location,
                hint=f"keep more than the stage's {INPUTS}, give the schedule without the recompute of this stage, or "
                "mark a stage end behind it",
            )
        return again

    def _is_there(self, value: ir.Value) -> bool:
        """Whether the backward has `value` anyway: it reads `value`, or no task of any microbatch makes it."""
        if any(self._is_backward(use.owner.operation) for use in value.uses):
            return True
        return value not in self.loop.carried and not self.loop.is_of_a_task(value)
