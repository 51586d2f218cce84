"""The choices of cuts and schedule for a step that marks every layer."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jaxpp import schedules
from jaxpp.hlo_passes.loop.number_stages import LoopOfLayers
from jaxpp.hlo_passes.program.verify_program import limits_of
from jaxpp.lowering.lower import Lowered
from jaxpp.memory.room import memory_of_devices
from jaxpp.runtime.execution.options import Options
from jaxpp.schedules import ScheduleError
from jaxpp.schedules.given import AUTO
from jaxpp.schedules.library.classic import one_f_one_b
from jaxpp.schedules.search import Partition
from jaxpp.step import CompiledStep, LoweredStep
from jaxpp.tuning.choices import Choice
from jaxpp.tuning.layered_step import LayeredStep, cuts_of_layers, loop_of_layers
from jaxpp.tuning.layers import Layers

SECONDS = 5.0
"""The `seconds` of all searches. They count work instead of time, so that equal costs give equal choices."""


@dataclass(frozen=True)
class Ways:
    """A lowered step that marks every layer, to which cuts and schedules can be applied.

    Attributes:
        lowered: the lowered step.
        compiler_options: the compiler options of XLA.
        passes: the options of passes by keyword, without cuts and schedule.
        seconds: the `seconds` of all searches together.
    """

    lowered: Lowered
    compiler_options: Options | None
    passes: Mapping[str, Any]
    seconds: float = SECONDS
    _latest: dict[Any, LoweredStep] = field(default_factory=dict[Any, LoweredStep], repr=False, compare=False)

    @cached_property
    def loop(self) -> LoopOfLayers:
        """The numbers of layers and microbatches. Raises PassError if the marks are not in one microbatch loop."""
        return loop_of_layers(self.lowered.module)

    @property
    def memory_limit(self) -> str:
        """The bytes per device, as the option of `verify-program`."""
        return self.passes.get("memory_limit", "")

    @cached_property
    def first(self) -> Choice:
        """1F1B with one stage per mesh, and equally many layers in each.

        Raises:
            PassError: the marks are not in one loop over microbatches.
            ScheduleError: there are fewer layers than meshes.
        """
        meshes = self.lowered.mpmd_mesh.mpmd_dim
        cuts = cuts_of_layers(self.loop, meshes, AUTO)
        return Choice(cuts, one_f_one_b(meshes, self.loop.microbatches))

    def adapted(self, choice: Choice) -> Choice:
        """Returns another step's choice, with a schedule for this step's microbatches and the same layers per mesh.

        Raises:
            ValueError: the other step has another number of layers.
        """
        if sum(choice.cuts) != self.loop.layers:
            counts = f"found {self.loop.layers}, expected {sum(choice.cuts)}"
            raise ValueError(f"`schedule=step`: both must mark equally many layers: {counts}")
        schedule, microbatches = choice.schedule, self.loop.microbatches
        if schedule.microbatches == microbatches:
            return choice
        if choice.costs is None:
            return replace(choice, schedule=one_f_one_b(schedule.meshes, microbatches))
        found = schedules.search(
            schedule.meshes,
            microbatches,
            choice.costs,
            placement=schedule.placement,
            split_backward=any(task.kind == "input_grad" for task in schedule),
            seconds=self.seconds / 10,
        )
        return replace(choice, schedule=found)

    def of(self, choice: Choice) -> LoweredStep:
        """Returns the step with this choice. The latest result is cached, so that it is rewritten only once."""
        if choice.key not in self._latest:
            costs, passes = choice.costs if self.memory_limit else None, {**self.passes, **choice.options}
            self._latest.clear()
            self._latest[choice.key] = LoweredStep(self.lowered, None, self.compiler_options, passes, costs)
        return self._latest[choice.key]

    def layered(self) -> LayeredStep:
        """Returns the step in which each layer is a stage, to measure the layers."""
        return LayeredStep(self.lowered, self.compiler_options, self.passes, AUTO)

    @cached_property
    def room(self) -> int | None:
        """The bytes that each device of this process has for one mesh; None if devices don't report it, as on CPUs."""
        return memory_of_devices(self.lowered.mpmd_mesh)

    def overfull(self, step: CompiledStep) -> str:
        """Returns an error message if a device needs more memory than it has or than the limit allows, else ""."""
        found = step.memory_analysis()
        limits = limits_of(self.memory_limit, len(found)) if self.memory_limit else [sys.maxsize] * len(found)
        room = sys.maxsize if self.room is None else self.room
        for stats, limit in zip(found, limits, strict=True):
            if stats and stats.peak_memory_in_bytes > min(limit, room):
                return f"a device needs {stats.peak_memory_in_bytes:,} bytes, and has {min(limit, room):,}"
        return ""

    def search(self, layers: Layers) -> tuple[list[Choice], float]:
        """Searches for the fastest choices with these costs of the layers.

        The searches differ in two ways. Backwards are split or whole. A mesh has one stage, or any number of stages, or
        the cuts of the first choice, with which no argument moves.

        Returns:
            The choices that fit `memory_limit`, or without one the memory of the devices, the fastest first; and a
            lower bound on their times, in ms. If nothing fits, no choices and 0.
        """
        found: list[Partition] = []
        limit, cuts = self.memory_limit or str(self.room or ""), self.first.cuts
        rows = ((layers, 1), (layers, None), (layers.cut(cuts), 1))
        for split_backward in (True, False):
            # Programs are rewritten only for the caller's limit. A choice too large for the devices fails when tried.
            options: dict[str, Any] = {"split_backward": split_backward, "by_program": bool(self.memory_limit)}
            options["seconds"] = self.seconds / 6
            for row, chunks in rows:
                with suppress(ScheduleError):  # nothing fits
                    each = row.partition(limit, chunks=chunks, **options)
                    found.append(each if row is layers else replace(each, cuts=cuts))
        found.sort(key=lambda each: each.value)
        bound = min((each.lower_bound for each in found), default=0.0)
        return [Choice(each.cuts, each.schedule, each.costs) for each in found], bound
