"""Runs modules, and compares their results with those of the first module."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import CONDITIONALS, bytecode, nested
from jaxpp.validation.bound import MOST_TRIPS
from jaxpp.validation.compare import (
    Difference,
    Expected,
    HostArray,
    Tolerance,
    coarsest_tolerance,
    compare,
    enlarged,
    perturbed,
    perturbed_narrow,
    random_inputs,
    same_bits,
)
from jaxpp.validation.cpu import Array, Runner, partitions_of, shape_and_dtype
from jaxpp.validation.first_nan import FirstNan, first_nan
from jaxpp.validation.impure import is_impure, varying_results
from jaxpp.validation.interpreter import NamedResults
from jaxpp.validation.observe import ValueRunner
from jaxpp.validation.observed import RESULT, WrongValue, first_wrong, with_noise
from jaxpp.validation.records import Record
from jaxpp.validation.signature import Signature, SignatureError, public_main
from jaxpp.validation.steps import StepFunction, step_function
from jaxpp.validation.widen import at_float32

_BRANCHING = 4
"""How many draws of other numbers a module with conditionals gets."""


class ValidationError(PassError):
    """A module computes other results than the first one, or can't be run at all."""


@dataclass(frozen=True)
class Given:
    """Arguments of a step by number, and the results that it should have."""

    arguments: Mapping[int, HostArray]
    results: Mapping[int, HostArray]


@dataclass(frozen=True)
class _Trial:
    """One set of inputs, and the results of the first module that are to be compared.

    in_float32: whether the modules compute in float32 instead of bfloat16 and float16.
    """

    inputs: dict[int, Array]
    expected: dict[int, Expected]
    tolerance: Tolerance
    in_float32: bool = False


@dataclass(frozen=True)
class Findings:
    """The number of results that agree, their largest difference, and a line for each result that was not compared."""

    agree: int
    largest: float
    others: list[str]

    def summary(self, what: str) -> str:
        """Returns `what` with the largest difference, and a warning for each result that was not compared."""
        first = f"{what}; largest difference {self.largest:.1e} of an array's largest value"
        return "\n".join([first, *(f"warning: {other}" for other in self.others)])


