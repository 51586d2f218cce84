"""`memory_limit`: what each stage computes again, or offloads, so that a program fits into its devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.hlo_passes import Pass, run_passes
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.program.verify_program import check_limits
from jaxpp.hlo_passes.stages.split_forward import SplitForward
from jaxpp.ir import attributes as at
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.schedules import Schedule

OFFLOAD = "offload"
WAYS = ("", "0.02", "0.05", "0.1", "0.2", "0.4", "inputs", OFFLOAD)
"""What a stage may do to keep less, in the order in which it is tried: nothing, a share of its forward again, all."""


def limit_text(memory_limit: int | Sequence[int] | None, meshes: int) -> str:
    """Bytes as the option of `verify-program`. Raises TypeError or ValueError for what is no limit of these meshes."""
    if memory_limit is None:
        return ""
    each: list[Any] = list(memory_limit) if isinstance(memory_limit, list | tuple) else [memory_limit]
    if not all(isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 for limit in each):
        raise TypeError(
            f"memory_limit is {memory_limit!r}, expected bytes per device: a positive whole number, or a list"
        )
    if len(each) not in (1, meshes):
        raise ValueError(f"memory_limit has {len(each)} numbers for {meshes} meshes, expected one, or one for each")
    return " ".join(map(str, each))


@dataclass(frozen=True)
class Choice:
    """What stages do to keep less: options of `mpmd`."""

    ways: Mapping[int, str]

    @property
    def options(self) -> dict[str, str]:
        """The options `recompute` and `offload`."""
        keeps = [f"{stage}:{way}" for stage, way in self.ways.items() if way not in ("", OFFLOAD)]
        stages = [str(stage) for stage, way in self.ways.items() if way == OFFLOAD]
        return {"recompute": " ".join(keeps), "offload": " ".join(stages)}


def fit(module: ir.Module, schedule: str, meshes: int, options: Mapping[str, str]) -> dict[str, str]:
    """The options with which the program of `module` stays within `options["memory_limit"]`.

    While a mesh needs more than its limit, its stages go on to their next way. Where no activations wait on a peer,
    what a mesh needs depends on its own stages: this is the cheapest choice of one way for all stages of each mesh.

    Raises:
        ProgramError: nothing of all this is enough; it names the mesh, and the least that the mesh needs.
    """
    limits = [int(word) for word in options["memory_limit"].split()]
    free = {name: value for name, value in options.items() if name != "memory_limit"}
    before, _ = _divided(mpmd(schedule, meshes, **free))
    base = own_copy(module)
    run_passes(base, before)
    with base.context:
        plan = MicrobatchLoop.of(base).plan
    ways = {stage: _ways(plan, stage) for stage in range(plan.stages)}
    level = dict.fromkeys(ways, 0)
    least: list[int] = []
    while True:
        choice = Choice({stage: ways[stage][at] for stage, at in level.items()})
        peaks = _peaks(base, _divided(mpmd(schedule, meshes, **free | choice.options))[1])
        least = [min(pair) for pair in zip(least, peaks, strict=True)] if least else peaks
        each = limits * len(peaks) if len(limits) == 1 else limits
        over = {mesh for mesh, (peak, limit) in enumerate(zip(peaks, each, strict=False)) if peak > limit}
        if not over:
            return dict(options) | choice.options
        stages = {task.stage for mesh in over for cell in plan.cells[mesh] for task in cell}
        moving = {stage for stage in stages if level[stage] + 1 < len(ways[stage])}
        if not moving:
            check_limits(least, limits, least=True)
            return dict(options)  # each mesh can be below its limit, but not all at once: `verify-program` refuses it
        for stage in moving:
            level[stage] += 1


def _divided(passes: Sequence[Pass]) -> tuple[Sequence[Pass], Sequence[Pass]]:
    """The passes before the first that depends on a choice, and the others."""
    first = next(number for number, step in enumerate(passes) if isinstance(step, SplitForward))
    return passes[:first], passes[first:]


def _ways(plan: Schedule, stage: int) -> Sequence[str]:
    """What a stage may do: of one for which the schedule says it already, that."""
    said = any(task.kind in ("recompute", "offload", "evict") for task in plan if task.stage == stage)
    return WAYS[:1] if said else WAYS


def _peaks(base: ir.Module, passes: Sequence[Pass]) -> list[int]:
    module = own_copy(base)
    run_passes(module, passes)
    return [at.integer(function, at.PEAK_BYTES) or 0 for function in mesh_functions(module)]
