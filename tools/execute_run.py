"""The run of `jaxpp-execute`: arguments, devices, steps, and the comparison with another module."""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import functions
from jaxpp.ir.shardings import MeshAxes
from jaxpp.recording import leaves_of, record_run
from jaxpp.runtime import Executable, Program, load, trace_step, write_chrome_trace
from jaxpp.tools import arrays, diagnostics, source, streams
from jaxpp.validation.compare import Expected, is_inexact, is_integer, random_inputs
from jaxpp.validation.cpu import Runner, partitions_of, shape_and_dtype
from jaxpp.validation.signature import Signature, public_main
from jaxpp.validation.steps import step_function
from jaxpp.validation.validator import Given, Validator

Run = Callable[[], Mapping[int, Any]]
"""Runs one step; returns its results by number."""


def run(options: argparse.Namespace) -> int:
    """Does what the command line asks for; returns the exit code."""
    try:
        return _run(options)
    except streams.InputError as error:
        message = str(error)
    except PassError as error:
        message = diagnostics.explained(error, streams.display_name(options.file))
    print(message, file=sys.stderr)
    return 1


def _run(options: argparse.Namespace) -> int:
    arrays.check_package(options.save or "")
    context = make_context()
    module = source.read(options.file, context)
    reference = source.read(options.reference, context) if options.reference else None
    with context:
        if reference:
            _check_alike(module, reference, streams.display_name(options.reference))
        _make_devices(max(_devices(each) for each in (module, reference) if each))
        signature = Signature.of(reference or module)
        inputs = _inputs(signature, options)
        step = _Step(module, inputs)
        results = _timed(step.run, options.steps)
        _show(results, signature, whole=options.prints)
        if options.save:
            saved = {f"result{number}": np.asarray(value) for number, value in results.items()}
            arrays.write_arrays(options.save, saved)
        if options.record:
            step.record(options.record)
        if options.trace:
            step.trace(options.trace)
        return _compare(results, reference, inputs, signature, options) if reference else 0


def _check_alike(module: ir.Module, reference: ir.Module, name: str) -> None:
    """Raises PassError unless a module has the arguments and results of the reference, which has an `@main`."""
    if public_main(reference) is None:
        raise streams.refused(name, "no public @main, so plain XLA can't run it as a reference")
    Signature.of(reference).check(Signature.of(module), f"beside {name} it")


def _make_devices(count: int) -> None:
    """Lets JAX start with so many CPU devices, unless it has started or is told to start with more."""
    told: int = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]  # an option
    with contextlib.suppress(RuntimeError):  # it has started
        jax.config.update("jax_num_cpu_devices", max(told, count))


def _devices(module: ir.Module) -> int:
    """Returns the number of devices that a module needs."""
    if public_main(module) is not None:
        return partitions_of(module)
    meshes = sum(at.MESH in each.attributes for each in functions(module).values())
    return sum(axes.partitions for axes in MeshAxes.of_each(module, meshes))


def _inputs(signature: Signature, options: argparse.Namespace) -> dict[int, Any]:
    """Returns the arguments by number. Raises InputError for a file that can't be read, or does not fit."""
    shapes = {number: shape_and_dtype(type_) for number, type_ in signature.arguments.items()}
    made = random_inputs(shapes, options.seed)
    if not options.inputs:
        return made
    names = {f"arg{number}": number for number in shapes}
    for name, array in arrays.read_arrays(options.inputs).items():
        if name not in names:
            known = f"arg0 to arg{max(shapes, default=0)}"
            raise streams.refused(options.inputs, f"'{name}' is no argument, expected {known}")
        number = names[name]
        shape, dtype = shapes[number]
        if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
            array = array.view(dtype)  # numpy's files do not name the types of JAX, such as bfloat16
        if array.shape != shape or array.dtype != dtype:
            expected = f"expected {dtype}{list(shape)}, found {array.dtype}{list(array.shape)}"
            raise streams.refused(options.inputs, f"{name}: {expected}")
        made[number] = array
    return made


