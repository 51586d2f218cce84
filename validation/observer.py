"""Numeric validation: the module after each pass computes what the module before it did."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import functions, nested
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.validation.bound import MOST_TRIPS
from jaxpp.validation.compare import (
    HostArray,
    coarsest_tolerance,
    compare,
    enlarged,
    noise_of,
    perturbed,
    random_inputs,
    somewhere_finite,
)
from jaxpp.validation.cpu import Array, RunError, Runner, partitions_of, shape_and_dtype
from jaxpp.validation.interpreter import Interpreter
from jaxpp.validation.reach import seen_by_stages
from jaxpp.validation.steps import NamedResults, StepFunction, of_all, run_all


class ValidationError(PassError):
    """A module computes other results than before a pass, or can't be run at all."""


@dataclass(frozen=True)
class _Trial:
    """Holds one set of inputs, the results of the first module, and how far rounding may move these."""

    inputs: dict[int, Array]
    expected: dict[int, HostArray]
    noise: dict[int, float]


@dataclass(frozen=True)
class _Signature:
    """Holds the types of a step's arguments and results by number, the results' names, and the optimizer's state."""

    arguments: dict[int, ir.Type]
    results: dict[int, ir.Type]
    names: dict[int, str]
    state: set[int]

    def title(self, result: int) -> str:
        return f"result {result} ({self.names[result]})" if self.names.get(result) else f"result {result}"


class Validate:
    """An observer that runs the module after each pass and compares all results with those before the first.

    A module with a public `@main` is run by XLA on the CPU, on as many virtual devices as it has partitions; a program
    module by the reference interpreter. Inputs are random: normal numbers scaled by the size of the array, integers
    from 0 to 7. Other trials set the state of an optimizer (arrays that no stage sees) to zero, so that the new state
    shows each gradient in full; once with the other inputs as they were, once with enlarged ones, so that gradients are
    clipped. If a result was not finite (the root of a negative second moment), all inputs are positive.

    Results agree when the largest difference is within a tolerance of the array's largest value (1e-5 in float32;
    looser for a module that computes in bfloat16 or float16), plus the difference that a change of the inputs in their
    last bit makes (for a gradient that is zero but for rounding). Integers agree exactly, and NaNs are at the same
    places.

    Raises:
        ValidationError: the module can't be run (from `before` and `after`), or its results differ (from `after`).
    """

    def __init__(self, seed: int = 0, most_trips: int = MOST_TRIPS) -> None:
        self._seed = seed
        self._most_trips = most_trips
        self._reference: _Signature | None = None
        self._trials: list[_Trial] = []
        self._last = b""
        self._relative = 0.0
        self._runner: Runner | None = None
        self._passes = 0
        self._largest = 0.0

    def before(self, step: Pass, module: ir.Module) -> None:
        """Run the module for reference, before the first pass."""
        if self._reference is not None:
            return
        try:
            self._reference = _signature(module)
            self._make_trials(self._reference, module)
        except (RunError, PassError) as error:
            raise _cannot_run("the module can't be run to validate what becomes of it", error) from None
        self._last = _fingerprint(module)

    def after(self, step: Pass, module: ir.Module) -> None:
        """Run the module again, if `step` changed it, and compare."""
        self._passes += 1
        now = _fingerprint(module)
        if now == self._last or self._reference is None or self._runner is None:
            return
        self._last = now
        try:
            _check_signature(step, self._reference, _signature(module))
            run = _compile(module, self._runner)
            for trial in self._trials:
                self._compare(step, self._reference, trial, run(trial.inputs))
        except ValidationError:
            raise
        except (RunError, PassError) as error:
            raise _cannot_run(f"what pass '{step.name}' made does not run", error) from None

    def summary(self) -> str:
        """Say what was compared and how well it agrees, with a line for each result that could not be compared."""
        if self._reference is None:
            return "validated: no pass ran"
        results = self._reference.results
        blind = [n for n in results if not any(somewhere_finite(trial.expected[n]) for trial in self._trials)]
        compared = f"{len(results) - len(blind)} results agree after each of {self._passes} passes"
        lines = [f"validated: {compared}; largest difference {self._largest:.1e} of an array's largest value"]
        lines += [f"warning: {self._reference.title(n)} is nowhere finite on these inputs" for n in blind]
        return "\n".join(lines)

    def _make_trials(self, signature: _Signature, module: ir.Module) -> None:
        self._relative = coarsest_tolerance(str(value.type) for op in nested(module.operation) for value in op.results)
        self._runner = runner = Runner(partitions_of(module), self._most_trips)
        run = _compile(module, runner)
        shapes = {number: shape_and_dtype(type_) for number, type_ in signature.arguments.items()}
        normal = random_inputs(shapes, self._seed)
        trials = [normal]
        if signature.state:
            fresh = {n: np.zeros_like(value) if n in signature.state else value for n, value in normal.items()}
            trials += [fresh, enlarged(fresh)]
        for inputs in trials:
            trial = self._trial(inputs, runner, run)
            self._trials.append(trial)
            if inputs is normal and not all(somewhere_finite(v, everywhere=True) for v in trial.expected.values()):
                trials.append(random_inputs(shapes, self._seed, positive=True))

    def _trial(self, inputs: dict[int, HostArray], runner: Runner, run: StepFunction) -> _Trial:
        arrays = {number: runner.put(value) for number, value in inputs.items()}
        nudged = {number: runner.put(value) for number, value in perturbed(inputs, self._seed).items()}
        expected, moved = _numbers(run(arrays)), _numbers(run(nudged))
        return _Trial(arrays, expected, {number: noise_of(expected[number], moved[number]) for number in expected})

    def _compare(self, step: Pass, reference: _Signature, trial: _Trial, results: NamedResults) -> None:
        for number, expected in trial.expected.items():
            for where, value in results[number]:
                distance, problem = compare(expected, np.asarray(value), self._relative, trial.noise[number])
                if problem:
                    what = f"{reference.title(number)}{where} {problem}"
                    raise ValidationError(f"pass '{step.name}' changed what the module computes: {what}")
                self._largest = max(self._largest, distance)


