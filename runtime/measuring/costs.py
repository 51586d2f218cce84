"""The costs of a measured step, for the simulator and the search of schedules."""

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxpp.ir.kinds import FORMS
from jaxpp.ir.program import Call, Place, Program, Receive, Send, TaskName
from jaxpp.runtime.measuring.between_runs import gather_times, scatter_times, weights_of
from jaxpp.runtime.measuring.trace import Event
from jaxpp.schedules import Costs
from jaxpp.schedules.costs import UNITS
from jaxpp.schedules.formats.chrome_trace import Label

_NOTHING = 1e-9
"""Seconds of a task that the program lacks, such as the backward of a stage without weights, or that takes none by a
prediction, such as one that XLA does not compile: costs must be positive."""

_BACKWARD = ("backward", "input_grad", "weight_grad")

_MAKERS = ("forward", "recompute", *filter(None, (form.back for form in FORMS.values())))
"""The kinds of tasks that make what a backward reads of its stage, or bring it back."""


def measured_costs(program: Program, *steps: Sequence[Event], unit: str = "ms") -> Costs:
    """The costs of the program's tasks and hops, from one or several traced steps.

    Times are medians over microbatches and steps. Of each step the first run of each task on a mesh is left out, as it
    may be slower than the rest, unless it is the only one. A full backward counts as input and weight gradient in equal
    parts, unless that stage has them as tasks of their own: then it is in `kinds`, as are recomputes, copies
    of residuals and the user's own functions. A task that never runs alone takes the time of its calls less the times
    of the other tasks. `fused` is the time of a call of several tasks as a share
    of what they take alone, the median over the calls. `hop` is one number for all pairs of meshes: the time of the
    largest of the copies that a task sends to a mesh. `gather` is what gathers of a stage take in all, by the number of
    the runs of its tasks: some need none; `scatter` likewise, by those runs that add to gradients. Beside a task
    (`gather_weights="ahead"`) a gather is what that one takes longer than others of its kind.

    Bytes are of whole values, from the program: what the forward of stage s + 1 reads of stage s (`message_bytes`);
    what a backward reads of what its forward or recompute has or makes, or of what is brought back
    (`activation_bytes`); where the backward is split, what the weight gradient reads (`weight_grad_bytes`). What all
    microbatches share, weights and sums, is in none of them, and what runs outside the microbatch loop is in no time.

    Args:
        program: what was traced.
        steps: the events of each step, from `trace_step`.
        unit: of time in the costs: "s", "ms" or "us".

    Raises:
        ValueError: no task of a stage is among the events.
        ScheduleError: the unit is none.
    """
    scale = 1 / UNITS[Costs(unit=unit).unit]
    times = _task_times(steps)
    share = _add_fused(times, steps)
    slices = 1 + max((each.slice for events in steps for each in events), default=0)
    per_task = scale * slices  # tasks are of whole microbatches
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
    """The share of each slice of the sequence in the time of a microbatch: `Costs.slices`, and for `equal_cuts`.

    Times are medians, as of `measured_costs`; a task of several calls takes the time of all of them.

    Args:
        steps: the events of each step, from `trace_step`: those of slices of equal lengths.

    Raises:
        ValueError: the events are of no schedule with slices.
    """
    tasks = [[each for each in events if each.stage is not None and each.target is None] for events in steps]
    # What follows the last slice has the number behind it, and no backward.
    count = 1 + max((each.slice for events in tasks for each in events if each.kind != "forward"), default=0)
    if count == 1:
        raise ValueError("slice_shares: the events have no tasks of several slices")
    slices = [[[each for each in events if each.slice == part] for events in tasks] for part in range(count)]
    times = [sum(_task_times(events).values()) for events in slices]
    return tuple(time / sum(times) for time in times)


def _rounded(time: float) -> float:
    """Round to six digits: people read cost files too."""
    return float(f"{time:.6g}")


def _times(seconds: Sequence[float], scale: float) -> list[float] | float:
    """The time of each stage; one 0 where none takes any."""
    return [_rounded(scale * each) for each in seconds] if any(seconds) else 0.0


def _task_times(steps: Iterable[Sequence[Event]]) -> dict[tuple[str, int], float]:
    """The median of each (kind, stage), in seconds."""
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
    """Add the tasks that never run alone to `times`; returns the time of a fused call as a share of its tasks' sum."""
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
    """Forward, input gradient and weight gradient of a stage, in seconds."""
    halves = [times.get((kind, stage)) for kind in ("input_grad", "weight_grad")]
    if halves == [None, None] and ("backward", stage) in times:
        halves = [times["backward", stage] / 2] * 2
    forward, input_grad, weight_grad = (time or _NOTHING for time in (times.get(("forward", stage)), *halves))
    return forward, input_grad, weight_grad


def _full_backwards(
    times: Mapping[tuple[str, int], float], table: Sequence[tuple[float, float, float]], scale: float
) -> dict[str, list[float]]:
    """The time of a full backward of each stage, if one is measured beside its halves: it need not be their sum."""
    halved = {stage for kind, stage in times if kind in ("input_grad", "weight_grad")}
    if not any(("backward", stage) in times for stage in halved):
        return {}
    full = (times.get(("backward", stage), row[1] + row[2]) for stage, row in enumerate(table))
    return {"backward": [_rounded(scale * time) for time in full]}


