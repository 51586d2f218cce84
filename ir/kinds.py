"""What the tasks of each kind become in a program: the one list that passes, the reader and the runtime ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.schedules.kinds import KIND_NAME


@dataclass(frozen=True, slots=True)
class Form:
    """What a task of a kind becomes: a call of a function.

    Attributes:
        optional: a schedule may have such a task for some microbatches of a stage, and none for the others.
        is_copy: the function returns its arguments as they are, in another memory or on another mesh: the runtime
            copies, and compiles nothing.
        back: the kind of the task that brings back what such a task takes away.
        sends_late: what such a task takes from another mesh is sent when its turn comes, not as soon as it is made.
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
"""How long a task of each kind is taken to run, in forward tasks; copies take no time of their mesh, others take 1."""

OPERATION: Final = Form(optional=True)
"""The form of a kind that the user binds to a function of his own: its function is empty, and the runtime calls his."""

HALVES: Final = ("input_grad", "weight_grad")
"""The kinds of the two functions that a backward becomes where the backward of its stage is split."""

AROUND: Final = ("before", "after", "gather", "scatter", "reshard")
"""Kinds of functions that are no tasks."""


def form_of(kind: str) -> Form:
    """The form of a kind that a program has; every kind without an entry is an operation of the user's."""
    return FORMS.get(kind, OPERATION)


def cost_of(kind: str, costs: Mapping[str, float] = COSTS) -> float:
    """How long a call of this kind is taken to run: one of several tasks (`forward+backward`) the sum of theirs."""
    return sum([costs.get(each, 1.0) for each in kind.split("+")])


def operations_of(module: ir.Module) -> dict[str, bool]:
    """The kinds of `module` that are bound to functions of the user's, and whether each of these reads residuals."""
    said = module.operation.attributes.get(at.OPERATIONS)
    if not isinstance(said, ir.DictAttr):
        return {}
    return {named.name: named.attr == ir.StringAttr.get("residuals", said.context) for named in said}


def parse_operations(text: str) -> dict[str, bool]:
    """What `operations_of` returns, from text: `tick,log:residuals`.

    Raises:
        ValueError: a part is no name of a kind, or asks for something else than residuals.
    """
    found: dict[str, bool] = {}
    for word in filter(None, text.split(",")):
        name, colon, reads = word.partition(":")
        if not KIND_NAME.fullmatch(name) or (colon and reads != "residuals"):
            raise ValueError(f"operations: expected KIND or KIND:residuals, found '{word}'")
        found[name] = bool(colon)
    return found


def write_operations(module: ir.Module, operations: Mapping[str, bool]) -> None:
    """Write on `module` what `operations_of` reads; nothing where there are none."""
    if operations:
        with module.context:
            entries: dict[str, ir.Attribute] = {
                name: ir.StringAttr.get("residuals" if reads else "") for name, reads in operations.items()
            }
            module.operation.attributes[at.OPERATIONS] = ir.DictAttr.get(entries)
