"""`move-residuals`: moves a stage's residuals to the host or to another mesh, and back before they are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.stages.residuals import behind_residuals, readers_of, residuals_of, tasks_of
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import call, operations
from jaxpp.ir.kinds import FORMS
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.outlining import copy_function
from jaxpp.ir.phases import check_tasks
from jaxpp.ir.shardings import Shardings, boundary_attributes

HOST = "pinned_host"

_LEAVING = tuple(kind for kind, form in FORMS.items() if form.back)
"""The kinds of tasks that move residuals away."""


@dataclass(frozen=True)
class MoveResiduals(Pass):
    """Calls `@offload_i` or `@evict_i` after the forward, and `@reload_i` or `@load_i` before the backward of a stage.

    All four functions return their arguments unchanged: the runtime copies, and compiles nothing. The results of
    `@offload_i` and the arguments of `@reload_i` have `mhlo.memory_kind = "pinned_host"`, XLA's name for host memory.
    `unroll-microbatches` will place `@evict_i` on the mesh of the schedule's `evict`, and `@load_i` on the stage's own
    mesh. The residuals are then sent between the meshes like any other values.

    The residuals of a stage are the results of its forward, and the forward's inputs from other tasks, that the stage's
    backward or recompute reads. Weights and the batch are no residuals: they stay where they are.

    Where the schedule does not move the residuals of a microbatch, `unroll-microbatches` leaves out the calls.

    Options:
        stages: the numbers of further stages to offload, separated by blanks. Their tasks are added to the schedule.

    Preconditions: `outline-stages` ran, and `split-backward` and `split-forward` for a schedule that needs them.

    ```mlir
    %y:2 = call @forward_0(%x, %w)     ==>   %y:2 = call @forward_0(%x, %w)
                                             %h = call @offload_0(%y#1)
                                             %r = call @reload_0(%h)
    %d = call @backward_0(%y#1, %dy)         %d = call @backward_0(%r, %dy)
    ```
    """

    name: ClassVar[str] = "move-residuals"
    stages: str = ""

    def __post_init__(self) -> None:
        if not all(word.isdecimal() for word in self.stages.split()):
            raise ValueError(f"stages is '{self.stages}', expected numbers of stages")

    def run(self, module: ir.Module) -> None:
        """Adds the calls to the microbatch loop of `module`. Raises PassError for a stage that can't be offloaded."""
        loop = MicrobatchLoop.of(module)
        if self.stages:
            loop = loop.rescheduled(lambda plan: schedules.offload(plan, *map(int, self.stages.split())))
        leaving = {kind: loop.stages_with(kind) for kind in _LEAVING}
        if not any(leaving.values()):
            return
        check_tasks(module, loop.body)
        tasks = tasks_of(module, loop)
        for stage in sorted(set[int]().union(*leaving.values())):
            residuals = residuals_of(loop, tasks, stage)
            kinds = [kind for kind, stages in leaving.items() if stage in stages]
            if residuals:
                _move(module, stage, residuals, behind_residuals(loop, tasks, stage), readers_of(tasks, stage), kinds)


def _move(
    module: ir.Module,
    stage: int,
    residuals: Sequence[ir.Value],
    there: ir.InsertionPoint,
    readers: Sequence[ir.Operation],
    kinds: Sequence[str],
) -> None:
    """Adds, for each of `kinds`, a call that moves `residuals` away and one that moves them back.

    `unroll-microbatches` leaves one of these pairs for a microbatch, or none.
    """
    first = ir.InsertionPoint(next(op for op in operations(readers[0].block) if op in readers))
    uses = [(op, n) for op in readers for n, value in enumerate(op.operands) if value in residuals]
    shardings = boundary_attributes(Shardings(module), residuals)
    values = list(residuals)
    for kind in kinds:
        host = {at.MEMORY: ir.StringAttr.get(HOST)} if kind == "offload" else {}
        away, back = [entry | host for entry in shardings], FORMS[kind].back
        values = _copy(module, kind, stage, values, (shardings, away), there)
        values = _copy(module, back, stage, values, (away, shardings), first)
        there = first
    new = dict(zip(residuals, values, strict=True))
    for op, number in uses:
        op.operands[number] = new[op.operands[number]]


def _copy(
    module: ir.Module,
    kind: str,
    stage: int,
    values: Sequence[ir.Value],
    tables: tuple[list[dict[str, ir.Attribute]], list[dict[str, ir.Attribute]]],
    ip: ir.InsertionPoint,
) -> list[ir.Value]:
    """Calls a new function that returns its arguments, `values`. Returns the results of the call.

    `tables` holds the attributes of the function's arguments, and of its results.
    """
    name, types = f"{kind}_{stage}", [value.type for value in values]
    kept = {at.KIND: ir.StringAttr.get(kind), at.STAGE: at.i64(stage)}
    function = copy_function(module, name, types, kept, *tables)
    return list(call(function, values, {at.STAGE: at.i64(stage)}, ip, values[0].location).results)
