"""The microbatch loop in its canonical form (docs/ir.md, section 2)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import body_of, main_of
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.ir.values import defining_op, is_integer_scalar
from jaxpp.schedules.given import as_text, of_text

_MOST = 1 << 20
"""The most microbatches or stages that a loop may have. A larger number is a mistake, and would take hours."""


def entries(loop: ir.Operation) -> dict[str, Any]:
    """Returns the entries of `jaxpp.microbatch_loop` as Python data. Raises PassError where they have another form.

    A loop without the attribute has none.
    """
    attribute = loop.attributes.get(at.LOOP)
    if attribute is None:
        return {}
    fields = at.plain(attribute)
    kinds = {"length": int, "schedule": str}
    if not isinstance(fields, dict) or any(not isinstance(fields.get(name, of()), of) for name, of in kinds.items()):
        raise PassError(
            f"unknown form of {at.LOOP}: {attribute}",
            location=loop.location,
            hint='it is a dictionary: {length = 8 : i64, schedule = "..."}',
        )
    return fields


@dataclass(frozen=True)
class MicrobatchLoop:
    """A `stablehlo.while` that `find-microbatch-loop` canonicalized.

    Attributes:
        stages: the number of stages of all slices together. Stage s of slice j has the number j * n + s, where n is
            the number of stages per slice.
        slices: the number of slices into which the sequence of a microbatch is cut.
        is_inferred: whether the loop was found by its stage marks: it is the user's own loop, and no `treduce`.
    """

    op: ir.Operation
    length: int
    stages: int
    schedule: str
    indices: list[int]
    starts: list[int]
    steps: list[int]
    slices: int = 1
    is_inferred: bool = False

    @property
    def body(self) -> ir.Block:
        """The block that runs once per microbatch."""
        return self.op.regions[1].blocks[0]

    @property
    def plan(self) -> schedules.Schedule:
        """The schedule itself. Raises PassError when its text is no schedule."""
        try:
            return of_text(self.schedule)
        except schedules.ScheduleError as error:
            raise PassError(str(error), location=self.op.location) from error

    def stages_with(self, *kinds: str) -> set[int]:
        """Returns the stages for which the schedule has tasks of these kinds; none where the loop has no schedule."""
        tasks = self.plan if self.schedule else ()
        return {task.slice * self.stages_per_slice + task.stage for task in tasks if task.kind in kinds}

    @property
    def stages_per_slice(self) -> int:
        """The number of stages of the schedule."""
        return self.stages // self.slices

    @property
    def homes(self) -> tuple[tuple[int, ...], ...]:
        """The meshes that hold each stage, by the placement.

        With slices, there is an entry for each stage of each slice, and a last one for the task after all slices.
        """
        homes = self.plan.placement.homes
        return homes if self.slices == 1 else homes * self.slices + homes[-1:]

    @cached_property
    def counts(self) -> dict[ir.Value, tuple[int, int]]:
        """(start, step) of each argument of the body that counts microbatches."""
        lines = zip(self.indices, self.starts, self.steps, strict=True)
        return {self.body.arguments[index]: (start, step) for index, start, step in lines}

    @cached_property
    def carried(self) -> set[ir.Value]:
        """The arguments of the body that count no microbatches: values that the last microbatch handed on."""
        return set[ir.Value](self.body.arguments).difference(self.counts)

    def is_of_a_task(self, value: ir.Value) -> bool:
        """Whether the call of a task in the body makes `value`."""
        op = defining_op(value)
        return op is not None and op.name == "func.call" and op.block == self.body

    @staticmethod
    def of(module: ir.Module) -> "MicrobatchLoop":
        """Returns the loop of `module`. Raises PassError when `find-microbatch-loop` has not run."""
        main = main_of(module)
        for op in body_of(main).operations:  # not `operations`, which would also read all that follows the loop
            if at.LOOP in op.attributes:
                fields = entries(op.operation)
                if {"length", "stages", "schedule", "indices", "starts", "steps"} <= set(fields):
                    return _read(op.operation, fields)
        raise PassError(
            "no microbatch loop in its canonical form", location=main.location, hint="run find-microbatch-loop first"
        )

    def rescheduled(self, change: Callable[[schedules.Schedule], schedules.Schedule]) -> "MicrobatchLoop":
        """Changes the schedule, in the module too; returns the new loop. Raises PassError if `change` refuses it."""
        try:
            made = replace(self, schedule=as_text(change(self.plan), microbatches=self.length))
        except schedules.ScheduleError as error:
            raise PassError(str(error), location=self.op.location) from error
        made.write()
        return made

    def write(self) -> None:
        """Writes these fields on the loop, as `jaxpp.microbatch_loop`."""
        names = ("length", "schedule", "stages", "indices", "starts", "steps")
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.slices > 1:
            fields["slices"] = self.slices
        if self.is_inferred:
            fields["inferred"] = ir.UnitAttr.get()
        self.op.attributes[at.LOOP] = at.attribute_of(fields)


def schedule_text(module: ir.Module) -> str:
    """Returns the text of the schedule of `module`: of all steps of a train loop, or of the microbatch loop."""
    steps = TrainLoopAttr.of(module)
    return (steps and steps.schedule) or MicrobatchLoop.of(module).schedule


def _read(loop: ir.Operation, fields: Mapping[str, Any]) -> MicrobatchLoop:
    """Returns the loop that carries these fields. Raises PassError unless they have the form of docs/ir.md."""
    match fields:
        case {
            "length": int(length),
            "stages": int(stages),
            "schedule": str(schedule),
            "indices": list(indices),
            "starts": list(starts),
            "steps": list(steps),
        } if (
            loop.name == "stablehlo.while"
            and 0 <= length <= _MOST
            and 1 <= stages <= _MOST
            and isinstance(slices := fields.get("slices", 1), int)
            and slices >= 1
            and stages % slices == 0
            and len(set(indices)) == len(indices) == len(starts) == len(steps)
            and all(0 <= index < len(loop.operands) and is_integer_scalar(loop.operands[index]) for index in indices)
        ):
            is_inferred = "inferred" in fields
            return MicrobatchLoop(loop, length, stages, schedule, indices, starts, steps, slices, is_inferred)
        case _:
            found = ", ".join(f"{name} = {entry}" for name, entry in fields.items() if name != "schedule")
            hint = "run find-microbatch-loop, which writes it"
            raise PassError(f"{at.LOOP} does not fit its loop: {found}", location=loop.location, hint=hint)