class _Step:
    """A module that is ready to run on these arguments."""

    def __init__(self, module: ir.Module, inputs: Mapping[int, Any]) -> None:
        self._executable: Executable | None = None
        if public_main(module) is not None:
            self.run = _by_xla(module, inputs)
            return
        program = load(module)
        self._inputs = inputs
        self._executable = executable = Executable(program, _submeshes(program))
        self._arguments = leaves_of(executable, inputs)
        self.run: Run = lambda: dict(enumerate(executable(self._arguments)))

    def record(self, path: str) -> None:
        """Records the tasks of one step. Raises InputError for a module that is no program."""
        if self._executable is None:
            raise streams.InputError("--record: error: a module with @main has no tasks to record, expected a program")
        streams.write(path, record_run(self._executable, self._inputs).to_bytes())

    def trace(self, path: str) -> None:
        """Writes a trace of one step. Raises InputError for a module that is no program."""
        if self._executable is None:
            raise streams.InputError("--trace: error: a module with @main has no tasks to trace, expected a program")
        events = trace_step(self._executable, self._arguments)[1]
        try:
            write_chrome_trace(events, path)
        except OSError as error:
            raise streams.refused(path, f"cannot write: {error.strerror}") from None


def _by_xla(module: ir.Module, inputs: Mapping[int, Any]) -> Run:
    """Returns the run of a module with `@main` by plain XLA."""
    runner = Runner(partitions_of(module))
    step, arguments = step_function(module, runner), {number: runner.put(each) for number, each in inputs.items()}
    return lambda: {number: places[0][1] for number, places in step(arguments).items()}


def _submeshes(program: Program) -> list[Any]:
    """Returns a submesh of this machine's devices for each mesh of a program. Raises InputError if they are too few."""
    devices, needed = jax.devices(), sum(program.partitions)
    if len(devices) < needed:
        raise streams.InputError(f"error: the program is for {needed} devices, found {len(devices)}")
    made: list[Any] = []
    first = 0
    for partitions, sizes in zip(program.partitions, program.axis_sizes, strict=True):
        here = np.array(devices[first : first + partitions], dtype=object)
        sizes = sizes or {"devices": partitions}
        made.append(Mesh(here.reshape(1, *sizes.values()), ("mpmd", *sizes)))
        first += partitions
    return made


def _timed(run: Run, steps: int) -> Mapping[int, Any]:
    """Runs so many steps, and prints their times; returns the results of the last one."""
    times: list[float] = []
    results: Mapping[int, Any] = {}
    for _ in range(steps):
        begin = time.perf_counter()
        results = jax.block_until_ready(run())
        times.append(1e3 * (time.perf_counter() - begin))
    rest = f", then {statistics.median(times[1:]):.3g} ms at the median of {steps - 1}" if steps > 1 else ""
    print(f"the first step takes {times[0]:.3g} ms{rest}", file=sys.stderr)
    return results


def _show(results: Mapping[int, Any], signature: Signature, *, whole: bool) -> None:
    """Prints a line for each result, or all of its numbers."""
    for number, value in results.items():
        array = np.asarray(value)
        print(f"{signature.title(number)}: {array.dtype}{list(array.shape)}{_summary(array)}")
        if whole:
            print(np.array2string(array, threshold=sys.maxsize))


def _summary(array: Any) -> str:
    """Returns the value of a scalar; for an array, its mean and its largest absolute value."""
    if not array.ndim:
        return f" = {array[()]:.9g}" if np.issubdtype(array.dtype, np.floating) else f" = {array[()]}"
    if not array.size or not (is_inexact(array.dtype) or is_integer(array.dtype)):
        return ""
    wide = array.astype(np.complex128)
    nans = int(np.isnan(wide).sum())
    told = f", {nans} NaN" if nans else ""
    return f" mean {wide.mean().real:.6g}, at most {abs(wide).max():.6g}{told}"


def _compare(
    results: Mapping[int, Any],
    reference: ir.Module,
    inputs: dict[int, Any],
    signature: Signature,
    options: argparse.Namespace,
) -> int:
    """Compares the results with those of another module by plain XLA; prints differences, and returns the exit code."""
    wanted = {number: np.asarray(value) for number, value in _by_xla(reference, inputs)().items()}
    for number, value in wanted.items():
        if not Expected(value, 0.0).is_finite:
            print(f"warning: {signature.title(number)} has NaN or infinite numbers on these inputs", file=sys.stderr)
    validator, name = Validator(options.seed, tolerance=options.tolerance), Path(options.reference).name
    validator.refer(reference, f"{streams.display_name(options.reference)} can't be run", Given(inputs, wanted))
    differences = validator.differing({number: np.asarray(results[number]) for number in wanted})
    for difference in differences:
        print(f"{streams.display_name(options.file)}: error: {difference}", file=sys.stderr)
    agree = f"{len(wanted) - len(differences)} of {len(wanted)} results agree with {name}"
    print(f"{agree}; largest difference {validator.findings().largest:.1e}")
    return 1 if differences else 0
