"""Runs: tasks of one stage that stand one after the other on their mesh."""

from collections.abc import Sequence

from jaxlib.mlir import ir

from jaxpp.ir.functions import kind_and_stage
from jaxpp.ir.kinds import AROUND, form_of
from jaxpp.ir.mesh_functions import tasks_of_call
from jaxpp.ir.steps import Step


def tasks_of(steps: Sequence[Step[ir.Value]], mesh: int) -> list[Step[ir.Value]]:
    """The tasks of a mesh in their order, without copies of residuals: these read no weights and add to no sums."""
    calls = [step for step in steps if step.function is not None and step.meshes == (mesh,)]
    return [step for step in calls if not form_of(kind := kind_of(step)).is_copy and kind not in AROUND]


def kind_of(task: Step[ir.Value]) -> str:
    """The kind of the function that a call calls."""
    assert task.function is not None
    return kind_and_stage(task.function)[0]


def find_runs(tasks: Sequence[Step[ir.Value]], users: Sequence[int]) -> list[list[int]]:
    """The users of something among the tasks of a mesh, by number, in runs.

    Between two users of a run are tasks of their stages only.
    """
    used_by = [_stages(tasks[user]) for user in users]
    # Of a task that is several, only some stages are users: those that tasks of one stage show, or, where there are
    # none, those that all users have in common.
    stages = set[int]().union(*(each for each in used_by if len(each) == 1)) or set.intersection(*used_by)
    runs: list[list[int]] = []
    for user in users:
        last = runs[-1][-1] if runs else user
        if runs and all(_stages(task) & stages for task in tasks[last + 1 : user]):
            runs[-1].append(user)
        else:
            runs.append([user])
    return runs


def _stages(task: Step[ir.Value]) -> set[int]:
    return {each.stage for each in tasks_of_call(task.op)}
