"""The form that tasks of each kind take in a program: the one table for passes, the reader and the runtime."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.schedules.model.kinds import KIND_NAME


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the tasks of one kind, each of which becomes a call of a function.

    Attributes:
        optional: whether a schedule may have such a task for some microbatches of a stage only.
        is_copy: whether the function returns its arguments as they are, in another memory or on another mesh. The
            runtime copies them, and compiles nothing.
        back: the kind of the task that brings back the values that such a task takes away.
        sends_late: whether values from another mesh are sent to such a task when it is due, not as soon as they exist.
    """

    optional: bool = False
    is_copy: bool = False
    back: str = ""
    sends_late: bool = False


FORMS: Final[Mapping[str, Form]] = {
    "forward": Form(),
    "backward": Form(),
    "input_grad": Form(),
    "weight_grad": Form(),
    "recompute": Form(optional=True),
    "offload": Form(optional=True, is_copy=True, back="reload"),
    "reload": Form(optional=True, is_copy=True),
    "evict": Form(optional=True, is_copy=True, back="load"),
    "load": Form(optional=True, is_copy=True, sends_late=True),
}
"""The kinds that a program can have. A schedule with any other is refused, unless the kind is bound to a function."""

COSTS: Final[Mapping[str, float]] = {"forward": 1.0, "backward": 2.0, "input_grad": 1.0, "weight_grad": 1.0} | {
    kind: 0.0 for kind, form in FORMS.items() if form.is_copy
}
"""The assumed duration of a task of each kind, in forwards. Copies take no time of their mesh; other kinds take 1."""

OPERATION: Final = Form(optional=True)
"""The form of a kind that is bound to a user's function. Its function is empty, and the runtime calls the user's."""

HALVES: Final = ("input_grad", "weight_grad")
"""The kinds of the two functions that replace a backward where the backward of its stage is split."""

BACKWARDS: Final = ("backward", *HALVES)
"""The kinds of tasks that make gradients. They read the residuals of their stage."""

FRAGMENT: Final = "fragment"
"""The kind of a function that Shardy made (`import-shardy-mpmd`)."""

ARGUMENT, TASK, TRANSFER = PLACED = "argument", "task", "transfer"
"""The kinds of the notes `jaxpp.placed`, which lowering puts on the values of a step of explicit tasks."""

AROUND: Final = ("before", "after", "gather", "scatter", "reshard", FRAGMENT)
"""The kinds of functions that are no tasks."""


def form_of(kind: str) -> Form:
    """Returns the form of a kind that a program has. A kind that is not in `FORMS` is a user's operation."""
    return FORMS.get(kind, OPERATION)


def cost_of(kind: str) -> float:
    """Returns the assumed duration of a call of this kind: for `forward+backward` the sum over its tasks."""
    return sum([COSTS.get(each, 1.0) for each in kind.split("+")])


def operations_of(module: ir.Module) -> dict[str, bool]:
    """Returns the kinds of `module` that are bound to a user's function, and whether this function reads residuals."""
    operations = at.plain(module.operation.attributes.get(at.OPERATIONS)) or {}
    return {kind: reads == "residuals" for kind, reads in operations.items()}


def parse_operations(text: str) -> dict[str, bool]:
    """Parses the text form of what `operations_of` returns: `tick,log:residuals`.

    Raises:
        ValueError: a part is not the name of a kind, or asks for anything but residuals.
    """
    found: dict[str, bool] = {}
    for word in filter(None, text.split(",")):
        name, colon, reads = word.partition(":")
        if not KIND_NAME.fullmatch(name) or (colon and reads != "residuals"):
            raise ValueError(f"operations: expected KIND or KIND:residuals, found '{word}'")
        found[name] = bool(colon)
    return found


def write_operations(module: ir.Module, operations: Mapping[str, bool]) -> None:
    """Writes the attribute on `module` that `operations_of` reads; no attribute where there are no operations."""
    if operations:
        with module.context:
            entries = {name: "residuals" if reads else "" for name, reads in operations.items()}
            module.operation.attributes[at.OPERATIONS] = at.attribute_of(entries)
