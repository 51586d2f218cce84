"""Finds the first pass after which a module computes other results, by a binary search over the passes."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.hlo_passes.base import Observer, Pass, VerifyOwn, run_passes
from jaxpp.ir.functions import body_of, loop_body, terminator
from jaxpp.ir.locations import source_of
from jaxpp.ir.values import defining_op
from jaxpp.validation.apart import Apart
from jaxpp.validation.compare import Difference
from jaxpp.validation.observed import WrongValue
from jaxpp.validation.signature import public_main
from jaxpp.validation.validator import Given, ValidationError

_CANNOT = "the module can't be run to compare what becomes of it"


@dataclass(frozen=True)
class WrongResult:
    """The place where results first differ, the first value that does, and the result that differs most.

    Attributes:
        cause: the pass, or the other place.
        differences: the results that differ, in their order.
        line: the user's line that makes the value, or the result if the value is unknown; or "".
        advice: a command or a place to go on with.
        value: the first value that differs, and its task; None if it is unknown.
    """

    cause: str
    differences: Sequence[Difference]
    line: str
    advice: str
    value: WrongValue | None = None

    @classmethod
    def of(
        cls,
        cause: str,
        differences: Sequence[Difference],
        advice: str,
        value: WrongValue | None,
        module: ir.Module | None = None,
    ) -> "WrongResult":
        """Describes results that differ. `module` is the one before all passes, if it is known."""
        found = cls(cause, differences, "", advice, value)
        line = value.line if value else found.worst.line
        return replace(found, line=line or (_line(module, found.worst.number) if module is not None else ""))

    @property
    def worst(self) -> Difference:
        """The result with the largest difference."""
        return max(self.differences, key=lambda each: each.size)

    def __str__(self) -> str:
        """Formats it as seven lines."""
        others = len(self.differences) - 1
        more = f", and {others} more" if others else ""
        task, value = (self.value.task, str(self.value)) if self.value else ("unknown", "unknown")
        return (
            f"first wrong: {self.cause}\ntask: {task}\nvalue: {value}\nline: {self.line or 'unknown'}\n"
            f"result: {self.worst.title}{more}\nerror: {self.worst.problem}\nnext: {self.advice}"
        )


class Bisection:
    """A search among the passes over a module.

    Args:
        module: the module before all passes; it does not change.
        steps: the passes; also an attribute.
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
        self._module, self.steps, self._refer, self._report = module, steps, refer, report
        self.validator = refer()

    def after(self, count: int) -> ir.Module:
        """Returns a copy of the module after the first passes. Raises the error of a pass that fails."""
        module = own_copy(self._module)
        run_passes(module, self.steps[:count], [VerifyOwn()])
        return module

    def differences(self, count: int) -> list[Difference]:
        """Returns the results that differ after the first passes. Raises the error of a pass that fails."""
        module, what = self.after(count), f"the module after {count} of {len(self.steps)} passes"
        try:
            found = self.validator.differences(module, what, what)
        except ValidationError as error:
            self.validator = self._refer()  # the process of the old one may have ended
            problem = error.message.removeprefix(f"{what} ")
            found = [Difference("the module", problem, line=error.source or "")]
        self._report(f"{what}: {f'wrong results: {len(found)}' if found else 'the results agree'}")
        return found

    def first(self) -> tuple[int, list[Difference]] | None:
        """Returns the smallest number of passes after which results differ, and these results; None if all agree.

        It assumes that results stay wrong. It runs the module at most log2(passes) + 1 times. A pass may fail on a
        module that an earlier pass broke. Then the search is among the earlier passes; if their results agree, the
        error of the pass is raised.
        """
        good, bad = 0, len(self.steps)
        error: Exception | None = None
        try:
            found = self.differences(bad) if bad else []
        except Exception as raised:  # a pass may also crash
            error, bad = raised, self._fails_at(bad)
            if not bad:
                raise
            self._report(f"pass '{self.steps[bad].name}' fails: the search is among the {bad} passes before it")
            found = self.differences(bad)
        if not found and error is not None:
            raise error
        if not found:
            return None
        while bad - good > 1:
            middle = (good + bad) // 2
            if differences := self.differences(middle):
                bad, found = middle, differences
            else:
                good = middle
        return bad, found

    def _fails_at(self, most: int) -> int:
        """Returns the index of the pass that fails."""
        module, seen = own_copy(self._module), _Count()
        with contextlib.suppress(Exception):
            run_passes(module, self.steps[:most], [seen])
        return seen.passes

    def wrong_pass(self, advice: Callable[[Pass], str]) -> WrongResult | None:
        """Returns the first pass after which results differ; None if they agree after all passes.

        The modules before and after this pass run once more, value by value.
        """
        found = self.first()
        if found is None:
            return None
        number, differences = found
        step = self.steps[number - 1]
        cause = f"after pass '{step.name}', {number} of {len(self.steps)}"
        value = self._wrong_value(number) if differences[0].number is not None else None
        return WrongResult.of(cause, differences, advice(step), value, self._module)

    def _wrong_value(self, count: int) -> WrongValue | None:
        self._report(f"the modules before and after pass '{self.steps[count - 1].name}', value by value")
        try:
            return self.validator.wrong_value(self.after(count - 1), self.after(count))
        except ValidationError:
            self.validator = self._refer()
            return None


class _Count(Observer):
    """An observer that counts the passes before the one that runs."""

    reads_program = False

    def __init__(self) -> None:
        self.passes = -1

    def before(self, step: Pass, module: ir.Module) -> None:
        """Counts a pass."""
        self.passes += 1


def refer(seed: int, most_trips: int, tolerance: float | None, module: ir.Module, given: Given | None = None) -> Apart:
    """Makes a validator in a child process, which runs the module for reference. Raises ValidationError."""
    validator = Apart(seed, most_trips, tolerance)
    validator.refer(module, _CANNOT, given)
    return validator


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
