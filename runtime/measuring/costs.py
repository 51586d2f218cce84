"""The costs of a measured step, for the simulator and the search of schedules."""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxpp.ir.kinds import BACKWARDS, FORMS, HALVES
from jaxpp.ir.program import Call, Place, Program, TaskName
from jaxpp.runtime.measuring.between_runs import gather_times, scatter_times, weights_of
from jaxpp.runtime.measuring.events import Event
from jaxpp.schedules import Costs
from jaxpp.schedules.costs import UNITS
from jaxpp.schedules.engine.spans import Label

_NOTHING = 1e-9
"""Seconds of a task without a time, because costs must be positive.

The program may lack the task, such as the backward of a stage without weights. Or the predicted time is 0, such as that
of a task that XLA does not compile."""

_MAKERS = ("forward", "recompute", *filter(None, (form.back for form in FORMS.values())))
"""The kinds of tasks whose operands or results the backward of the same stage reads."""


def measured_costs(program: Program, *steps: Sequence[Event], unit: str = "ms") -> Costs:
    """Returns the costs of the program's tasks and transfers, from one or several traced steps.

    Times are medians over microbatches and steps. The first run of each task on a mesh is left out of each step, as it
    may be slower, unless it is the only run.

    A full backward counts as input and weight gradient in equal parts. If its stage also has separate gradients, the
    full backward is in `kinds` instead. `kinds` also has recomputes, copies of residuals and the user's functions. The
    time of a task that never runs alone is the time of its calls minus the times of the calls' other tasks. `fused` is
    the duration of a call of several tasks divided by the sum of the tasks' own durations, the median over the calls.

    `hop` is one number for all pairs of meshes: the time of the largest copy that a task sends to a mesh. `gather` is
    the time of all gathers of a stage, divided by the number of runs of its tasks; some runs need no gather. `scatter`
    is the time of all scatters, divided by the number of runs that add to gradients. Of a task that also gathers
    (`gather_weights="ahead"`), `gather` counts the additional time over other tasks of its kind.

    Bytes are counted for whole values, from the program. `message_bytes` are the values that the forward of stage s + 1
    reads from stage s. `activation_bytes` are the values that a backward reads and that its forward, its recompute or a
    reload reads or makes. `weight_grad_bytes` are the values that a separate weight gradient reads. None of them counts
    values that all microbatches share, such as weights and sums. No time includes calls outside the microbatch loop.

    Args:
        program: the traced program.
        steps: the events of each step, from `trace_step`.
        unit: the unit of time in the costs: "s", "ms" or "us".

    Raises:
        ValueError: no task of a stage is among the events.
        ScheduleError: `unit` is unknown.
    """
    scale = 1 / UNITS[Costs(unit=unit).unit]
    times = _task_times(steps)
    share = _add_fused(times, steps)
    slices = 1 + max((each.slice for events in steps for each in events), default=0)
    per_task = scale * slices  # the costs are of tasks of whole microbatches
    if not times:
        raise ValueError("measured_costs: the events have no task of a stage")
    activation_bytes, message_bytes, weight_grad_bytes = _bytes(program)
    table = [_stage_times(times, stage) for stage in range(len(activation_bytes))]
    forward, input_grad, weight_grad = ([_rounded(per_task * row[column]) for row in table] for column in range(3))
    return Costs(
        forward=forward,
        input_grad=input_grad,
        weight_grad=weight_grad,
        gather=_times(gather_times(program, steps, times, len(table)), scale),
        scatter=_times(scatter_times(program, steps, len(table)), scale),
        hop=_rounded(scale * _hop(steps)),
        message_bytes=message_bytes,
        activation_bytes=activation_bytes,
        weight_grad_bytes=weight_grad_bytes,
        kinds=_full_backwards(times, table, per_task) | _other_kinds(program, times, len(table), per_task),
        fused=_rounded(share),
        unit=unit,
    )


def slice_shares(*steps: Sequence[Event]) -> tuple[float, ...]:
    """Returns each slice's share of the time of a microbatch, for `Costs.slices` and `equal_cuts`.

    Times are medians, as in `measured_costs`. A task of several calls takes the time of all of them.

    Args:
        steps: the events of each step, from `trace_step`. The slices must have equal lengths.

    Raises:
        ValueError: the events have no tasks of several slices.
    """
    tasks = [[each for each in events if each.stage is not None and each.target is None] for events in steps]
    # The operations after the last slice have the next index, and no backward.
    count = 1 + max((each.slice for events in tasks for each in events if each.kind != "forward"), default=0)
    if count == 1:
        raise ValueError("slice_shares: the events have no tasks of several slices")
    slices = [[[each for each in events if each.slice == part] for events in tasks] for part in range(count)]
    times = [sum(_task_times(events).values()) for events in slices]
    return tuple(time / sum(times) for time in times)


