"""The balance of the stages of a step, and the layer whose move shortens the step most."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxpp import schedules
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.model.values import PerStage
from jaxpp.schedules.plot.page import PageTable

_TRIED = 3
"""The number of meshes, those with the least work, that are tried as the target of a layer."""

_LEAST = 0.002
"""The least gain that is worth a move, as a share of the step."""

_SCALED = ("forward", "input_grad", "weight_grad")


class Balance(NamedTuple):
    """The time of each stage as a table, and a sentence about the best change."""

    table: PageTable
    advice: str


def balance(report: Report, cuts: Sequence[int]) -> Balance:
    """Returns the balance of a simulated step.

    Args:
        report: the simulated step; its costs have a number for each stage.
        cuts: the number of layers of each stage; empty if it is not known.
    """
    schedule, costs = report.schedule, report.costs.listed(report.schedule.stages, report.schedule.meshes)
    times = stage_times(report)
    mean = sum(times) / len(times)
    rows = [
        [
            str(stage),
            str(schedule.placement[stage]),
            *([str(cuts[stage])] if cuts else []),
            *(f"{getattr(costs, name)[stage]:.4g}" for name in _SCALED),
            f"{time:.4g}",
            f"{time / mean:.2f}",
        ]
        for stage, time in enumerate(times)
    ]
    columns = ["stage", "mesh", *(["layers"] if cuts else []), "forward", "input grad", "weight grad", "all", "of mean"]
    note = f"Times in {costs.unit}, of all tasks of a microbatch. A full backward counts as two gradients."
    advice = _advice_of_cuts(report, costs, times, cuts) if cuts else _advice(report, costs, times)
    return Balance(PageTable("Balance of the stages", columns, rows, note), advice)


def stage_times(report: Report) -> list[float]:
    """Returns the time of all tasks of each stage, for one microbatch."""
    schedule, run, graph = report.schedule, report.run, report.schedule.graph
    times = [0.0] * schedule.stages
    for number, task in enumerate(graph.tasks):
        if number not in graph.asides:
            times[task.stage] += (run.ends[number] - run.starts[number]) / schedule.microbatches
    return times


def _advice(report: Report, costs: schedules.Costs, times: Sequence[float]) -> str:
    mean = sum(times) / len(times)
    even = _scaled(costs, [mean / time for time in times])
    gain = 1 - schedules.simulate(report.schedule, even).makespan / report.makespan
    if gain < _LEAST:
        return "Equal stages would not shorten the step."
    slowest = max(range(len(times)), key=times.__getitem__)
    return (
        f"Stage {slowest} takes {times[slowest] / mean:.2f} of the mean. Equal stages would shorten the loop by "
        f"{gain:.1%}. Mark every layer, and pass `cuts=jaxpp.partition(step, state, batch)`, to move layers."
    )


def _advice_of_cuts(report: Report, costs: schedules.Costs, times: Sequence[float], cuts: Sequence[int]) -> str:
    placement = report.schedule.placement
    work = report.busy_of_meshes
    busiest = max(range(len(work)), key=work.__getitem__)
    targets = sorted(set(range(len(work))) - {busiest}, key=work.__getitem__)[:_TRIED]
    # The first and the last stage also have the embedding and the head, so the shortest layer counts.
    model = min(range(len(times)), key=lambda stage: times[stage] / cuts[stage])
    best, makespan = None, report.makespan
    for source in placement.stages_of(busiest):
        if cuts[source] < 2:
            continue
        for target in (stage for mesh in targets for stage in placement.stages_of(mesh)):
            moved = _with_layer_moved(costs, source, target, model, cuts[model])
            if moved is not None and (time := schedules.simulate(report.schedule, moved).makespan) < makespan:
                best, makespan = (source, target), time
    gain = 1 - makespan / report.makespan
    if best is None or gain < _LEAST:
        return "No move of one layer shortens the step."
    source, target = best
    after = [count + (stage == target) - (stage == source) for stage, count in enumerate(cuts)]
    return (
        f"Move one layer from stage {source} to stage {target}: cuts={after} would take {makespan:.4g} "
        f"{report.costs.unit} instead of {report.makespan:.4g}, {gain:.1%} less."
    )


def _with_layer_moved(
    costs: schedules.Costs, source: int, target: int, model: int, layers: int
) -> schedules.Costs | None:
    """Returns the costs after the move of a layer; None if the stage takes less time than the layer in some task.

    Args:
        costs: the costs, with a number for each stage.
        source: the stage that loses the layer.
        target: the stage that gains it.
        model: the stage whose layers tell the time of one.
        layers: the number of its layers.
    """

    def moved(value: Sequence[float]) -> list[float]:
        layer = value[model] / layers
        return [time + layer * ((stage == target) - (stage == source)) for stage, time in enumerate(value)]

    found = {name: moved(getattr(costs, name)) for name in _SCALED}
    kinds = {kind: moved(_listed(time)) for kind, time in costs.kinds.items() if kind == "backward"}
    if any(min(value) <= 0 for value in (*found.values(), *kinds.values())):
        return None
    return dataclasses.replace(costs, **found, kinds={**costs.kinds, **kinds})


def _scaled(costs: schedules.Costs, factors: Sequence[float]) -> schedules.Costs:
    """Returns the costs with the times of each stage multiplied by its factor."""

    def scaled(value: Sequence[float]) -> list[float]:
        return [time * factor for time, factor in zip(value, factors, strict=True)]

    found = {name: scaled(getattr(costs, name)) for name in _SCALED}
    return dataclasses.replace(
        costs, **found, kinds={kind: scaled(_listed(time)) for kind, time in costs.kinds.items()}
    )


def _listed(value: PerStage) -> Sequence[float]:
    assert not isinstance(value, float | int), "the costs have a number for each stage"
    return value
