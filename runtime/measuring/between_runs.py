"""Times of the gathers of weights and the scatters of gradients between the runs of a stage's tasks (FSDP)."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from jaxpp.ir.kinds import form_of
from jaxpp.ir.program import Call, Program
from jaxpp.runtime.measuring.events import Event
from jaxpp.schedules.model.between_runs import ADDING

_Steps = Sequence[Sequence[Event]]


def gather_times(program: Program, steps: _Steps, times: Mapping[tuple[str, int], float], stages: int) -> list[float]:
    """Returns for each stage the mean seconds of a weight gather per run of the stage's tasks.

    times: the usual seconds of a task, by (kind, stage).
    """
    alone, beside, runs = _gathered(program)
    totals = _totals(alone, steps, "gather", stages)
    seconds: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for each in (each for step in steps for each in step if each.target is None):
        tasks = each.fused or ((each.kind, each.stage, each.microbatch, each.slice),)
        position = beside.get((each.mesh, *tasks))
        if position is not None:
            usual = sum(times.get((str(task[0]), int(task[1] or 0)), 0.0) for task in tasks)
            seconds[position].append(max(each.seconds - usual, 0.0))
    for (stage, _), each in seconds.items():
        totals[stage] += statistics.median(each)
    return [total / max(runs[stage], 1) for stage, total in enumerate(totals)]


def scatter_times(program: Program, steps: _Steps, stages: int) -> list[float]:
    """Returns for each stage the mean seconds of a scatter per run of tasks that add to the stage's gradients.

    The calls that make the zeros before a run count too.
    """
    found: list[list[int]] = [[] for _ in program.sequences]
    runs = Counter[int]()
    for mesh, calls in enumerate(program.calls):
        for number, each in enumerate(calls):
            if each.kind != "scatter":
                continue
            near = reversed(calls[:number]) if each.operands else calls[number + 1 :]
            stage = next(task.stage for other in near for task in other.tasks if task.kind in ADDING)
            found[mesh].append(stage)
            runs[stage] += bool(each.operands)
    totals = _totals(found, steps, "scatter", stages)
    return [total / max(runs[stage], 1) for stage, total in enumerate(totals)]


def _totals(found: Sequence[Sequence[int]], steps: _Steps, kind: str, stages: int) -> list[float]:
    """Returns the seconds of a kind of calls for each stage. `found` has the stages of each mesh's calls, in order."""
    totals = [0.0] * stages
    for mesh, of_mesh in enumerate(found):
        events = [[each for each in step if each.mesh == mesh and each.kind == kind] for step in steps]
        for stage, same in zip(of_mesh, zip(*events, strict=True), strict=False):  # other processes' meshes lack events
            totals[stage] += statistics.median(each.seconds for each in same)
    return totals


def _gathered(program: Program) -> tuple[list[list[int]], dict[tuple[object, ...], tuple[int, int]], Counter[int]]:
    """Finds the calls that gather weights, and the stage of each gather: the stage of the next task that reads it.

    Returns three values. The first has the stages of each mesh's separate gathers, in order. The second maps each task
    that also gathers, by its mesh and names, to the stage and a unique index. The third is the number of runs of each
    stage's tasks.
    """
    alone: list[list[int]] = [[] for _ in program.sequences]
    beside: dict[tuple[object, ...], tuple[int, int]] = {}
    runs = Counter[int]()
    for mesh, every in enumerate(program.calls):
        calls = [each for each in every if not form_of(each.kind).is_copy]
        before: set[int] = set()
        for number, each in enumerate(calls):
            stages = {task.stage for task in each.tasks}
            runs.update(stages - before)
            before = stages or before
            gathered = weights_of(program, each)
            made = set(each.results) if each.kind == "gather" else gathered
            if made:
                reader = next(later for later in calls[number + 1 :] if not made.isdisjoint(later.operands))
                stage = min({task.stage for task in reader.tasks} - (before if gathered else set()) or before)
                if gathered:
                    beside[mesh, *each.tasks] = stage, len(beside)
                else:
                    alone[mesh].append(stage)
    return alone, beside, runs


def weights_of(program: Program, call: Call) -> set[int]:
    """Returns the registers of the weights that a call gathers."""
    function = program.functions.get(call.function)
    return {call.results[number] for number in function.gathered} if function else set()