def _rounded(time: float) -> float:
    """Rounds to six significant digits, because people also read cost files."""
    return float(f"{time:.6g}")


def _times(seconds: Sequence[float], scale: float) -> list[float] | float:
    """Returns the scaled time of each stage, or a single 0 if all are 0."""
    return [_rounded(scale * each) for each in seconds] if any(seconds) else 0.0


def _task_times(steps: Iterable[Sequence[Event]]) -> dict[tuple[str, int], float]:
    """Returns the median time of each (kind, stage), in seconds."""
    found: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for events in steps:
        runs: defaultdict[tuple[str, int, int], defaultdict[Label, float]] = defaultdict(lambda: defaultdict(float))
        for each in events:
            if each.stage is not None and each.target is None:
                runs[each.kind, each.stage, each.mesh][each.label] += each.seconds  # a task may be several calls
        for (kind, stage, _), tasks in runs.items():
            seconds = list(tasks.values())
            found[kind, stage] += seconds[1:] or seconds
    return {key: statistics.median(seconds) for key, seconds in found.items()}


def _add_fused(times: dict[tuple[str, int], float], steps: Iterable[Sequence[Event]]) -> float:
    """Adds the tasks that never run alone to `times`; returns the time of a fused call as a share of its tasks' sum."""
    calls: list[Event] = []
    for events in steps:
        runs: defaultdict[tuple[object, ...], list[Event]] = defaultdict(list)
        for each in events:
            if each.fused:
                runs[each.mesh, *(task[:2] for task in each.fused)].append(each)
        calls += [each for group in runs.values() for each in group[1:] or group]
    rests: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for each in calls:
        keys = [task[:2] for task in each.fused]
        unknown = [key for key in keys if key not in times]
        rest = each.seconds - sum(times.get(key, 0.0) for key in keys)
        for key in unknown:
            rests[key].append(max(rest / len(unknown), _NOTHING))
    alone = set(times)
    times.update({key: statistics.median(seconds) for key, seconds in rests.items()})
    shares = [
        each.seconds / sum(times[task[:2]] for task in each.fused)
        for each in calls
        if all(task[:2] in alone for task in each.fused)
    ]
    return statistics.median(shares) if shares else 1.0


def _stage_times(times: Mapping[tuple[str, int], float], stage: int) -> tuple[float, float, float]:
    """Returns the forward, input gradient and weight gradient of a stage, in seconds."""
    halves = [times.get((kind, stage)) for kind in HALVES]
    if halves == [None, None] and ("backward", stage) in times:
        halves = [times["backward", stage] / 2] * 2
    forward, input_grad, weight_grad = (time or _NOTHING for time in (times.get(("forward", stage)), *halves))
    return forward, input_grad, weight_grad


def _full_backwards(
    times: Mapping[tuple[str, int], float], table: Sequence[tuple[float, float, float]], scale: float
) -> dict[str, list[float]]:
    """Returns the time of each stage's full backward, if a stage has both full and split backwards; otherwise nothing.

    A full backward need not take the sum of its two gradients.
    """
    halved = {stage for kind, stage in times if kind in HALVES}
    if not any(("backward", stage) in times for stage in halved):
        return {}
    full = (times.get(("backward", stage), row[1] + row[2]) for stage, row in enumerate(table))
    return {"backward": [_rounded(scale * time) for time in full]}


def _other_kinds(
    program: Program, times: Mapping[tuple[str, int], float], stages: int, scale: float
) -> dict[str, list[float]]:
    """Returns the times of the other kinds for each stage: recomputes, copies, user's functions."""
    own = {each.kind for each in program.functions.values() if each.is_operation}
    kinds = sorted(({kind for kind, _ in times} & {*FORMS, *own}) - {"forward", *BACKWARDS})
    return {
        kind: [_rounded(scale * (times.get((kind, stage)) or _NOTHING)) for stage in range(stages)] for kind in kinds
    }


def _hop(steps: Iterable[Sequence[Event]]) -> float:
    """Returns the median duration of a message, in seconds.

    All copies that a task sends to one mesh are one message. The message takes as long as its longest copy.
    """
    found: list[float] = []
    for events in steps:
        messages: dict[tuple[object, ...], float] = {}
        for each in events:
            if each.stage is not None and each.target is not None:
                key = (each.mesh, each.target, each.stage, each.microbatch, each.start)
                messages[key] = max(messages.get(key, 0.0), each.seconds)
        links: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
        for key, seconds in messages.items():
            links[key[:2]].append(seconds)
        for seconds in links.values():
            found += seconds[1:] or seconds
    return statistics.median(found) if found else 0.0


