"""Searches for the fastest way in which the stages of one schedule keep so few bytes that they fit their limits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import own_copy
from jaxpp.hlo_passes import Pass, run_passes
from jaxpp.hlo_passes.base import run_unwritten
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.stages.split_forward import SplitForward
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.read_lines import read_lines
from jaxpp.memory.task_times import TaskTimes
from jaxpp.schedules import Costs, Schedule
from jaxpp.schedules.engine.durations import task_times
from jaxpp.schedules.search.stagewise import Search, StageChoices, Way


@dataclass
class Fitting:
    """One schedule, and the choices of its stages: recompute or offload, or both.

    Attributes:
        base: the module before the first pass that depends on the choice.
        plan: the schedule.
        options: the options of `mpmd`, without the limits.
        limits: the limits of the devices of each mesh, and then of their hosts, in bytes.
        levels: what a recompute of each stage may keep: (bytes, FLOPs of the recompute).
        times: the estimates of the durations of tasks.
        splits: the module after `split-forward`, by the option of that pass; it is the same for all schedules.
    """

    base: ir.Module
    plan: Schedule
    options: dict[str, Any]
    limits: Sequence[float]
    levels: Mapping[int, Sequence[tuple[int, int]]]
    times: TaskTimes
    splits: dict[str, ir.Module]
    _tried: dict[str, tuple[StageChoices, list[int]]] = field(default_factory=dict[str, tuple[StageChoices, list[int]]])
    _plans: dict[tuple[int, ...], Schedule] = field(default_factory=dict[tuple[int, ...], Schedule])
    _times: dict[tuple[Way, ...], tuple[float, float]] = field(
        default_factory=dict[tuple[Way, ...], tuple[float, float]]
    )

    def search(self) -> StageChoices | None:
        """Returns the fastest choice that fits, or None."""
        return self._search.run()

    @cached_property
    def _search(self) -> Search:
        return Search(
            groups=self._groups(),
            levels=self.levels,
            recomputed=self._stages("recompute"),
            stays=self._stages("offload") if self.times.rates.has_host else set(self.levels),
            limits=self.limits,
            peaks=self.peaks,
            time=self.time,
            at_least=self.at_least,
        )

    def nearest(self) -> dict[int, Way]:
        """Returns the tried choice that exceeds host limits least, and among equal ones exceeds device limits least.

        Groups of meshes are independent: each group takes its stages from the choice that is best for it.
        """
        best: dict[int, Way] = {}
        for meshes, stages in self._groups():
            hosts, devices = meshes[len(meshes) // 2 :], meshes[: len(meshes) // 2]
            over = [(max(self.excess(need, hosts), 0), self.excess(need, devices)) for _, need in self._tried.values()]
            choice, _ = list(self._tried.values())[over.index(min(over))]
            best |= {stage: choice[stage] for stage in stages}
        return best

    def least(self) -> StageChoices:
        """Returns the nearest choice; no change of one stage in each group brings it nearer to the limits.

        A change that saves bytes at one moment may need more at another, for a copy or for recomputed values.
        """
        best, groups = self.nearest(), self._groups()
        while True:
            before = best
            for position in range(max(len(stages) for _, stages in groups)):
                changed = [stages[position] for _, stages in groups if position < len(stages)]
                for again, offload in product((False, True), repeat=2):
                    self.peaks(best | {stage: self._extreme(stage, again, offload) for stage in changed})
                best = self.nearest()
            if best == before:
                return best

    def _extreme(self, stage: int, again: bool, offload: bool) -> Way:
        """Returns a way in which a stage recomputes as much as it can, or nothing, and is offloaded if it can be."""
        return Way(self._search.last(stage) if again else 0, offload and stage not in self._search.stays)

    def excess(self, peaks: Sequence[int], meshes: Iterable[int]) -> float:
        """Returns how far the worst of these meshes and hosts is above its limit; negative if all have room."""
        return max(peaks[mesh] - self.limits[mesh] for mesh in meshes)

    def _groups(self) -> list[tuple[list[int], list[int]]]:
        """Returns groups of meshes and hosts whose memory depends on the same stages, each with these stages."""
        count = len(self.limits) // 2
        return [
            ([*meshes, *(count + mesh for mesh in meshes)], stages) for meshes, stages in _sharing_stages(self.plan)
        ]

    @property
    def nothing(self) -> StageChoices:
        """The choice in which no stage recomputes or offloads."""
        return {stage: Way() for stage in self.levels}

    def _stages(self, kind: str) -> set[int]:
        """Returns the stages that have tasks of this kind in the schedule."""
        return {task.stage for task in self.plan if task.kind == kind}

    def peaks(self, choice: StageChoices) -> list[int]:
        """Rewrites the program for a choice; returns the bytes that the devices of each mesh need, then the hosts."""
        chosen = self.options_of(choice)
        key = str(chosen)
        if key not in self._tried:
            options: dict[str, Any] = {**self.options, **chosen}
            split, *passes = divided(mpmd("", 0, **options))[1]
            if chosen["recompute"] not in self.splits:
                self.splits[chosen["recompute"]] = module = own_copy(self.base)
                run_passes(module, [split])
            module = own_copy(self.splits[chosen["recompute"]])
            # The split module may come from a fit of another order, and then has that schedule.
            plan = self._changed(tuple(stage for stage in range(self.plan.stages) if choice[stage].level))
            with module.context:
                MicrobatchLoop.of(module).rescheduled(lambda _: plan)
            self._tried[key] = choice, program_peaks(module, passes)
        return self._tried[key][1]

    def options_of(self, choice: StageChoices) -> dict[str, str]:
        """Returns the options of `mpmd` for a choice."""
        keeps = [f"{stage}:{self.levels[stage][way.level][0]}B" for stage, way in choice.items() if way.level]
        stages = [str(stage) for stage, way in choice.items() if way.offload]
        return {"recompute": " ".join(keeps), "offload": " ".join(stages)}

    def time(self, choice: StageChoices) -> tuple[float, float]:
        """Returns the simulated time of the step, and the sum of the times in which its meshes compute and copy."""
        ways = tuple(choice[stage] for stage in range(self.plan.stages))
        if ways not in self._times:
            moved = [stage for stage, way in enumerate(ways) if way.offload]
            plan = self._changed(tuple(stage for stage, way in enumerate(ways) if way.level))
            plan = schedules.offload(plan, *moved) if moved else plan
            costs = self._costs(plan, [way.level for way in ways])
            report = schedules.simulate(plan, costs)
            copied = sum(costs.at_home("offload", plan)[stage] for stage in moved)
            self._times[ways] = report.makespan, report.busy + copied
        return self._times[ways]

    def at_least(self, choice: StageChoices) -> float:
        """Returns a lower bound of the time of the step.

        It is the largest sum, over all meshes, of the time until the first task and of the durations of all tasks.
        """
        flops = [self.levels[stage][choice[stage].level][1] for stage in range(self.plan.stages)]
        again = (sum(time * flops[stage] for stage, time in each.items()) for each in self._again)
        return max(before + more for before, more in zip(self._busy, again, strict=True)) * (1 - 1e-6)

    def _changed(self, again: tuple[int, ...]) -> Schedule:
        """Returns the schedule in which the stages `again` are recomputed."""
        if again not in self._plans:
            self._plans[again] = schedules.recompute(self.plan, *again) if again else self.plan
        return self._plans[again]

    def _costs(self, plan: Schedule, chosen: Sequence[int]) -> Costs:
        """Returns the costs of the changed schedule, if each stage has the chosen level."""
        made = self._stages("recompute")  # the recomputes of the schedule keep only inputs
        kept = [self.levels[stage][level] for stage, level in enumerate(chosen)]
        flops = self.times.flops
        kept = [(0, flops.get(("forward", n), 0)) if n in made else each for n, each in enumerate(kept)]
        return self.times.costs(plan, kept)

    @cached_property
    def _busy(self) -> list[float]:
        """When each mesh would be done if no stage changes and the mesh never waits after its first task."""
        plan, graph = self.plan, self.plan.graph
        costs = self._costs(plan, [0] * plan.stages)
        times, starts = task_times(plan, costs), schedules.simulate(plan, costs).run.starts
        own = [[number for number in row if number not in graph.asides] for row in graph.rows]
        return [min(starts[n] for n in row) + sum(times[n] for n in row) if row else 0.0 for row in own]

    @cached_property
    def _again(self) -> list[dict[int, float]]:
        """For each mesh and stage the time of a recomputed FLOP, summed over all microbatches."""
        last = [self._search.last(stage) for stage in range(self.plan.stages)]
        plan = self._changed(tuple(stage for stage, level in enumerate(last) if level))
        graph, times = plan.graph, task_times(plan, self._costs(plan, last))
        found = [dict[int, float]() for _ in graph.rows]
        for mesh, row in enumerate(graph.rows):
            for number in row:
                stage = graph.tasks[number].stage
                if graph.tasks[number].kind == "recompute" and (flops := self.levels[stage][last[stage]][1]):
                    found[mesh][stage] = found[mesh].get(stage, 0.0) + times[number] / flops
        return found


def divided(passes: Sequence[Pass]) -> tuple[Sequence[Pass], Sequence[Pass]]:
    """Returns the passes before the first one that depends on a choice, and the other passes."""
    first = next(number for number, step in enumerate(passes) if isinstance(step, SplitForward))
    return passes[:first], passes[first:]


def _sharing_stages(plan: Schedule) -> list[tuple[list[int], list[int]]]:
    """Returns groups of meshes whose memory depends on the same stages, each with these stages."""
    groups: list[tuple[set[int], set[int]]] = []
    for mesh, row in enumerate(plan.cells):
        meshes, stages = {mesh}, {task.stage for cell in row for task in cell}
        for group in [each for each in groups if each[1] & stages]:
            groups.remove(group)
            meshes, stages = meshes | group[0], stages | group[1]
        groups.append((meshes, stages))
    return [(sorted(meshes), sorted(stages)) for meshes, stages in groups]


def program_peaks(module: ir.Module, passes: Sequence[Pass]) -> list[int]:
    """Runs the passes on `module`; returns the bytes that the devices of each mesh need, and then the hosts."""
    with module.context:
        program = run_unwritten(module, passes) or read_lines(module)
    return [peak for peaks in zip(*program.peaks, strict=True) for peak in peaks]
