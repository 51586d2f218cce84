"""What tasks and hops cost: the times and bytes that the simulator and the search read, and that a runtime measures."""

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
from jaxpp.schedules.between_runs import BetweenRuns
from jaxpp.schedules.cost_values import (
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
from jaxpp.schedules.errors import ScheduleError, instance_of, one_of, true_or_false, whole_number
from jaxpp.schedules.kinds import COMPUTE, KIND_NAME
from jaxpp.schedules.schedule import Schedule
from jaxpp.schedules.task import Placement, Task

UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "units": 1e-3}
"""Units of time, in seconds; a trace shows a unit that is none in particular as a millisecond."""

_KINDS: Final = ("forward", "input_grad", "weight_grad")
_BYTES: Final = ("activation_bytes", "weight_grad_bytes", "message_bytes")
_PER_RUN: Final = ("gather", "scatter")


@dataclass(frozen=True)
class Costs:
    """Times in any one unit, bytes, and bytes per that unit of time.

    Where a scalar is given, it is for one microbatch on a whole mesh: with v stages per mesh each stage takes 1/v
    of it (of a message: all of it), and a spread stage takes it on each of its meshes. A list has the number of
    each stage itself. A slice of the sequence takes its share.

    Attributes:
        forward: time of a forward.
        input_grad: time of the gradient of a stage's inputs.
        weight_grad: time of the gradient of its weights. A full backward takes both.
        hop: latency from the end of a task on one mesh to the start of one that needs it on another.
        bandwidth: bytes per unit of time that a link, from one mesh to another, carries.
        message_bytes: what a stage sends to the next one, and gets its gradient of back.
        contention: a link carries one message at a time, and the next one waits. Messages of tasks that run beside
            their mesh may get their turn a little out of the order of time.
        activation_bytes: what a forward keeps for the backward, the input of its stage in it. A stage that recomputes
            keeps that input alone until then, which is the message of the stage before; the first stage has the batch.
        weight_grad_bytes: what is kept of it, and of the output's gradient, from the input gradient to the weight
            gradient; the same as `activation_bytes` unless given.
        copy_bandwidth: bytes per unit of time from a mesh to its host, and as many back at the same time. An offload
            moves the activations of its stage.
        kinds: time of each kind of task, the user's own and the built-in ones; a recompute otherwise takes as long as
            the forward, an "evict" or a "load" as long as a hop and the activations of its stage on their link. A
            "backward" here is the time of a full one.
        fused: time of a fused cell as a share of the sum of its tasks: below 1 where they overlap (DualPipe). A table
            has it for each pair of kinds, "forward+backward", and 1 for others; a cell of more tasks has the mean.
        slices: the share of each slice of the sequence in a microbatch's time, where they are not equal (SlimPipe,
            arXiv 2504.14519); or a list of these for each stage.
        microbatches: how large each microbatch is, where they are not equal: times and bytes are those of one of 1.
        speed: how fast each mesh is, where they are not equal: what uses its turn takes the time of a mesh of 1,
            divided by it.
        unit: of time: "s", "ms" or "us" of measured costs; "units" where only their ratios are meant.
        gather: time to gather the sharded weights of a stage (`gather_weights="chunk"`), before each run of its tasks:
            those that stand one after the other on their mesh, but for copies. It is in no task's time, and does not
            wait for what they need.
        scatter: likewise the time to reduce and scatter the gradients of a stage (`scatter_gradients="chunk"`), behind
            each run of its tasks with backwards (or weight gradients) in it, before the next task of the mesh. Behind
            the last task of a mesh it counts no more than the update of the weights, which is in no time either.

    Raises:
        ScheduleError: a time is not a positive number, or any other number is negative or NaN; lists and matrices of a
            wrong shape are found when they meet a schedule.
    """

    forward: PerStage = 1.0
    input_grad: PerStage = 1.0
    weight_grad: PerStage = 1.0
    hop: PerPair = 0.0
    bandwidth: PerPair = math.inf
    message_bytes: PerStage = 0.0
    contention: bool = False
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
        put(self, "contention", true_or_false(self.contention, "contention"))

    def in_unit(self, unit: str) -> Costs:
        """The same costs in another unit of time.

        Raises:
            ScheduleError: the unit is none.
        """
        factor = UNITS[self.unit] / UNITS[replace(self, unit=unit).unit]
        times = {name: _scaled(getattr(self, name), factor) for name in (*_KINDS, *_PER_RUN, "hop", "kinds")}
        rates = {name: _scaled(getattr(self, name), 1 / factor) for name in ("bandwidth", "copy_bandwidth")}
        return replace(self, **times, **rates, unit=unit)

    def time(self, task: Task, mesh: int, schedule: Schedule) -> float:
        """How long a task takes on a mesh, alone.

        A copy moves a whole activation, as that of a stage which does not recompute. It is 0 for what takes memory from
        a peer, unless its time is given: that depends on the two meshes, and only `simulate` knows it.

        Raises:
            ScheduleError: the schedule has no such kind, stage, microbatch, slice or mesh; the costs are for others, or
                do not say.
        """
        size = self.size(schedule) or one
        for what, counted in (("stage", "stages"), ("microbatch", "microbatches"), ("slice", "slices")):
            if getattr(task, what) >= getattr(schedule, counted):
                there = f"there are {getattr(schedule, counted)}"
                raise ScheduleError(f"{schedule.name} has no {what} {getattr(task, what)}: {there}")
        return self.on_mesh(task.kind, mesh, schedule)[task.stage] * size(task)

    def between_runs(self, schedule: Schedule) -> BetweenRuns | None:
        """The gathers and scatters of each stage; None where they take no time.

        Raises:
            ScheduleError: the costs are for other stages.
        """
        if self.gather == 0 == self.scatter:
            return None
        return BetweenRuns(*(_for_each_stage(getattr(self, each), each, schedule) for each in _PER_RUN))

    def on_mesh(self, kind: str, mesh: int, schedule: Schedule) -> list[float]:
        """Times of one kind of task on one mesh, for each stage of the schedule, for a whole microbatch of size 1.

        Raises:
            ScheduleError: the schedule has no such kind or mesh, or the costs are for other stages or meshes, or do not
                say how long such a task takes.
        """
        rule = schedule.rules.get(kind)
        if rule is None or mesh not in range(schedule.meshes):
            what = f"kind {kind!r}" if rule is None else f"mesh {mesh}: there are {schedule.meshes}"
            raise ScheduleError(f"{schedule.name} has no {what}")
        known = self._known(kind, schedule)
        if known is None:
            if isinstance(rule.time, tuple):
                raise ScheduleError(f"the costs do not say how long {kind} takes, nor {' and '.join(rule.time)}")
            if rule.moves:  # it takes its hop as well, which depends on the meshes (`simulate`)
                return [0.0] * schedule.stages
            moved = abs(rule.amount("host"))
            if not moved:
                raise ScheduleError(f"the costs do not say how long {kind} takes: give kinds={{{kind!r}: ...}}")
            bandwidth = self.per_mesh("copy_bandwidth", schedule)[mesh]
            known = [moved * size / bandwidth for size in self.bytes("activation_bytes", schedule)]
        speed = self.per_mesh("speed", schedule)[mesh] if COMPUTE in rule.uses else 1.0
        return [time / speed for time in known] if speed != 1 else known

    def at_home(self, kind: str, schedule: Schedule) -> list[float]:
        """Times of one kind of task, for each stage of the schedule on the mesh where it is at home.

        Raises:
            ScheduleError: as `on_mesh`.
        """
        return [self.on_mesh(kind, schedule.placement[stage], schedule)[stage] for stage in range(schedule.stages)]

    def _known(self, kind: str, schedule: Schedule, asked: tuple[str, ...] = ()) -> list[float] | None:
        """The times that the costs, or its rules, give a kind; None where these do not say, or only in a circle."""
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
        """Whether the costs or the rules give the time of a kind; otherwise it takes that of what it moves."""
        return self._known(kind, schedule) is not None

    def factor(self, kinds: Sequence[str]) -> float:
        """The time of a fused cell of these kinds, as a share of the sum of its tasks."""
        if not isinstance(self.fused, Mapping):
            return self.fused
        pairs = ["+".join(sorted(pair)) for pair in combinations(kinds, 2)]
        return math.fsum(self.fused.get(pair, 1.0) for pair in pairs) / len(pairs)

    def size(self, schedule: Schedule) -> Callable[[Task], float] | None:
        """A function from a task to the size of its slice and microbatch; None where all have the size 1.

        Raises:
            ScheduleError: the costs are for other numbers of slices or microbatches.
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
        """Guard of what knows whole microbatches of size 1 alone.

        Raises:
            ScheduleError: there are slices, or microbatches of another size.
        """
        for name, sizes in (("microbatches", self.microbatches), ("slices", self.slices)):
            if any(size != 1 for size in sizes):
                found = f"the costs have {name}={sizes}"
                raise ScheduleError(
                    f"{what}: all microbatches must be whole and of size 1, but {found}: leave them out"
                )

    def per_mesh(self, what: str, schedule: Schedule) -> list[float]:
        """The `speed` or `copy_bandwidth` of each mesh.

        Raises:
            ScheduleError: a list is not as long as there are meshes.
        """
        value = cast("PerMesh", getattr(self, what))
        if isinstance(value, float):
            return [value] * schedule.meshes
        numbers = list(cast("Sequence[float]", value))
        if len(numbers) != schedule.meshes:
            raise ScheduleError(f"{what}: expected a number for each of {schedule.meshes} meshes, found {len(numbers)}")
        return numbers

    def bytes(self, what: str, schedule: Schedule) -> list[float]:
        """The `activation_bytes`, `weight_grad_bytes` or `message_bytes` of each stage, for a whole microbatch.

        Raises:
            ScheduleError: a list is not as long as there are stages.
        """
        value = cast("PerStage | None", getattr(self, what))
        if value is None:
            return self.bytes("activation_bytes", schedule)
        if what == "message_bytes" and isinstance(value, float):
            return [value] * schedule.stages
        return _for_each_stage(value, what, schedule)

    @property
    def stages(self) -> int | None:
        """The number of stages that these costs are for; None where they have no list of them."""
        found = [getattr(self, each) for each in (*_KINDS, *_BYTES, *_PER_RUN)] + list(self.kinds.values())
        return next((len(each) for each in found if isinstance(each, tuple)), None)

    def merged(self, stages: int) -> Costs:
        """The costs where neighbouring stages are put together, so that there are so many; scalars stay as they are.

        Raises:
            ScheduleError: so many stages do not come out even.
        """
        if self.stages is None or self.stages == stages:
            return self
        if self.stages % whole_number(stages, "stages", least=1):
            raise ScheduleError(
                f"the costs are for {self.stages} stages, the schedule has {stages}: measure as many, or a multiple"
            )
        return self.cut([self.stages // stages] * stages)

    def cut(self, cuts: Sequence[int]) -> Costs:
        """The costs where so many neighbouring stages each are put together; scalars stay as they are.

        Args:
            cuts: their numbers, from the first stage on.

        Raises:
            ScheduleError: the numbers are not positive, or don't add up to the stages of these costs.
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
        """The costs with a list of so many stages for each scalar of which a stage has a share.

        Raises:
            ScheduleError: there are lists already, for another number of stages.
        """
        empty = Schedule("costs", Placement.of(*(stage * meshes // stages for stage in range(stages))), ((),) * meshes)

        def each(value: PerStage | None, what: str) -> PerStage | None:
            return None if value is None else tuple(_for_each_stage(value, what, empty))

        names = (*_KINDS, "activation_bytes", "weight_grad_bytes", *_PER_RUN)
        values = {what: each(getattr(self, what), what) for what in names}
        return replace(self, **values, kinds={kind: each(time, kind) for kind, time in self.kinds.items()})

    def pair(self, what: str, schedule: Schedule) -> list[list[float]]:
        """The `hop` or `bandwidth` of each pair of meshes, as [from mesh][to mesh].

        Raises:
            ScheduleError: a matrix does not have a row and a column per mesh.
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
        """Read a cost file: TOML, or JSON where the name ends in .json, with the names of the attributes.

        Raises:
            ScheduleError: the file is neither, or has a name or a number that does not belong there.
            OSError: it cannot be read.
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
        """The costs of a table, as `table` makes it. Raises ScheduleError: a number does not belong there."""
        return cls(**cast("dict[str, Any]", {name: _infinite(value) for name, value in values.items()}))

    def table(self) -> dict[str, object]:
        """The attributes as JSON has them, without those that have their default; infinity is "inf"."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _finite(value) for name, value in values.items() if value != getattr(_DEFAULT, name)}

    def save(self, path: str | Path) -> None:
        """Write what `load` reads, exactly, whole or not at all; what has its default is left out.

        Raises:
            OSError: it cannot be written.
        """
        values = self.table()
        if Path(path).suffix == ".json":
            text = json.dumps(values, indent=2)
        else:
            # A list of numbers, a name and a truth value are written alike in both formats.
            tables = {name: values.pop(name) for name in ("kinds", "fused") if isinstance(values.get(name), Mapping)}
            lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
            for name, table in cast("dict[str, dict[str, object]]", tables).items():
                lines += ["", f"[{name}]", *(f"{_key(key)} = {json.dumps(value)}" for key, value in table.items())]
            text = "\n".join(lines)
        write_file(str(path), (text + "\n").encode())


def one(task: Task) -> float:
    """The size of a task where all microbatches are equal, and none is cut."""
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
    """All numbers of a cost, times `factor`."""
    if isinstance(value, tuple):
        return tuple(_scaled(each, factor) for each in cast("tuple[object, ...]", value))
    if isinstance(value, Mapping):
        return {name: _scaled(each, factor) for name, each in cast("Mapping[str, object]", value).items()}
    return factor * cast("float", value)


def _finite(value: object) -> object:
    """Without infinity, which JSON does not have."""
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
    """The costs that a caller gives; None: all tasks of a whole mesh take 1.

    Raises:
        ScheduleError: they are something else.
    """
    found = Costs() if costs is None else costs
    instance_of(Costs, found, "costs", ", such as Costs(forward=1, hop=0.1)")
    return found
