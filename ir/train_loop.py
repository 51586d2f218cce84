"""The loop over optimizer steps, in a module that has one step (`jaxpp.train_loop`, docs/ir.md, section 1)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import functions
from jaxpp.ir.rows import stack_type
from jaxpp.schedules.given import of_text

_Each = TypeVar("_Each")
_MOST_STEPS = 1 << 16


@dataclass(frozen=True)
class TrainLoopAttr:
    """The fields of a module's `jaxpp.train_loop`.

    Attributes:
        steps: how often `@main` runs.
        state: the number of results of `@main`, the first ones, that are its first arguments in the next step. All
            other arguments and results have one entry per step in the loop, along an additional first dimension.
        delay: how many updates are missing in the weights with which gradients are computed.
        schedule: the text of a schedule of all steps; empty where each step runs all its tasks before the next one.
    """

    steps: int
    state: int
    delay: int = 0
    schedule: str = ""

    @staticmethod
    def of(module: ir.Module) -> "TrainLoopAttr | None":
        """Reads the attribute; returns None for a module without one. Raises PassError if it does not fit `@main`."""
        attribute = module.operation.attributes.get(at.TRAIN_LOOP)
        if attribute is None:
            return None
        match at.plain(attribute):
            case {"steps": int(steps), "state": int(state), "delay": int(delay), "schedule": str(schedule)} if (
                steps > 0 and min(state, delay) >= 0
            ):
                found = TrainLoopAttr(steps, state, delay, schedule)
            case _:
                raise PassError(
                    f"unknown form of {at.TRAIN_LOOP}: {attribute}",
                    hint='it is a dictionary: {steps = 2 : i64, state = 4 : i64, delay = 0 : i64, schedule = ""}',
                )
        if found.steps > _MOST_STEPS:
            raise PassError(f"{at.TRAIN_LOOP} has {found.steps} steps, at most {_MOST_STEPS} are unrolled")
        main = functions(module).get("main")
        if main is not None:
            _check_state(main, found.state)
        return found

    @property
    def plan(self) -> schedules.Schedule | None:
        """The schedule of all steps; None without one. Raises PassError when its text is no schedule."""
        try:
            return of_text(self.schedule) if self.schedule else None
        except schedules.ScheduleError as error:
            raise PassError(f"{at.TRAIN_LOOP}: {error}") from error

    def of_all(self, number: int, type_: ir.Type) -> ir.Type:
        """Returns the type in the loop of an argument or result of one step: all are stacked except for the state."""
        return type_ if number < self.state else stack_type(type_, self.steps)

    def write(self, module: ir.Module) -> None:
        """Writes the attribute on `module`."""
        module.operation.attributes[at.TRAIN_LOOP] = at.attribute_of(asdict(self))


def _check_state(main: ir.Operation, state: int) -> None:
    """Raises PassError unless the first `state` results of `@main` have the types of its first arguments."""
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    ends = [[str(each) for each in types[:state]] for types in (type_.inputs, type_.results)]
    if any(len(end) < state for end in ends) or ends[0] != ends[1]:
        raise PassError(
            f"{at.TRAIN_LOOP} says that the first {state} results of @main are its first arguments, which differ",
            location=main.location,
        )


def stored(module: ir.Module, each: Sequence[_Each]) -> Sequence[_Each]:
    """Returns the arguments or results of `@main` that are stored as they are: in a loop over steps only the state.

    The others are entries of arrays that hold the values of all steps.
    """
    loop = TrainLoopAttr.of(module)
    return each if loop is None else each[: loop.state]