def _bytes(program: Program) -> tuple[list[int], list[int], list[int] | None]:
    """Returns for each stage the bytes of activations, of messages, and of a weight gradient's operands (or None)."""
    values = _Values(program)
    stages = 1 + max((task.stage for task in values.tasks), default=-1)
    activations, messages, kept = [0] * stages, [0] * stages, [0] * stages
    for stage, microbatch in {task[1:3] for task in values.tasks}:
        makers = values.of(_MAKERS, stage, microbatch)
        activations[stage] = max(activations[stage], values.size(values.kept(stage, microbatch)))
        # Stages may be a graph: a stage's message has the size of the largest one that any other stage reads.
        for source in {source for kind, source in values.sources(makers) if kind == "forward"} - {stage}:
            sent = values.read(makers, made_by=("forward", source))
            messages[source] = max(messages[source], values.size(sent))
        weight_grads = values.of(("weight_grad",), stage, microbatch)
        kept[stage] = max(kept[stage], values.size(values.read(weight_grads)))
    return activations, messages, kept if any(kind == "weight_grad" for kind, *_ in values.tasks) else None


def kept_places(program: Program) -> dict[int, set[Place]]:
    """Returns for each stage the values that one microbatch keeps from forward to backward (`activation_bytes`)."""
    values = _Values(program)
    return {task.stage: values.kept(task.stage, task.microbatch) for task in values.tasks if not task.microbatch}


def _apart(program: Program, call: Call) -> list[Call]:
    """Divides a fused call into one call per task, each with its own operands and results."""
    if not call.fused:
        return [call]
    function = program.functions[call.function]
    return [
        dataclasses.replace(
            call,
            operands=tuple(r for r, of in zip(call.operands, function.argument_parts, strict=True) if of == number),
            results=tuple(r for r, of in zip(call.results, function.result_parts, strict=True) if of == number),
            kind=task.kind,
            tasks=(task,),
        )
        for number, task in enumerate(call.tasks)
    ]


class _Values:
    """The tasks of a program, and the call that made each value, also after sends to other meshes.

    tasks: the (mesh, call) pairs of each task.
    slices: the number of slices of a microbatch's sequence.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tasks: defaultdict[TaskName, list[tuple[int, Call]]] = defaultdict(list)
        self._makers: dict[Place, Call] = {}
        self._sources = {(hop.target, hop.result): (hop.source, hop.operand) for hop in program.hops.values()}
        for mesh, calls in enumerate(program.calls):
            for each in calls:
                gathered = weights_of(program, each)
                for part in _apart(program, each):
                    made = (register for register in part.results if register not in gathered)
                    self._makers.update(((mesh, register), part) for register in made)
                    for task in part.tasks:
                        self.tasks[task].append((mesh, part))
        self.slices = 1 + max((task.slice for task in self.tasks), default=0)

    def of(self, kinds: Iterable[str], stage: int, microbatch: int) -> list[tuple[int, Call]]:
        """Returns the tasks of these kinds, of one stage and microbatch, in all its slices."""
        names = (TaskName(kind, stage, microbatch, part) for kind in kinds for part in range(self.slices))
        return [call for name in names for call in self.tasks.get(name, ())]

    def read(self, calls: Iterable[tuple[int, Call]], made_by: tuple[str, int] | None = None) -> set[Place]:
        """Returns the operands of the calls that their own microbatch made, in tasks of `made_by` if it is given."""
        return {
            (mesh, register)
            for mesh, call in calls
            for register in call.operands
            for maker in self._maker((mesh, register))
            if maker.microbatch == call.microbatch and made_by in (None, (maker.kind, maker.stage))
        }

    def kept(self, stage: int, microbatch: int) -> set[Place]:
        """Returns the values that a backward reads, and that its forward, recompute or reload reads or makes."""
        makers = self.of(_MAKERS, stage, microbatch)
        known = self.read(makers) | {(mesh, register) for mesh, call in makers for register in call.results}
        return known & self.read(self.of(BACKWARDS, stage, microbatch))

    def sources(self, calls: Iterable[tuple[int, Call]]) -> set[tuple[str, int]]:
        """Returns the (kind, stage) of the tasks that made the operands of the calls."""
        makers = (self._maker((mesh, register)) for mesh, call in calls for register in call.operands)
        return {(maker.kind, maker.stage) for found in makers for maker in found if maker.stage is not None}

    def size(self, places: Iterable[Place]) -> int:
        """Returns the bytes of these values."""
        return sum(self.program.registers[mesh][register].bytes for mesh, register in places)

    def _maker(self, place: Place) -> Iterator[Call]:
        """Yields the call that made a value; nothing for an argument or a constant."""
        while place in self._sources:
            place = self._sources[place]
        if place in self._makers:
            yield self._makers[place]
