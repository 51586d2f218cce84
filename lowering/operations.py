"""The user's functions, bound to kinds of tasks: `jaxpp.StepOptions(operations={"checkpoint": function})`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax

from jaxpp.ir.kinds import AROUND, FORMS
from jaxpp.schedules.model.kinds import KIND_NAME
from jaxpp.schedules.model.task import Task

_GIVEN = ("task", "residuals")
_TAKEN = (*FORMS, *AROUND, "main", "mesh", "receive", "send")


@dataclass(frozen=True)
class BoundFunction:
    """A user's function that is called as a task of the schedule.

    Attributes:
        function: the user's function.
        asks: the names of its parameters that the runtime fills: "task", "residuals", both or none.
    """

    function: Callable[..., Any]
    asks: tuple[str, ...]

    @property
    def reads_residuals(self) -> bool:
        """Whether it gets the residuals of its stage."""
        return "residuals" in self.asks

    def __call__(self, task: Task, residuals: Sequence[Any]) -> Any:
        """Calls the function with the arguments that it asks for."""
        given = {"task": task, "residuals": list(residuals)}
        return self.function(**{name: given[name] for name in self.asks})


def read_operations(given: Mapping[str, Callable[..., Any]] | None) -> dict[str, BoundFunction]:
    """Returns the user's functions by the kind of the tasks that call them.

    Raises:
        TypeError: `given` is no table of functions, or a function has a parameter that nothing fills.
        ValueError: a name is no kind that a schedule can have, or a kind that jaxpp runs itself.
    """
    if given is None:
        return {}
    if not isinstance(cast("object", given), Mapping):
        raise TypeError(f"operations: expected a table from kinds of tasks to functions, found {given!r}")
    return {name: _read(name, function) for name, function in given.items()}


def _read(name: object, function: object) -> BoundFunction:
    what = f"operations[{name!r}]"
    if not isinstance(name, str) or not KIND_NAME.fullmatch(name):
        raise ValueError(f"{what}: the kind of a task must be a name in lower case, such as 'checkpoint'")
    if name in _TAKEN:
        raise ValueError(f"{what}: jaxpp runs {name!r} itself; give a kind of your own another name")
    if not callable(function):
        raise TypeError(f"{what}: expected a function, found {function!r}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some functions written in C have no signature
        return BoundFunction(function, ())
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    for each in named:
        if (each.name not in _GIVEN and each.default is each.empty) or each.kind is each.POSITIONAL_ONLY:
            raise TypeError(
                f"{what}: nothing is given for its parameter {each.name!r}: "
                "a function may ask for `task` and `residuals`, by these names"
            )
    asks = tuple(each.name for each in named if each.name in _GIVEN)
    if "task" in asks and isinstance(function, jax.stages.Wrapped):
        raise TypeError(f"{what}: a function under jax.jit gets arrays: it may ask for `residuals`, not for `task`")
    return BoundFunction(function, asks)
