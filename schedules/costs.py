"""The costs of tasks and hops: times and bytes that the simulator and the search read, and that a runtime measures."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any, Final, cast

from jaxpp._system import write_file
from jaxpp.schedules.errors import ScheduleError, instance_of, one_of, whole_number
from jaxpp.schedules.model.between_runs import BetweenRuns
from jaxpp.schedules.model.kinds import COMPUTE, KIND_NAME
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task
from jaxpp.schedules.model.values import (
    PerMesh,
    PerPair,
    PerStage,
    factors,
    of_stages,
    per_fused,
    per_mesh,
    per_pair,
    per_stage,
    shares,
)

UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "units": 1e-3}
"""The units of time, in seconds. "units" means no particular unit; a trace shows it as a millisecond."""

_KINDS: Final = ("forward", "input_grad", "weight_grad")
_BYTES: Final = ("activation_bytes", "weight_grad_bytes", "message_bytes")
_PER_RUN: Final = ("gather", "scatter")


@dataclass(frozen=True)
class Costs:
    """The times (in one unit of time), bytes, and bytes per unit of time of a pipeline.

    A scalar is for one microbatch on a whole mesh. With v stages per mesh, each stage takes 1/v of it; a message is not
    divided. A list gives each stage its own number. A slice of
    the sequence takes its share.

    Attributes:
        forward: the time of a forward.
        input_grad: the time of the gradient of a stage's inputs.
        weight_grad: the time of the gradient of its weights. A full backward takes the time of both gradients.
        hop: the latency from the end of a task on one mesh to the start of a task that needs it on another mesh.
        bandwidth: the bytes per unit of time of a link from one mesh to another.
        message_bytes: the bytes that a stage sends to the next stage. The gradient that comes back has the same bytes.
        activation_bytes: the bytes that a forward keeps for the backward, including the input of its stage. A stage
            that recomputes keeps only that input until the recompute. The input is the message of the previous stage;
            the first stage's input is the batch.
        weight_grad_bytes: the bytes kept from the input gradient to the weight gradient, including the gradient of the
            output. The default is `activation_bytes`.
        copy_bandwidth: the bytes per unit of time from a mesh to its host, and at the same time as many back. An
            offload moves the activations of its stage.
        kinds: the time of each kind of task, built-in or of the user; "backward" is the time of a full backward. By
            default, a recompute takes as long as the forward. An "evict" or a "load" takes a hop, and the time of the
            stage's activations on their link.
        fused: the time of a fused cell as a share of the sum of its tasks: below 1 where they overlap (DualPipe). A
            table gives the share for pairs of kinds, "forward+backward", and other pairs have 1. A cell of more than
            two tasks has the mean over its pairs.
        slices: the share of each slice of the sequence in a microbatch's time, if they differ (SlimPipe,
            arXiv 2504.14519). A list may give these shares for each stage.
        microbatches: the size of each microbatch, if they differ. Times and bytes are for a microbatch of size 1.
        speed: the speed of each mesh, if they differ. The time of tasks that use `compute` is divided by it.
        unit: the unit of time: "s", "ms" or "us" for measured costs, "units" if only the ratios matter.
        gather: the time to gather the sharded weights of a stage (`gather_weights="chunk"`) before each run of its
            tasks. A run is a sequence of its tasks on a mesh with only copies between them. No task's time includes the
            gather, and the gather does not wait for the inputs of the tasks.
        scatter: the time to reduce and scatter the gradients of a stage (`scatter_gradients="chunk"`). It comes after
            each run with backwards or weight gradients, before the next task of the mesh. After the last task of a mesh
            it is not counted, like the update of the weights.

    Raises:
        ScheduleError: when a time is not a positive number, or another number is negative or NaN. Lists and matrices of
            a wrong shape raise it once they are used with a schedule.
    """

    forward: PerStage = 1.0
    input_grad: PerStage = 1.0
    weight_grad: PerStage = 1.0
    hop: PerPair = 0.0
    bandwidth: PerPair = math.inf
    message_bytes: PerStage = 0.0
    activation_bytes: PerStage = 0.0
    weight_grad_bytes: PerStage | None = None
    copy_bandwidth: PerMesh = math.inf
    kinds: Mapping[str, PerStage] = field(default_factory=dict[str, PerStage])
    fused: float | Mapping[str, float] = 1.0
    slices: tuple[float, ...] | tuple[tuple[float, ...], ...] = ()
    microbatches: tuple[float, ...] = ()
    speed: PerMesh = 1.0
    unit: str = "units"
    gather: PerStage = 0.0
    scatter: PerStage = 0.0

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in _KINDS:
            put(self, name, per_stage(getattr(self, name), name, positive=True))
        for name in (*_BYTES, *_PER_RUN):
            if name != "weight_grad_bytes" or self.weight_grad_bytes is not None:
                put(self, name, per_stage(getattr(self, name), name, positive=False))
        put(self, "hop", per_pair(self.hop, "hop", positive=False))
        put(self, "bandwidth", per_pair(self.bandwidth, "bandwidth", positive=True))
        put(self, "fused", per_fused(self.fused))
        for name in ("copy_bandwidth", "speed"):
            put(self, name, per_mesh(getattr(self, name), name, infinite=name != "speed"))
        if not isinstance(cast("object", self.kinds), Mapping):
            raise ScheduleError(f"kinds must be a table from kind to time, found {self.kinds!r}")
        for name in self.kinds:
            if not KIND_NAME.fullmatch(str(name)):
                raise ScheduleError(f"kinds: expected names in lower case, such as 'offload', found {name!r}")
        put(self, "kinds", {name: per_stage(time, name, positive=True) for name, time in self.kinds.items()})
        put(self, "slices", shares(self.slices))
        put(self, "microbatches", factors(self.microbatches))
        one_of(list(UNITS), self.unit, "unit")

    def in_unit(self, unit: str) -> Costs:
        """Returns the same costs in another unit of time.

        Raises:
            ScheduleError: when the unit is unknown.
        """
        factor = UNITS[self.unit] / UNITS[replace(self, unit=unit).unit]
        times = {name: _scaled(getattr(self, name), factor) for name in (*_KINDS, *_PER_RUN, "hop", "kinds")}
        rates = {name: _scaled(getattr(self, name), 1 / factor) for name in ("bandwidth", "copy_bandwidth")}
        return replace(self, **times, **rates, unit=unit)

    def time(self, task: Task, mesh: int, schedule: Schedule) -> float:
        """Returns the duration of a task on a mesh, without waits.

        A copy is counted as a copy of the whole activation, as if the stage did not recompute. A task that takes memory
        from a peer has the duration 0 unless its time is given. Its duration depends on both meshes, and `simulate`
        adds it.

        Raises:
            ScheduleError: when the schedule has no such kind, stage, microbatch, slice or mesh. Also when the costs are
                for other numbers of them, or do not give the time.
        """
        size = self.size(schedule) or one
        for what, counted in (("stage", "stages"), ("microbatch", "microbatches"), ("slice", "slices")):
            if getattr(task, what) >= getattr(schedule, counted):
                there = f"there are {getattr(schedule, counted)}"
                raise ScheduleError(f"{schedule.name} has no {what} {getattr(task, what)}: {there}")
        return self.on_mesh(task.kind, mesh, schedule)[task.stage] * size(task)

    def between_runs(self, schedule: Schedule) -> BetweenRuns | None:
        """Returns the times of gathers and scatters of each stage; None if both are 0.

        Raises:
            ScheduleError: when the costs are for other stages.
        """
        if self.gather == 0 == self.scatter:
            return None
        return BetweenRuns(*(_for_each_stage(getattr(self, each), each, schedule) for each in _PER_RUN))

    def on_mesh(self, kind: str, mesh: int, schedule: Schedule) -> list[float]:
        """Returns the durations of one kind of task on one mesh, for each stage, for a whole microbatch of size 1.

        Raises:
            ScheduleError: when the schedule has no such kind or mesh, the costs are for other stages or meshes, or they
                do not give the time of the kind.
        """
        rule = schedule.rules.get(kind)
        if rule is None or mesh not in range(schedule.meshes):
            what = f"kind {kind!r}" if rule is None else f"mesh {mesh}: there are {schedule.meshes}"
            raise ScheduleError(f"{schedule.name} has no {what}")
        known = self._known(kind, schedule)
        if known is None:
            if isinstance(rule.time, tuple):
                raise ScheduleError(f"the costs do not say how long {kind} takes, nor {' and '.join(rule.time)}")
            if rule.moves:  # `simulate` adds the hop, which depends on both meshes
                return [0.0] * schedule.stages
            moved = abs(rule.amount("host"))
            if not moved:
                raise ScheduleError(f"the costs do not say how long {kind} takes: give kinds={{{kind!r}: ...}}")
            bandwidth = self.per_mesh("copy_bandwidth", schedule)[mesh]
            known = [moved * size / bandwidth for size in self.bytes("activation_bytes", schedule)]
        speed = self.per_mesh("speed", schedule)[mesh] if COMPUTE in rule.uses else 1.0
        return [time / speed for time in known] if speed != 1 else known

    def at_home(self, kind: str, schedule: Schedule) -> list[float]:
        """Returns the durations of one kind of task, for each stage on its home mesh.

        Raises:
            ScheduleError: under the conditions of `on_mesh`.
        """
        return [self.on_mesh(kind, schedule.placement[stage], schedule)[stage] for stage in range(schedule.stages)]

    def _known(self, kind: str, schedule: Schedule, asked: tuple[str, ...] = ()) -> list[float] | None:
        """Returns the times that the costs or the kind's own `time` give.

        Returns None if they give none, or if the times of kinds refer to one another in a cycle.
        """
        if kind in self.kinds:
            return _for_each_stage(self.kinds[kind], kind, schedule)
        if kind in _KINDS:
            return _for_each_stage(cast("PerStage", getattr(self, kind)), kind, schedule)
        time = schedule.rules[kind].time if kind in schedule.rules else None
        if not isinstance(time, tuple):
            return None if time is None else _for_each_stage(time, kind, schedule)
        asked = (*asked, kind)
        parts = [None if each in asked else self._known(each, schedule, asked) for each in time]
        found = [part for part in parts if part]
        return [sum(each) for each in zip(*found, strict=True)] if len(found) == len(time) else None

    def is_told(self, kind: str, schedule: Schedule) -> bool:
        """Whether the costs or the rules give the time of a kind.

        Otherwise the time follows from the bytes that its tasks move.
        """
        return self._known(kind, schedule) is not None

    def factor(self, kinds: Sequence[str]) -> float:
        """Returns the time of a fused cell of these kinds, as a share of the sum of its tasks."""
        if not isinstance(self.fused, Mapping):
            return self.fused
        pairs = ["+".join(sorted(pair)) for pair in combinations(kinds, 2)]
        return math.fsum(self.fused.get(pair, 1.0) for pair in pairs) / len(pairs)

    def size(self, schedule: Schedule) -> Callable[[Task], float] | None:
        """Returns a function from a task to the size of its slice and microbatch; None if all sizes are 1.

        Raises:
            ScheduleError: when the costs are for other numbers of slices or microbatches.
        """
        slices = of_stages(self.slices or (1 / schedule.slices,) * schedule.slices, schedule.stages)
        found = {"stages of slices": len(slices), "slices": len(slices[0]), "microbatches": len(self.microbatches)}
        for name, expected in (
            ("stages of slices", schedule.stages),
            ("slices", schedule.slices),
            ("microbatches", schedule.microbatches),
        ):
            if found[name] not in (0, expected):
                raise ScheduleError(f"{name}: expected {expected} for {schedule.name}, found {found[name]}")
        microbatches = self.microbatches or (1.0,) * schedule.microbatches
        if schedule.slices == 1 and not self.microbatches:
            return None
        return lambda task: slices[task.stage][task.slice] * microbatches[task.microbatch]

    def refuse_sizes(self, what: str) -> None:
        """Checks the costs for a caller that supports only whole microbatches of size 1.

        Raises:
            ScheduleError: when there are slices, or microbatches of another size.
        """
        for name, sizes in (("microbatches", self.microbatches), ("slices", self.slices)):
            if any(size != 1 for size in sizes):
                found = f"the costs have {name}={sizes}"
                raise ScheduleError(
                    f"{what}: all microbatches must be whole and of size 1, but {found}: leave them out"
                )

    def per_mesh(self, what: str, schedule: Schedule) -> list[float]:
        """Returns the `speed` or `copy_bandwidth` of each mesh.

        Raises:
            ScheduleError: when a list has another length than there are meshes.
        """
        value = cast("PerMesh", getattr(self, what))
        if isinstance(value, float):
            return [value] * schedule.meshes
        numbers = list(cast("Sequence[float]", value))
        if len(numbers) != schedule.meshes:
            raise ScheduleError(f"{what}: expected a number for each of {schedule.meshes} meshes, found {len(numbers)}")
        return numbers

    def bytes(self, what: str, schedule: Schedule) -> list[float]:
        """Returns the `activation_bytes`, `weight_grad_bytes` or `message_bytes` of each stage, for a whole microbatch.

        Raises:
            ScheduleError: when a list has another length than there are stages.
        """
        value = cast("PerStage | None", getattr(self, what))
        if value is None:
            return self.bytes("activation_bytes", schedule)
        if what == "message_bytes" and isinstance(value, float):
            return [value] * schedule.stages
        return _for_each_stage(value, what, schedule)

    @property
    def stages(self) -> int | None:
        """The number of stages that these costs are for; None if no cost is a list of stages."""
        found = [getattr(self, each) for each in (*_KINDS, *_BYTES, *_PER_RUN)] + list(self.kinds.values())
        return next((len(each) for each in found if isinstance(each, tuple)), None)

    def merged(self, stages: int) -> Costs:
        """Returns the costs for fewer stages, each made of the same number of neighbouring stages; scalars stay.

        Raises:
            ScheduleError: when `stages` does not divide the number of stages of these costs.
        """
        if self.stages is None or self.stages == stages:
            return self
        if self.stages % whole_number(stages, "stages", least=1):
            raise ScheduleError(
                f"the costs are for {self.stages} stages, the schedule has {stages}: measure as many, or a multiple"
            )
        return self.cut([self.stages // stages] * stages)

    def cut(self, cuts: Sequence[int]) -> Costs:
        """Returns the costs for stages that are made of neighbouring stages (or layers) of these costs; scalars stay.

        Args:
            cuts: for each new stage, the number of old stages in it.

        Raises:
            ScheduleError: when the numbers are not positive, or their sum is not the number of stages of these costs.
        """
        sizes = [whole_number(size, "the layers of a stage", least=1) for size in cuts]
        if self.stages is not None and sum(sizes) != self.stages:
            raise ScheduleError(f"cuts of {sum(sizes)} layers, the costs are for {self.stages}")
        ends = list(accumulate(sizes))

        def together(value: PerStage | None, last: bool = False) -> PerStage | None:
            if not isinstance(value, tuple):
                return value
            groups = [value[end - size : end] for size, end in zip(sizes, ends, strict=True)]
            return tuple(group[-1] if last else math.fsum(group) for group in groups)

        names = (*_KINDS, *_BYTES, *_PER_RUN)
        values = {each: together(getattr(self, each), each == "message_bytes") for each in names}
        return replace(self, **values, kinds={kind: together(time) for kind, time in self.kinds.items()})

    def listed(self, stages: int, meshes: int) -> Costs:
        """Returns the costs with a list of one number per stage in place of each scalar that stages share.

        Raises:
            ScheduleError: when the costs have lists for another number of stages.
        """
        empty = Schedule("costs", Placement.of(*(stage * meshes // stages for stage in range(stages))), ((),) * meshes)

        def each(value: PerStage | None, what: str) -> PerStage | None:
            return None if value is None else tuple(_for_each_stage(value, what, empty))

        names = (*_KINDS, "activation_bytes", "weight_grad_bytes", *_PER_RUN)
        values = {what: each(getattr(self, what), what) for what in names}
        return replace(self, **values, kinds={kind: each(time, kind) for kind, time in self.kinds.items()})

    def pair(self, what: str, schedule: Schedule) -> list[list[float]]:
        """Returns the `hop` or `bandwidth` of each pair of meshes, as [from mesh][to mesh].

        Raises:
            ScheduleError: when a matrix does not have a row and a column per mesh.
        """
        value, meshes = cast("PerPair", getattr(self, what)), schedule.meshes
        if isinstance(value, float):
            return [[value] * meshes for _ in range(meshes)]
        rows = [list(row) for row in cast("Sequence[Sequence[float]]", value)]
        if len(rows) != meshes:
            raise ScheduleError(f"{what}: expected {meshes} rows and columns, one per mesh, found {len(rows)}")
        return rows

    @classmethod
    def load(cls, path: str | Path) -> Costs:
        """Reads a cost file with the names of the attributes: JSON if the name ends in .json, otherwise TOML.

        Raises:
            ScheduleError: when the file has another format, or an unknown name or a wrong number.
            OSError: when the file cannot be read.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            found: object = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ScheduleError(f"{path}: not a cost file: {error}") from None
        if not isinstance(found, dict):
            raise ScheduleError(f"{path}: not a cost file: expected a table of names, found {str(found)[:40]}")
        values = cast("dict[str, object]", found)
        known = [attribute.name for attribute in fields(cls)]
        for name in values:
            if name not in known:
                raise ScheduleError(f"{path}: no cost is named {name!r}: there are {', '.join(known)}")
        try:
            return cls.of_table(values)
        except ScheduleError as error:
            raise ScheduleError(f"{path}: {error}") from None

    @classmethod
    def of_table(cls, values: Mapping[str, object]) -> Costs:
        """Returns the costs of a table that `table` made.

        Raises:
            ScheduleError: when a number is wrong.
        """
        return cls(**cast("dict[str, Any]", {name: _infinite(value) for name, value in values.items()}))

    def table(self) -> dict[str, object]:
        """Returns the attributes as values for JSON, without those that have their default; infinity is "inf"."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _finite(value) for name, value in values.items() if value != getattr(_DEFAULT, name)}

    def save(self, path: str | Path) -> None:
        """Writes a file that `load` reads back exactly. Attributes with their default are left out.

        The file is written whole or not at all.

        Raises:
            OSError: when the file cannot be written.
        """
        values = self.table()
        if Path(path).suffix == ".json":
            text = json.dumps(values, indent=2)
        else:
            # JSON and TOML write lists of numbers, strings and booleans in the same way.
            tables = {name: values.pop(name) for name in ("kinds", "fused") if isinstance(values.get(name), Mapping)}
            lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
            for name, table in cast("dict[str, dict[str, object]]", tables).items():
                lines += ["", f"[{name}]", *(f"{_key(key)} = {json.dumps(value)}" for key, value in table.items())]
            text = "\n".join(lines)
        write_file(str(path), (text + "\n").encode())


def one(task: Task) -> float:
    """Returns 1, the size of every task if all microbatches are equal and not cut into slices."""
    return 1.0


def _key(name: str) -> str:
    return name if KIND_NAME.fullmatch(name) else json.dumps(name)


def _for_each_stage(value: PerStage, what: str, schedule: Schedule) -> list[float]:
    if isinstance(value, float):
        return [value * schedule.meshes / schedule.stages] * schedule.stages
    numbers = list(cast("Sequence[float]", value))
    if len(numbers) != schedule.stages:
        raise ScheduleError(f"{what}: expected a number for each of {schedule.stages} stages, found {len(numbers)}")
    return numbers


def _scaled(value: object, factor: float) -> Any:
    """Multiplies all numbers of a cost by `factor`."""
    if isinstance(value, tuple):
        return tuple(_scaled(each, factor) for each in cast("tuple[object, ...]", value))
    if isinstance(value, Mapping):
        return {name: _scaled(each, factor) for name, each in cast("Mapping[str, object]", value).items()}
    return factor * cast("float", value)


def _finite(value: object) -> object:
    """Replaces infinity, which JSON does not have, by "inf"."""
    if isinstance(value, tuple):
        return [_finite(each) for each in cast("tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in cast("Mapping[str, object]", value).items()}
    return "inf" if value == math.inf else value


def _infinite(value: object) -> object:
    if isinstance(value, list):
        return [_infinite(each) for each in cast("list[object]", value)]
    return math.inf if value == "inf" else value


_DEFAULT: Final = Costs()


def given_costs(costs: Costs | None) -> Costs:
    """Returns the costs that a caller gave, or costs of 1 for each task of a whole mesh if it gave None.

    Raises:
        ScheduleError: when `costs` is anything else.
    """
    found = Costs() if costs is None else costs
    instance_of(Costs, found, "costs", ", such as Costs(forward=1, hop=0.1)")
    return found
