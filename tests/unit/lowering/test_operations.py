"""What may be bound to a kind of task."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import pytest

from jaxpp.lowering.operations import read_operations
from jaxpp.schedules import Task


def asked(task: Task, residuals: list[Any]) -> tuple[Task, list[Any]]:
    return task, residuals


@pytest.mark.parametrize(
    ("function", "asks"),
    [
        (lambda: None, ()),
        (asked, ("task", "residuals")),
        (partial(asked, residuals=[]), ("task", "residuals")),
        (lambda path="x", *rest, **more: None, ()),
        (jax.jit(lambda residuals: residuals), ("residuals",)),
        (dict, ()),
    ],
)
def test_a_function_gets_what_its_parameters_name(function: Callable[..., Any], asks: tuple[str, ...]) -> None:
    (operation,) = read_operations({"log": function}).values()
    assert operation.asks == asks
    assert operation.reads_residuals == ("residuals" in asks)


def test_it_is_called_with_them() -> None:
    operation = read_operations({"log": asked})["log"]
    assert operation(Task("log", 1, 2), (3, 4)) == (Task("log", 1, 2), [3, 4])
    assert read_operations({"log": lambda: 5})["log"](Task("log", 1, 2), ()) == 5
    assert read_operations(None) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([print], "operations: expected a table from kinds of tasks to functions, found [<built-in function print>]"),
        ({"log": 3}, "operations['log']: expected a function, found 3"),
        (
            {"log": lambda path: None},
            "operations['log']: nothing is given for its parameter 'path': a function may ask for `task` and "
            "`residuals`, by these names",
        ),
        (
            {"log": jax.jit(lambda task: None)},
            "operations['log']: a function under jax.jit gets arrays: it may ask for `residuals`, not for `task`",
        ),
    ],
)
def test_what_is_no_function(given: Any, message: str) -> None:
    with pytest.raises(TypeError) as error:
        read_operations(given)
    assert str(error.value) == message


@pytest.mark.parametrize("name", ["Log", "log3", 3])
def test_what_is_no_name_of_a_kind(name: Any) -> None:
    with pytest.raises(ValueError, match="must be a name in lower case, such as 'checkpoint'"):
        read_operations({name: print})


@pytest.mark.parametrize("name", ["forward", "reload", "after", "send"])
def test_a_name_that_is_taken(name: str) -> None:
    with pytest.raises(ValueError, match=f"jaxpp runs '{name}' itself; give a kind of your own another name"):
        read_operations({name: print})
