"""`offload-residuals`: a stage's residuals go to the host's memory and come back, where the schedule asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from jaxpp import schedules
from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.stages.residuals import readers_of, residuals_of, tasks_of
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, call, create, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.phases import check_tasks
from jaxpp.ir.shardings import Shardings, boundary_attributes

HOST = "pinned_host"


@dataclass(frozen=True)
class OffloadResiduals(Pass):
    """Calls `@offload_i` after the forward and `@reload_i` before the backward of each stage that is offloaded.

    Both return their arguments as they are. What `@offload_i` returns, and `@reload_i` takes, has `mhlo.memory_kind =
    "pinned_host"`, the attribute by which XLA knows the memory of the host: the runtime copies, and compiles nothing.

    The residuals are what the backward of a stage, or its recompute, reads of the forward's results, and of its inputs
    that other tasks made. Weights and the batch are no residuals: they stay where they are.

    Microbatches that the schedule does not offload pass by (`unroll-microbatches`).

    Options:
        stages: stages that are offloaded although the schedule does not say so, separated by blanks: their tasks are
            added to the schedule.

    Preconditions: `outline-stages` ran, and `split-backward` and `split-forward` for a schedule that needs them.

    ```mlir
    %y:2 = call @forward_0(%x, %w)     ==>   %y:2 = call @forward_0(%x, %w)
                                             %h = call @offload_0(%y#1)
                                             %r = call @reload_0(%h)
    %d = call @backward_0(%y#1, %dy)         %d = call @backward_0(%r, %dy)
    ```
    """

    name: ClassVar[str] = "offload-residuals"
    stages: str = ""

    def __post_init__(self) -> None:
        if not all(word.isdecimal() for word in self.stages.split()):
            raise ValueError(f"stages is '{self.stages}', expected numbers of stages")

    def run(self, module: ir.Module) -> None:
        """Add the copies to the loop of `module`. Raises PassError for a stage that can't be offloaded."""
        loop = MicrobatchLoop.of(module)
        if self.stages:
            loop = loop.rescheduled(lambda plan: schedules.offload(plan, *map(int, self.stages.split())))
        stages = loop.stages_with("offload")
        if not stages:
            return
        check_tasks(module, loop.body)
        tasks = tasks_of(module, loop)
        for stage in sorted(stages):
            residuals = residuals_of(loop, tasks, stage)
            if residuals:
                _offload(module, residuals, tasks["forward", stage], readers_of(tasks, stage))


def _offload(
    module: ir.Module, residuals: Sequence[ir.Value], forward: ir.Operation, readers: Sequence[ir.Operation]
) -> None:
    first = next(op for op in operations(forward.block) if op in readers)
    uses = [(op, n) for op in readers for n, value in enumerate(op.operands) if value in residuals]
    held = _copy(module, "offload", residuals, forward, ir.InsertionPoint.after(forward))
    back = _copy(module, "reload", held, forward, ir.InsertionPoint(first))
    new = dict(zip(residuals, back, strict=True))
    for op, number in uses:
        op.operands[number] = new[op.operands[number]]


def _copy(
    module: ir.Module, kind: str, values: Sequence[ir.Value], forward: ir.Operation, ip: ir.InsertionPoint
) -> list[ir.Value]:
    """Call a function that returns `values`, in the other memory than theirs."""
    stage = forward.attributes[at.STAGE]
    name = f"{kind}_{ir.IntegerAttr(stage).value}"
    types = [value.type for value in values]
    function = create(module, name, types, types, {at.KIND: ir.StringAttr.get(kind), at.STAGE: stage})
    here = boundary_attributes(Shardings(module), list(values))
    host = [{**entry, at.MEMORY: ir.StringAttr.get(HOST)} for entry in here]
    at.set_tables(function, *((here, host) if kind == "offload" else (host, here)))
    block = body_of(function)
    func.return_(list(block.arguments), ip=ir.InsertionPoint(block), loc=ir.Location.unknown())
    return list(call(name, types, values, {at.STAGE: stage}, ip, forward.location).results)