def _cannot_run(what: str, error: RunError | PassError) -> ValidationError:
    if isinstance(error, RunError):
        return ValidationError(f"{what}: {error}")
    raised = ValidationError(f"{what}: {error.message}", hint=error.hint)
    raised.source = error.source
    return raised


def _fingerprint(module: ir.Module) -> bytes:
    buffer = BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _numbers(results: NamedResults) -> dict[int, HostArray]:
    return {number: np.asarray(places[0][1]) for number, places in results.items()}


def _main(module: ir.Module) -> ir.Operation | None:
    main = functions(module).get("main")
    private = main is not None and str(main.attributes.get("sym_visibility")) == '"private"'
    return None if private else main


def _signature(module: ir.Module) -> _Signature:
    """Return the signature of `@main`, or else of the mesh functions together. Raises PassError if there are none."""
    main = _main(module)
    if main is not None:
        type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        infos = [entry.get("jax.result_info") for entry in at.result_attributes(main)]
        names = {n: info.value for n, info in enumerate(infos) if isinstance(info, ir.StringAttr)}
        state = _state(dict(enumerate(type_.inputs)), seen_by_stages(module, main))
        loop = TrainLoopAttr.of(module)
        arguments, results = (of_all(loop, types) for types in (type_.inputs, type_.results))
        return _Signature(arguments, results, names, state)
    if not any(at.MESH in function.attributes for function in functions(module).values()):
        raise PassError("it has neither a public function @main nor mesh functions")
    signature = _Signature({}, {}, {}, set())
    seen: set[int] = set()
    for function in mesh_functions(module):
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        _collect(function, at.ARGUMENT, type_.inputs, at.argument_attributes(function), signature.arguments)
        _collect(function, at.RESULT, type_.results, at.result_attributes(function), signature.results)
        entries = at.argument_attributes(function)
        numbers = (entries[position][at.ARGUMENT] for position in seen_by_stages(module, function))
        seen |= {number.value for number in numbers if isinstance(number, ir.IntegerAttr)}
    signature.state.update(_state(signature.arguments, seen))
    return signature


def _state(arguments: dict[int, ir.Type], seen: set[int]) -> set[int]:
    """Return the optimizer's state: the arrays of floating point numbers that no stage sees; none if there is no stage.

    Scalars do not count: one of them may be the learning rate.
    """
    arrays = {n for n, type_ in arguments.items() if isinstance(type_, ir.RankedTensorType) and type_.rank}
    return arrays - seen if seen else set()


def _collect(
    function: ir.Operation,
    name: str,
    types: list[ir.Type],
    entries: list[dict[str, ir.Attribute]],
    found: dict[int, ir.Type],
) -> None:
    """Add the arguments or results of one mesh to those of the step."""
    for type_, entry in zip(types, entries, strict=True):
        number = entry.get(name)
        if not isinstance(number, ir.IntegerAttr):
            raise PassError(f"a mesh function has an argument or result without {name}", location=function.location)
        block = at.block(entry)
        if block is not None:
            rows, *rest = ir.RankedTensorType(type_).shape
            type_ = ir.RankedTensorType.get([rows * block[1], *rest], ir.RankedTensorType(type_).element_type)
        if found.setdefault(number.value, type_) != type_:
            raise PassError(f"{name} = {number.value} has two types", location=function.location)


def _check_signature(step: Pass, reference: _Signature, now: _Signature) -> None:
    """A program may lack arguments, which it does not use then, but no results."""
    for what, known, found in (
        ("argument", reference.arguments, now.arguments),
        ("result", reference.results, now.results),
    ):
        for number, type_ in found.items():
            if known.get(number) != type_:
                before = known.get(number, "nothing")
                raise ValidationError(f"pass '{step.name}' changed {what} {number} from {before} to {type_}")
    for number in reference.results:
        if number not in now.results:
            raise ValidationError(f"pass '{step.name}' lost {reference.title(number)}")


def _compile(module: ir.Module, runner: Runner) -> StepFunction:
    main = _main(module)
    if main is None:
        program = Interpreter(module, runner)
        return lambda arguments: {
            number: [(f" on mesh {mesh}", value) for mesh, value in places]
            for number, places in program.run(arguments).items()
        }
    count = len(ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).inputs)
    run = runner.compile(module, "main")

    def one(arguments: Mapping[int, Array]) -> NamedResults:
        return {number: [("", value)] for number, value in enumerate(run([arguments[n] for n in range(count)]))}

    return run_all(TrainLoopAttr.of(module), one, runner)