class Validator:
    """Compares modules with a first one, on random inputs: normal numbers scaled by the array's size, and integers.

    XLA runs a module with a public `@main` on the CPU, on as many virtual devices as it has partitions. The reference
    interpreter runs a program module. There are three trials: two with other numbers, and one with larger ones, so that
    gradients are clipped. A module with branches has nine, as a wrong predicate is often right by chance. The
    state of an optimizer (arrays that no stage sees) is zero in the trial with larger numbers, and in one more. So the
    new state shows each gradient in full. If a result was not finite (the root of a negative second moment), another
    trial has only positive inputs.

    Results agree when their largest difference is within a tolerance of the array's largest value. The tolerance is
    1e-5 in float32, and looser for a module that computes in bfloat16 or float16. Added to it is a multiple of the
    difference that a change of the inputs in their last bit makes; for inputs in bfloat16, the difference itself.
    Integers must be equal, and NaNs at the same places. In the trials with other numbers such a module computes in
    float32, where that is possible: rounding to narrow types hides small faults.
    A result counts as not compared if rounding moves it by more than 100 times the tolerance. So does a result that is
    nowhere finite, or that differs from run to run.

    Args:
        seed: the seed of the inputs.
        most_trips: how often a loop may run.
        tolerance: the tolerance relative to an array's largest value, instead of all these rules.
    """

    def __init__(self, seed: int = 0, most_trips: int = MOST_TRIPS, tolerance: float | None = None) -> None:
        self._seed, self._most_trips, self._given = seed, most_trips, tolerance
        self._last: tuple[bytes, list[Difference]] = b"", []
        self._largest = 0.0

    def refer(self, module: ir.Module, cannot: str, given: Given | None = None) -> None:
        """Runs the first module. Raises ValidationError, which begins with `cannot`, where it can't be run.

        given: the arguments and results to compare with, instead of random arguments and the results of this module.
        """
        try:
            self._reference = Signature.of(module)
            self._make_trials(module, given)
        except PassError as error:
            raise ValidationError.because(cannot, error) from None
        self._last = (b"" if given else bytecode(module.operation)), []

    def check(self, module: ir.Module, subject: str, made: str) -> None:
        """Compares another module, as `differences`. Raises ValidationError also with a line for each difference."""
        differences = list(map(str, self.differences(module, subject, made)))
        if differences:
            raise ValidationError(
                f"{subject} changed what the module computes: {differences[0]}", hint="\n  ".join(differences[1:])
            )

    def differences(self, module: ir.Module, subject: str, made: str) -> list[Difference]:
        """Runs another module, unless it equals the last one; returns the results that differ, in their order.

        subject: the name, in messages, of the cause of the change.
        made: the name of the module itself in messages.
        Raises ValidationError where it can't be run.
        """
        now = bytecode(module.operation)
        if now != self._last[0]:
            try:
                self._reference.check(Signature.of(module), subject)
                self._last = now, self._differences(self._steps(module))
            except SignatureError as error:
                raise ValidationError(error.message) from None
            except PassError as error:
                raise ValidationError.because(f"{made} does not run", error) from None
        return self._last[1]

    def differing(self, results: Mapping[int, HostArray]) -> list[Difference]:
        """Compares results that somebody else has computed from the given arguments."""
        return self._differences({False: lambda _: {number: [("", value)] for number, value in results.items()}})

    def first_nan(self, module: ir.Module) -> FirstNan | None:
        """Returns the first NaN that another module makes; None if it makes none. Raises ValidationError.

        The state of an optimizer is zero: the root of a negative second moment is no fault of the module.
        """
        state = self._reference.state
        fresh = [each for each in self._trials if not any(np.asarray(each.inputs[number]).any() for number in state)]
        try:
            found = (first_nan(module, each.inputs, self._runner) for each in fresh if not each.in_float32)
            return next((each for each in found if each is not None), None)
        except PassError as error:
            raise ValidationError.because("the module does not run", error) from None

    def wrong_value(self, before: ir.Module, after: ir.Module) -> WrongValue | None:
        """Runs two modules whose results differ; returns the first value that differs.

        Returns None where no value of one module can be matched with the wrong values of the other. Raises
        ValidationError where one of them can't be run.
        """
        try:
            steps = self._steps(after)
            for trial in self._trials:
                if self._differences(steps, [trial]):
                    right, wrong = (
                        ValueRunner((trial.in_float32 and at_float32(each)) or each, self._runner)
                        for each in (before, after)
                    )
                    moved = perturbed({number: np.asarray(value) for number, value in trial.inputs.items()}, self._seed)
                    values, moved_values, others = (
                        each.run(inputs)[0]
                        for each, inputs in ((right, trial.inputs), (right, self._put(moved)), (wrong, trial.inputs))
                    )
                    found = first_wrong(with_noise(values, moved_values), others, trial.tolerance)
                    if found is not None:
                        return found
        except PassError as error:
            raise ValidationError.because("the module does not run", error) from None
        return None

    def record(self, module: ir.Module, arguments: Mapping[int, HostArray]) -> Record:
        """Runs a module with these arguments, and again with changed last bits. Raises ValidationError.

        A module with `@main` has the tasks that it calls; before `outline-stages` there are none.
        """
        try:
            runner = Runner(partitions_of(module), self._most_trips)
            observer = ValueRunner(module, runner)
            (values, results), (moved_values, moved) = (
                observer.run({number: runner.put(value) for number, value in each.items()})
                for each in (arguments, perturbed(arguments, self._seed))
            )
        except PassError as error:
            raise ValidationError.because("the module does not run", error) from None
        types = (str(value.type) for op in nested(module.operation) for value in op.results)
        of_tasks = [each for each in with_noise(values, moved_values) if each.place[0] == RESULT]
        return Record.of(arguments, _numbers(results), _numbers(moved), of_tasks, types)

    def findings(self) -> Findings:
        """Returns the findings of all comparisons so far."""
        others = [
            f"{self._reference.title(n)} {why}" for n in self._reference.results if (why := self._not_compared(n))
        ]
        return Findings(len(self._reference.results) - len(others), self._largest, others)

    def _not_compared(self, number: int) -> str:
        """Returns why a result was not compared; "" if it was."""
        if number in self._varying:
            return "is not deterministic: not compared"
        if any(trial.expected[number].is_compared(trial.tolerance) for trial in self._trials):
            return ""
        noise = max(trial.expected[number].noise for trial in self._trials)
        if not noise:
            return "is nowhere finite on these inputs"
        return f"moves by {noise:.1g} where the inputs change in their last bit: not compared"

    def _make_trials(self, module: ir.Module, given: Given | None) -> None:
        self._runner, self._varying = Runner(partitions_of(module), self._most_trips), set[int]()
        run = step_function(module, self._runner)
        if given:
            self._trials = [self._trial_of(given, run, self._tolerance_of(module))]
            return
        shapes, state = _shapes(self._reference.arguments), self._reference.state
        normal = random_inputs(shapes, self._seed)
        self._varying, self._trials = self._find_varying(module, run, normal), list[_Trial]()
        inputs = [normal, _at_zero(normal, state)] if state else [normal]
        for each in inputs:
            trial = self._trial(each, run, self._tolerance_of(module))
            self._trials.append(trial)
            if each is normal and not all(expected.is_finite for expected in trial.expected.values()):
                inputs.append(random_inputs(shapes, self._seed, positive=True))
        wide = at_float32(module) if self._given is None else None
        if wide is not None:
            module, shapes = wide, _shapes(Signature.of(wide).arguments)
            run = step_function(wide, self._runner)
        tolerance = self._tolerance_of(module)
        for draw in range(_BRANCHING if any(op.name in CONDITIONALS for op in nested(module.operation)) else 1):
            other = random_inputs(shapes, self._seed + 1 + draw)
            for each in (other, _at_zero(enlarged(other), state)):
                self._trials.append(self._trial(each, run, tolerance, in_float32=wide is not None))

    def _tolerance_of(self, module: ir.Module) -> Tolerance:
        if self._given is not None:
            return Tolerance(self._given, exact=True)
        return Tolerance(coarsest_tolerance(str(value.type) for op in nested(module.operation) for value in op.results))

    def _steps(self, module: ir.Module) -> dict[bool, StepFunction]:
        """Returns what runs a module as it is, and, for trials that need it, what runs it in float32."""
        steps = {False: step_function(module, self._runner)}
        if any(trial.in_float32 for trial in self._trials) and (wide := at_float32(module)) is not None:
            steps[True] = step_function(wide, self._runner)
        return steps

    def _find_varying(self, module: ir.Module, run: StepFunction, inputs: Mapping[int, HostArray]) -> set[int]:
        """Finds the results that differ from run to run: by their dependences, and by running the module again."""
        varying = varying_results(module) if public_main(module) is not None else set[int]()
        again = 3 if is_impure(module) else 1  # by chance two runs may agree
        first, *others = [_numbers(run(self._put(inputs))) for _ in range(1 + again)]
        return varying | {n for n in first if not all(same_bits(first[n], other[n]) for other in others)}

    def _put(self, inputs: Mapping[int, HostArray]) -> dict[int, Array]:
        return {number: self._runner.put(value) for number, value in inputs.items()}

    def _trial(
        self, inputs: dict[int, HostArray], run: StepFunction, tolerance: Tolerance, *, in_float32: bool = False
    ) -> _Trial:
        arrays = self._put(inputs)
        values, moved = _numbers(run(arrays)), _numbers(run(self._put(perturbed(inputs, self._seed))))
        of_narrow = perturbed_narrow(inputs, self._seed)
        narrow = _numbers(run(self._put(of_narrow))) if of_narrow else {}
        return _Trial(
            arrays,
            {
                number: Expected.of(values[number], moved[number], narrow.get(number))
                for number in sorted(values.keys() - self._varying)
            },
            tolerance,
            in_float32,
        )

    def _trial_of(self, given: Given, run: StepFunction, tolerance: Tolerance) -> _Trial:
        """Returns the trial with given arguments and results. Raises ValidationError for others than the module has."""
        shapes, results = map(_shapes, (self._reference.arguments, self._reference.results))
        for what, wanted, found in (("argument", shapes, given.arguments), ("result", results, given.results)):
            for number in sorted({*wanted, *found}):
                expected, shape = wanted.get(number, [None])[0], found[number].shape if number in found else None
                if shape != expected:
                    raise ValidationError(f"{what} {number} has the shape {shape}, expected {expected}")
        inputs = {number: given.arguments[number].astype(dtype) for number, (_, dtype) in shapes.items()}
        own = self._trial(inputs, run, tolerance)
        expected = {
            number: Expected(given.results[number].astype(dtype), own.expected[number].noise)
            for number, (_, dtype) in results.items()
        }
        return replace(own, expected=expected)

    def _differences(self, steps: Mapping[bool, StepFunction], trials: Sequence[_Trial] = ()) -> list[Difference]:
        """Returns the results that differ, each by the first of these trials, or of all, that shows it."""
        found: dict[int, Difference] = {}
        for trial in trials or self._trials:
            if trial.in_float32 not in steps:
                continue
            results = steps[trial.in_float32](trial.inputs)
            for number, expected in trial.expected.items():
                for where, value in results[number]:
                    distance, problem = compare(expected, np.asarray(value), trial.tolerance)
                    if problem:
                        title = f"{self._reference.title(number)}{where}{' in float32' if trial.in_float32 else ''}"
                        found.setdefault(number, Difference(title, problem, number, distance))
                    elif expected.is_compared(trial.tolerance):
                        self._largest = max(self._largest, distance)
        return [found[number] for number in sorted(found)]


def _numbers(results: NamedResults) -> dict[int, HostArray]:
    return {number: np.asarray(places[0][1]) for number, places in results.items()}


def _shapes(types: Mapping[int, ir.Type]) -> dict[int, tuple[tuple[int, ...], "np.dtype[Any]"]]:
    return {number: shape_and_dtype(type_) for number, type_ in types.items()}


def _at_zero(inputs: Mapping[int, HostArray], state: Collection[int]) -> dict[int, HostArray]:
    return {number: np.zeros_like(value) if number in state else value for number, value in inputs.items()}
