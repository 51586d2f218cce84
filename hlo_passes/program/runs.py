"""Finds runs: tasks of one stage that follow one another on their mesh."""

from collections.abc import Iterable, Mapping, Sequence

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.kinds import AROUND, form_of
from jaxpp.ir.steps import Step


def tasks_of(steps: Sequence[Step], mesh: int) -> list[Step]:
    """Returns the tasks of a mesh in order, without copies of residuals, which read no weights and add to no sums."""
    calls = [step for step in steps if step.function is not None and step.meshes == (mesh,)]
    return [step for step in calls if not form_of(step.kind).is_copy and step.kind not in AROUND]


def replace_values(steps: Iterable[Step], values: Mapping[ir.Value, ir.Value]) -> None:
    """Replaces values wherever they are used, and as operands of `steps`."""
    for step in steps if values else ():
        if not values.keys().isdisjoint(step.operands):
            step.operands = [values.get(value, value) for value in step.operands]
    for old, new in values.items():
        old.replace_all_uses_with(new)


def find_runs(tasks: Sequence[Step], users: Sequence[int]) -> list[list[int]]:
    """Groups `users`, ascending indices into `tasks`, the tasks of a mesh that use some value, into runs.

    Two neighboring users are in one run if every task between them belongs to a stage that uses the value.
    """
    used_by = [_stages(tasks[user]) for user in users]
    # In a fused task only some of its stages use the value. The users of a single stage tell which stages do. If every
    # user has several stages, the stages that all users share are taken.
    stages = set[int]().union(*(each for each in used_by if len(each) == 1)) or set.intersection(*used_by)
    runs: list[list[int]] = []
    for user in users:
        last = runs[-1][-1] if runs else user
        if runs and all(_stages(task) & stages for task in tasks[last + 1 : user]):
            runs[-1].append(user)
        else:
            runs.append([user])
    return runs


def _stages(task: Step) -> set[int]:
    return {*(at.several(task.op, at.STAGE) or ())}
