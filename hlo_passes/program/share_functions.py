"""`share-functions`: splits functions so that meshes share what they compute alike, and XLA compiles fewer programs."""

import math
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.shared_updates import split_updates
from jaxpp.hlo_passes.program.split_calls import split_calls
from jaxpp.hlo_passes.program.task_divisions import split_tasks
from jaxpp.ir.phases import main_line, main_of_phase
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.steps import leave

_LEAST_FLOPS = {"never": math.inf, "always": 0.0, "auto": 1e7}


@dataclass(frozen=True)
class ShareFunctions(Pass):
    """Splits functions in two: computations that other meshes share, and the rest.

    `plan-buffers` merges the shared halves, which have equal texts, so that XLA compiles them once. The cost
    is one more call for each call of a split function, and XLA fuses nothing across the two.

    **Functions before and after the tasks.** The optimizer updates each weight independently, and equal layers have
    equal weights. The functions of the first and the last stage differ from the others only in the embedding and the
    head. So the pass divides each function into parts. Parts have no value in common but scalars and values that are
    cheap to compute from scalars. If several functions share at least half of their operations, and no fewer than
    eight, the shared parts become a function with the same text in each.

    **Tasks.** In a transformer the first stage also has the embedding, and the last stage the head and the loss; the
    layers are equal. XLA would compile these layers anew for each program. So the pass splits the task of the first or
    last stage into two functions. One has the same text as the task of a middle stage, and the other one does the rest.
    Both calls belong to the task.

    A task is split if at least half of its operations, counting those in loops, are also in the other task. The rest
    must come entirely before or entirely after them. Operations are matched by their kind, if both tasks have equally
    many of it, and by their operands. Fused tasks and tasks that gather weights stay whole. So do tasks whose layers
    read values with other shardings than in the other task.

    Options:
        when: whether tasks are split: `never`; `always`, for every task that can be split; or a number such as `1e11`.
            That is how many FLOPs both tasks must take on each device, in matrix products and convolutions. `auto` is
            `1e7`: from there on, one more call takes at most about a hundredth of a task's time on CPUs.

    Preconditions: `infer-placement` ran.

    ```mlir
    %y:2 = call @forward_0(%tokens, %table, %w0)   ==>   %e = call @forward_0_own(%tokens, %table)
                                                         %y:2 = call @forward_0_shared(%e, %w0)
    %z:2 = call @forward_1(%y#0, %w1)                    %z:2 = call @forward_1(%y#0, %w1)

    %e, %n0 = call @after_0(%w, %g, %v, %h)        ==>   %e = call @after_0_own(%w, %g)
                                                         %n0 = call @after_0_shared(%v, %h)
    %n1 = call @after_1(%u, %k)                          %n1 = call @after_1_shared(%u, %k)
    ```
    """

    when: str = "auto"

    def __post_init__(self) -> None:
        if not self._least_flops >= 0:
            raise ValueError(
                f"share_tasks is {self.when!r}, expected auto, never, always, or a number of FLOPs such as 1e7"
            )

    @property
    def _least_flops(self) -> float:
        """The least FLOPs on each device of tasks that are split; nan if `when` is invalid."""
        try:
            return _LEAST_FLOPS[self.when] if self.when in _LEAST_FLOPS else float(self.when)
        except (ValueError, TypeError):
            return math.nan

    def run(self, module: ir.Module) -> None:
        """Splits functions of `module`. Raises PassError if an operation, argument or result is on no mesh."""
        line = main_of_phase(module, placed=True)
        shardings, least = Shardings(module), self._least_flops
        splits = split_updates(module, line.steps, shardings)
        if least < math.inf:
            splits |= split_tasks(module, line.steps, least, shardings)
        leave(module, main_line(module, split_calls(line, splits), placed=True) if splits else line)
