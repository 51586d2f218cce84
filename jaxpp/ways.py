"""The ways to run a step that marks every layer."""

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax

from jaxpp import schedules
from jaxpp.hlo_passes.loop.merge_stages import LoopOfLayers
from jaxpp.hlo_passes.program.verify_program import limits_of
from jaxpp.layered_step import LayeredStep, cuts_of_layers, loop_of_layers
from jaxpp.layers import Layers
from jaxpp.lowering.lower import Lowered
from jaxpp.runtime.execution.options import Options
from jaxpp.schedules import ScheduleError
from jaxpp.schedules.given import AUTO
from jaxpp.step import CompiledStep, LoweredStep
from jaxpp.tuning import Choice

SECONDS = 5.0
"""What the search may take: counted work, so that equal costs give equal choices."""


@dataclass(frozen=True)
class Ways:
    """A lowered step that marks every layer, with all cuts and schedules that it could have.

    Attributes:
        lowered: the step.
        compiler_options: XLA's.
        passes: options of passes, by keyword, without cuts and schedule.
        seconds: what searches may take.
    """

    lowered: Lowered
    compiler_options: Options | None
    passes: Mapping[str, str]
    seconds: float = SECONDS
    _latest: dict[Any, LoweredStep] = field(default_factory=dict[Any, LoweredStep], repr=False, compare=False)

    @cached_property
    def loop(self) -> LoopOfLayers:
        """The loop over microbatches. Raises PassError where the marks are not in one."""
        return loop_of_layers(self.lowered.module)

    @property
    def memory_limit(self) -> str:
        """The bytes per device, as the option of `verify-program`."""
        return self.passes.get("memory_limit", "")

    @cached_property
    def first(self) -> Choice:
        """1F1B, with as many layers in each stage.

        Raises:
            PassError: the marks are not in one loop over microbatches.
            ScheduleError: there are fewer layers than meshes.
        """
        meshes = self.lowered.mpmd_mesh.mpmd_dim
        cuts = cuts_of_layers(self.loop, meshes, AUTO)
        return Choice(cuts, schedules.one_f_one_b(meshes, self.loop.microbatches))

    def adapted(self, choice: Choice) -> Choice:
        """A choice of another step for the microbatches of this one, with each layer on the same mesh.

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
            return replace(choice, schedule=schedules.one_f_one_b(schedule.meshes, microbatches))
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
        """The step in one way; the last one is kept, so that it is rewritten once."""
        if choice.key not in self._latest:
            costs, passes = choice.costs if self.memory_limit else None, {**self.passes, **choice.options}
            self._latest.clear()
            self._latest[choice.key] = LoweredStep(self.lowered, None, self.compiler_options, passes, costs)
        return self._latest[choice.key]

    def layered(self) -> LayeredStep:
        """The step in which each layer is a stage, to be measured."""
        return LayeredStep(self.lowered, self.compiler_options, self.passes, AUTO)

    @cached_property
    def room(self) -> int | None:
        """The bytes that each device of this process has for one mesh; None where devices don't say it, as CPUs."""
        mesh = self.lowered.mpmd_mesh
        here = [] if mesh.backend else [each for sub in mesh.unstack for each in sub.devices.flat]
        meshes_of_one = max(Counter(here).values(), default=1)
        found = [device.memory_stats() for device in here if device.process_index == jax.process_index()]
        sizes = [stats["bytes_limit"] for stats in found if stats and "bytes_limit" in stats]
        return min(sizes) // meshes_of_one if sizes else None

    def overfull(self, step: CompiledStep) -> str:
        """What is wrong where a device of this process needs more memory than it has, or than it may need."""
        found = step.memory_analysis()
        limits = limits_of(self.memory_limit, len(found)) if self.memory_limit else [sys.maxsize] * len(found)
        room = sys.maxsize if self.room is None else self.room
        for stats, limit in zip(found, limits, strict=True):
            if stats and stats.peak_memory_in_bytes > min(limit, room):
                return f"a device needs {stats.peak_memory_in_bytes:,} bytes, and has {min(limit, room):,}"
        return ""

    def search(self, layers: Layers) -> tuple[list[Choice], float]:
        """The most promising choices for layers of such costs, and the least that any may take; none if nothing fits.

        That is, within `memory_limit`, or else the memory that devices say they have. They are the best with backwards
        cut in two and with whole ones; with one stage per mesh, with several, and with the cuts of the first choice,
        which leave everything where it is.
        """
        found: list[schedules.Partition] = []
        limit, cuts = self.memory_limit or str(self.room or ""), self.first.cuts
        rows = ((layers, 1), (layers, None), (layers.cut(cuts), 1))
        for split_backward in (True, False):
            # What devices have is not what a caller asked for: a choice that needs more is dropped when it is tried.
            options: dict[str, Any] = {"split_backward": split_backward, "by_program": bool(self.memory_limit)}
            options["seconds"] = self.seconds / 6
            for row, chunks in rows:
                with suppress(ScheduleError):  # nothing fits
                    each = row.partition(limit, chunks=chunks, **options)
                    found.append(each if row is layers else replace(each, cuts=cuts))
        found.sort(key=lambda each: each.value)
        bound = min((each.lower_bound for each in found), default=0.0)
        return [Choice(each.cuts, each.schedule, each.costs) for each in found], bound