def _other_kinds(
    program: Program, times: Mapping[tuple[str, int], float], stages: int, scale: float
) -> dict[str, list[float]]:
    """The times of the kinds that are no forward and no backward: a recompute, a copy, a function of the user's."""
    own = {each.kind for each in program.functions.values() if each.is_operation}
    kinds = sorted(({kind for kind, _ in times} & {*FORMS, *own}) - {"forward", *_BACKWARD})
    return {
        kind: [_rounded(scale * (times.get((kind, stage)) or _NOTHING)) for stage in range(stages)] for kind in kinds
    }


def _hop(steps: Iterable[Sequence[Event]]) -> float:
    """Return the median over messages, in seconds.

    All copies that a task sends to one mesh are one message, which takes as long as the longest of them.
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
    """Bytes of activations, of messages, and of what a weight gradient reads (None without one), for each stage."""
    values = _Values(program)
    stages = 1 + max((task.stage for task in values.tasks), default=-1)
    activations, messages, kept = [0] * stages, [0] * stages, [0] * stages
    for stage, microbatch in {task[1:3] for task in values.tasks}:
        makers = values.of(_MAKERS, stage, microbatch)
        activations[stage] = max(activations[stage], values.size(values.kept(stage, microbatch)))
        # Stages may be a graph: the message of a stage is as large as what the stage that reads most of it reads.
        for source in {source for kind, source in values.sources(makers) if kind == "forward"} - {stage}:
            sent = values.read(makers, made_by=("forward", source))
            messages[source] = max(messages[source], values.size(sent))
        weight_grads = values.of(("weight_grad",), stage, microbatch)
        kept[stage] = max(kept[stage], values.size(values.read(weight_grads)))
    return activations, messages, kept if any(kind == "weight_grad" for kind, *_ in values.tasks) else None


def kept_places(program: Program) -> dict[int, set[Place]]:
    """For each stage the values that the forward of one microbatch keeps for its backward (`activation_bytes`)."""
    values = _Values(program)
    return {task.stage: values.kept(task.stage, task.microbatch) for task in values.tasks if not task.microbatch}


def _apart(program: Program, call: Call) -> list[Call]:
    """Divide a call that is several tasks into one for each, with its own operands and results."""
    if not call.fused:
        return [call]
    function = program.functions[call.function]
    return [
        dataclasses.replace(
            call,
            operands=tuple(r for r, of in zip(call.operands, function.argument_parts, strict=True) if of == number),
            results=tuple(r for r, of in zip(call.results, function.result_parts, strict=True) if of == number),
            kind=task.kind,
            stage=task.stage,
            microbatch=task.microbatch,
            fused=(),
        )
        for number, task in enumerate(call.fused)
    ]


class _Values:
    """The tasks of a program, and which call made each value, wherever it was sent since.

    tasks: (mesh, call) of each task.
    slices: into how many the sequence of a microbatch is cut.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.tasks: defaultdict[TaskName, list[tuple[int, Call]]] = defaultdict(list)
        self._makers: dict[Place, Call] = {}
        self._sent: dict[int, Place] = {}
        self._channels: dict[Place, int] = {}
        for mesh, sequence in enumerate(program.sequences):
            for each in sequence:
                if isinstance(each, Send):
                    self._sent[each.channel] = (mesh, each.operand)
                elif isinstance(each, Receive):
                    self._channels[mesh, each.result] = each.channel
                elif isinstance(each, Call):
                    gathered = weights_of(program, each)
                    for part in _apart(program, each):
                        made = (register for register in part.results if register not in gathered)
                        self._makers.update(((mesh, register), part) for register in made)
                        for task in part.tasks:
                            self.tasks[task].append((mesh, part))
        self.slices = 1 + max((task.slice for task in self.tasks), default=0)

    def of(self, kinds: Iterable[str], stage: int, microbatch: int) -> list[tuple[int, Call]]:
        """Return the tasks of these kinds, of one stage and microbatch, of all its slices."""
        names = (TaskName(kind, stage, microbatch, part) for kind in kinds for part in range(self.slices))
        return [call for name in names for call in self.tasks.get(name, ())]

    def read(self, calls: Iterable[tuple[int, Call]], made_by: tuple[str, int] | None = None) -> set[Place]:
        """Return what the calls read of their own microbatch, if tasks of `made_by`, a (kind, stage), made it."""
        return {
            (mesh, register)
            for mesh, call in calls
            for register in call.operands
            for maker in self._maker((mesh, register))
            if maker.microbatch == call.microbatch and made_by in (None, (maker.kind, maker.stage))
        }

    def kept(self, stage: int, microbatch: int) -> set[Place]:
        """Return what a backward reads of what its forward or recompute has or makes, or of what is brought back."""
        makers = self.of(_MAKERS, stage, microbatch)
        known = self.read(makers) | {(mesh, register) for mesh, call in makers for register in call.results}
        return known & self.read(self.of(_BACKWARD, stage, microbatch))

    def sources(self, calls: Iterable[tuple[int, Call]]) -> set[tuple[str, int]]:
        """Return the (kind, stage) of the tasks that made what the calls read."""
        makers = (self._maker((mesh, register)) for mesh, call in calls for register in call.operands)
        return {(maker.kind, maker.stage) for found in makers for maker in found if maker.stage is not None}

    def size(self, places: Iterable[Place]) -> int:
        """Return the bytes of these values."""
        return sum(self.program.registers[mesh][register].bytes for mesh, register in places)

    def _maker(self, place: Place) -> Iterator[Call]:
        """Return the call that made a value; None for an argument or a constant."""
        while place in self._channels:
            place = self._sent[self._channels[place]]
        if place in self._makers:
            yield self._makers[place]
