"""The user's own functions, bound to kinds of tasks: `mpmd_jit_with_loop(..., operations={"checkpoint": function})`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax

from jaxpp.ir.kinds import AROUND, FORMS
from jaxpp.schedules.kinds import KIND_NAME
from jaxpp.schedules.task import Task

_GIVEN = ("task", "residuals")
_TAKEN = (*FORMS, *AROUND, "main", "mesh", "receive", "send")


@dataclass(frozen=True)
class BoundFunction:
    """A function of the user's that is called as a task of the schedule.

    Attributes:
        function: his.
        asks: the names of its parameters that it is given: "task", "residuals", both or none.
    """

    function: Callable[..., Any]
    asks: tuple[str, ...]

    @property
    def reads_residuals(self) -> bool:
        """Whether it gets what its stage keeps from the forward until the backward."""
        return "residuals" in self.asks

    def __call__(self, task: Task, residuals: Sequence[Any]) -> Any:
        """Call it with what it asks for."""
        given = {"task": task, "residuals": list(residuals)}
        return self.function(**{name: given[name] for name in self.asks})


def read_operations(given: Mapping[str, Callable[..., Any]] | None) -> dict[str, BoundFunction]:
    """The functions of the user's, by the kind of the tasks as which they are called.

    Raises:
        TypeError: it is no table of functions, or one has a parameter that nothing is given for.
        ValueError: a name is none that a schedule can have, or that of a kind which jaxpp runs itself.
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
    except ValueError:  # some that are written in C do not say
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
