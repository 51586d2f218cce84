"""Finds the first pass after which a module computes other results, by a binary search over the passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.hlo_passes.base import Pass, VerifyOwn, run_passes
from jaxpp.ir.functions import body_of, loop_body, terminator
from jaxpp.ir.locations import source_of
from jaxpp.ir.values import defining_op
from jaxpp.validation.apart import Apart
from jaxpp.validation.signature import public_main
from jaxpp.validation.validator import Difference, Given, ValidationError

_CANNOT = "the module can't be run to compare what becomes of it"


@dataclass(frozen=True)
class WrongResult:
    """The place where results first differ, and the result that differs most.

    Attributes:
        cause: the pass, or the other place.
        differences: the results that differ, in their order.
        line: the user's line that makes the result, or "".
        advice: a command or a place to go on with.
    """

    cause: str
    differences: Sequence[Difference]
    line: str
    advice: str

    @property
    def worst(self) -> Difference:
        """The result with the largest difference."""
        return max(self.differences, key=lambda each: each.size)

    def __str__(self) -> str:
        """Formats it as five lines."""
        others = len(self.differences) - 1
        more = f", and {others} more" if others else ""
        return (
            f"first wrong: {self.cause}\nresult: {self.worst.title}{more}\nerror: {self.worst.problem}\n"
            f"line: {self.line or 'unknown'}\nnext: {self.advice}"
        )


class Bisection:
    """A search among the passes over a module.

    Args:
        module: the module before all passes; it does not change.
        steps: the passes.
        refer: makes a validator in a child process, which knows the module.
        report: prints a line about each run.
    """

    def __init__(
        self,
        module: ir.Module,
        steps: Sequence[Pass],
        refer: Callable[[], Apart],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._module, self._steps, self._refer, self._report = module, steps, refer, report
        self.validator = refer()

    def after(self, count: int) -> ir.Module:
        """Returns a copy of the module after the first passes. Raises PassError if a pass refuses it."""
        module = own_copy(self._module)
        run_passes(module, self._steps[:count], [VerifyOwn()])
        return module

    def differences(self, count: int) -> list[Difference]:
        """Returns the results that differ after the first passes. Raises PassError if a pass refuses the module."""
        module, what = self.after(count), f"the module after {count} of {len(self._steps)} passes"
        try:
            found = self.validator.differences(module, what, what)
        except ValidationError as error:
            self.validator = self._refer()  # the process of the old one may have ended
            found = [Difference("the module", error.message.removeprefix(f"{what} "))]
        self._report(f"{what}: {f'wrong results: {len(found)}' if found else 'the results agree'}")
        return found

    def first(self) -> tuple[int, list[Difference]] | None:
        """Returns the smallest number of passes after which results differ, and these results; None if all agree.

        It assumes that results stay wrong. It runs the module at most log2(passes) + 1 times.
        """
        good, bad = 0, len(self._steps)
        found = self.differences(bad) if bad else []
        if not found:
            return None
        while bad - good > 1:
            middle = (good + bad) // 2
            if differences := self.differences(middle):
                bad, found = middle, differences
            else:
                good = middle
        return bad, found

    def wrong_pass(self, advice: Callable[[Pass], str]) -> WrongResult | None:
        """Returns the first pass after which results differ; None if they agree after all passes."""
        found = self.first()
        if found is None:
            return None
        number, differences = found
        step = self._steps[number - 1]
        return wrong_result(
            f"after pass '{step.name}', {number} of {len(self._steps)}", differences, self._module, advice(step)
        )


def refer(seed: int, most_trips: int, tolerance: float | None, module: ir.Module, given: Given | None = None) -> Apart:
    """Makes a validator in a child process, which runs the module for reference. Raises ValidationError."""
    validator = Apart(seed, most_trips, tolerance)
    validator.refer(module, _CANNOT, given)
    return validator


def wrong_result(cause: str, differences: Sequence[Difference], module: ir.Module, advice: str) -> WrongResult:
    """Describes results that differ; `module` is the one before all passes."""
    found = WrongResult(cause, differences, "", advice)
    return WrongResult(cause, differences, _line(module, found.worst.number), advice)


def _line(module: ir.Module, number: int | None) -> str:
    """Returns the user's line of the operation that makes a result: inside a loop, if the loop returns it."""
    main = public_main(module)
    if main is None or number is None:
        return ""
    op, value = None, terminator(body_of(main)).operands[number]
    while (maker := defining_op(value)) is not None:
        op = maker
        if op.name != "stablehlo.while":
            break
        value = terminator(loop_body(op)).operands[ir.OpResult(value).result_number]
    return "" if op is None else source_of(op.location) or ""
