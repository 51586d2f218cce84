"""Building blocks: the tasks of one microbatch on every mesh, laid out in time slots and repeated.

    p = 4
    slots = {F(i): i for i in range(p)} | {B(i): 2 * p - 1 - i for i in range(p)}
    block("1f1b", Placement.linear(p), 8, slots)

This is the method of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362), on any placement.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxpp.schedules.builders.language import Pattern, PlanStep
from jaxpp.schedules.builders.tighten import PERIOD, Slots, tightened
from jaxpp.schedules.errors import ScheduleError, check_size, whole_number
from jaxpp.schedules.model.check import check
from jaxpp.schedules.model.kinds import Kind
from jaxpp.schedules.model.schedule import Schedule
from jaxpp.schedules.model.task import Placement, Task


def block(
    name: str,
    placement: Placement,
    microbatches: int,
    slots: Mapping[Pattern, int],
    period: int | None = None,
    tighten: bool = False,
) -> Schedule:
    """Repeats a building block for every microbatch.

    The tasks of microbatch k are `period * k` slots later than the tasks of the first. Each task is taken to fill one
    slot, and the slots serve only to order the tasks. A weight gradient without a slot takes the next free slot of its
    mesh after its input gradient.

    Args:
        name: the name of the schedule.
        placement: which mesh holds which stage, each on one mesh.
        microbatches: their number, at least 1.
        slots: for each single step, such as `F(0)`, its slot for the first microbatch, at least 0.
        period: the slots per microbatch; by default the number of tasks of the mesh with most tasks.
        tighten: whether to move the tasks around the steady state to earlier slots, as far as its memory allows. The
            paper does so for V-shaped placements with one forward and one input gradient per stage, and a period of 6.

    Raises:
        ScheduleError: when a slot is taken twice, a step is not single or its stage does not exist, or the order is not
            a valid schedule. Also when the block is not one that `tighten` supports.
    """
    microbatches = whole_number(microbatches, "microbatches", least=1)
    check_size(name, stages=placement.stages, microbatches=microbatches)
    steps = {_single(pattern): whole_number(slot, f"the slot of {pattern}", least=0) for pattern, slot in slots.items()}
    for step in steps:
        if step.stages[0] >= placement.stages:
            raise ScheduleError(f"{name}: {step} is of no stage: there are {placement.stages}")
    rows = [
        {step: slot for step, slot in steps.items() if placement[step.stages[0]] == mesh}
        for mesh in range(placement.meshes)
    ]
    needed = max(len(row) + len(_owing(row)) for row in rows)
    period = needed if period is None else whole_number(period, "period", least=needed)
    if tighten:
        orders = tightened(_v_shaped(name, placement, steps, period), microbatches)
    else:
        orders = [_order(name, mesh, row, period, microbatches) for mesh, row in enumerate(rows)]
    kinds: dict[str, Kind] = {step.name: step.kind for step in steps if step.kind}
    schedule = Schedule.of(name, placement, orders, kinds.values())
    check(schedule)
    return schedule


def _single(pattern: Pattern) -> PlanStep:
    if len(pattern.cells) != 1 or len(pattern.cells[0]) != 1 or len(pattern.cells[0][0].stages) != 1:
        raise ScheduleError(f"a building block has single steps of one stage, such as F(0), found {pattern}")
    return pattern.cells[0][0]


def _owing(row: Mapping[PlanStep, int]) -> list[PlanStep]:
    """Returns the input gradients whose weight gradients have no slot."""
    placed = {step.stages for step in row if step.name == "weight_grad"}
    return [step for step in row if step.name == "input_grad" and step.stages not in placed]


def _order(name: str, mesh: int, row: Mapping[PlanStep, int], period: int, microbatches: int) -> list[Task]:
    taken: dict[int, PlanStep] = {}
    for step, slot in row.items():
        if slot % period in taken:
            other = taken[slot % period]
            reason = f"{other} and {step} meet in slot {slot % period} of {period}"
            raise ScheduleError(f"{name}: mesh {mesh}: {reason}, once the block is repeated")
        taken[slot % period] = step
    tasks = {
        slot + period * mb: Task(step.name, step.stages[0], mb)
        for step, slot in row.items()
        for mb in range(microbatches)
    }
    owing = {step.stages[0] for step in _owing(row)}
    order: list[Task] = []
    owed: list[Task] = []
    free = 0
    for slot in sorted(tasks):
        task = tasks[slot]
        gaps = min(slot - free, len(owed))
        order += [*owed[:gaps], task]
        del owed[:gaps]
        if task.kind == "input_grad" and task.stage in owing:
            owed.append(Task("weight_grad", task.stage, task.microbatch))
        free = slot + 1
    return order + owed


def _v_shaped(name: str, placement: Placement, steps: Mapping[PlanStep, int], period: int) -> list[Slots]:
    slots = {(step.name, step.stages[0]): slot for step, slot in steps.items()}
    wanted = {(kind, stage) for kind in ("forward", "input_grad") for stage in range(placement.stages)}
    if placement != Placement.waves(placement.meshes, 2) or slots.keys() != wanted or period != PERIOD:
        raise ScheduleError(
            f"{name}: only a block of one F and one I per stage on a V-shaped placement can be tightened, in 6 slots"
        )
    pairs = [(mesh, placement.stages - 1 - mesh) for mesh in range(placement.meshes)]
    return [
        (slots["forward", down], slots["forward", up], slots["input_grad", up], slots["input_grad", down])
        for down, up in pairs
    ]
