"""`jaxpp.debug`: finds the pass after which a step computes wrong results."""

import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any

import jax
from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp._system import write_file
from jaxpp.comparing import mesh_of, number_of, on_host
from jaxpp.hlo_passes.base import STANDING, Observer, Pass
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.jit import MpmdFunction
from jaxpp.lowering.mesh import MpmdMesh
from jaxpp.recording import record_run
from jaxpp.runtime import Executable
from jaxpp.step import CompiledStep
from jaxpp.validation import MOST_TRIPS
from jaxpp.validation.apart import Apart
from jaxpp.validation.bisection import Bisection, WrongResult, refer
from jaxpp.validation.compare import Tolerance
from jaxpp.validation.observed import WrongValue
from jaxpp.validation.validator import Given


def bisect(step: object, reference: Callable[..., Any], *args: Any) -> WrongResult | None:
    """Finds where the results of a step begin to differ from those of a reference, and prints it in seven lines.

        jaxpp.debug.bisect(step, jax.jit(train_step), state, batch)

    If the step's results differ, the module runs on the CPU before all passes, and after some of them. The search takes
    at most log2(passes) + 3 runs. Then the modules before and after the wrong pass run value by value. Each run is a
    whole step of the model, so take a small one. No argument is donated. In a job all processes call this function.

    Args:
        step: a step of `mpmd_jit_with_loop` or `mpmd_jit_by_yield`.
        reference: a function of the same arguments that returns the right results.
        args: the arguments.

    Returns:
        The place and the results that differ, which print as the seven lines; None if all results agree.

    Raises:
        TypeError: `step` is no such step.
        ValidationError: the reference has other results than the step, or the module can't run on the CPU.
        PassError, TypeError, ValueError: as when the step is called.
    """
    if not isinstance(step, MpmdFunction):
        raise TypeError(f"bisect: expected a step of mpmd_jit_with_loop, found {type(step).__name__}")
    numbers = jax.tree.map(number_of, args)
    lowered, seen = step.lower(*numbers), PassesSeen()
    with watching(seen):
        lowered.program()
    leaves = jax.tree.leaves((numbers, {}))
    compiled = lowered.compile()
    ours = on_host(compiled.run(leaves))
    with mesh_of(lowered.lowered):
        theirs = on_host(reference(*numbers))
    given = Given(*(dict(enumerate(each)) for each in (on_host(leaves), theirs)))
    found = _found(seen, given, dict(enumerate(ours)), compiled)
    print(found or f"the {len(ours)} results agree with the reference")
    return found


def record(step: object, path: str | os.PathLike[str], *args: Any) -> None:
    """Runs a step task by task, and writes the results of all its tasks into a file, for `jaxpp-bisect`.

        jaxpp.debug.record(step, "one.npz", state, batch)

    Another run may have another version of JAX, other flags, another schedule or another number of processes.
    `jaxpp-bisect one.npz other.npz` names the first task whose results differ. Both need the same arguments. The step
    runs twice, to measure the effect of rounding. No argument is donated. In a job all processes call this function,
    and the first one writes the file.

    Args:
        step: a step of `mpmd_jit_with_loop` or `mpmd_jit_by_yield`.
        path: the file, which numpy can read.
        args: the arguments.

    Raises:
        TypeError: `step` is no such step, or its backend has no tasks to watch.
        ValueError: a mesh has devices of several processes.
        PassError, TypeError, ValueError: as when the step is called.
        OSError: the file can't be written.
    """
    if not isinstance(step, MpmdFunction):
        raise TypeError(f"record: expected a step of mpmd_jit_with_loop, found {type(step).__name__}")
    numbers = jax.tree.map(number_of, args)
    lowered = step.lower(*numbers)
    mesh = _mesh_of_several_processes(lowered.lowered.mpmd_mesh)
    if mesh is not None:
        raise ValueError(f"record: mesh {mesh} has devices of several processes, expected one: use fewer processes")
    executable = lowered.compile().executable
    if not isinstance(executable, Executable):
        raise TypeError(f"record: expected a step on devices of JAX, found a {type(executable).__name__}")
    made = record_run(executable, dict(enumerate(on_host(jax.tree.leaves((numbers, {}))))))
    if jax.process_index() == 0:
        write_file(os.fspath(path), made.to_bytes())


def _found(seen: "PassesSeen", given: Given, ours: dict[int, Any], compiled: CompiledStep) -> WrongResult | None:
    def new() -> Apart:
        return refer(0, MOST_TRIPS, None, seen.module, given)

    bisection = Bisection(seen.module, seen.steps, new)
    if not (differences := bisection.validator.differing(ours)):
        return None
    if before := bisection.differences(0):
        advice = "the function of the step is not the reference: compare both with plain jax.jit"
        return WrongResult.of("before all passes", before, advice, None, seen.module)
    advice = "set JAXPP_DUMP_DIR to write the module before the passes, for jaxpp-bisect and jaxpp-reduce"
    if found := bisection.wrong_pass(lambda _: advice):
        return found
    advice = "the passes are right: look at the devices and the options of the compiler"
    value = _wrong_task(bisection, given, compiled)
    return WrongResult.of("in the run, after all passes", differences, advice, value, seen.module)


def _mesh_of_several_processes(meshes: MpmdMesh) -> int | None:
    """Returns the first mesh that several processes run; None if there is none."""
    owners = ({device.process_index for device in mesh.devices.flat} for mesh in meshes.unstack)
    return next((number for number, each in enumerate(owners) if len(each) > 1), None)


def _wrong_task(bisection: Bisection, given: Given, compiled: CompiledStep) -> WrongValue | None:
    """Returns the first result of a task that differs in the run on the devices."""
    executable, several = compiled.executable, _mesh_of_several_processes(compiled.lowered.mpmd_mesh) is not None
    if not isinstance(executable, Executable) or several:  # another backend, or meshes whose values no process has
        return None
    run = record_run(executable, given.arguments)
    right = bisection.validator.record(bisection.after(len(bisection.steps)), given.arguments)
    return right.wrong_value(run, Tolerance(max(run.relative, right.relative)))


class PassesSeen(Observer):
    """An observer that records the module before all passes, and the passes.

    A search for a `memory_limit` runs them several times; the last time counts.
    """

    reads_program = False
    module: ir.Module

    def __init__(self) -> None:
        self.steps: list[Pass] = []

    def before(self, step: Pass, module: ir.Module) -> None:
        """Records a pass. The first one begins a new record."""
        if isinstance(step, InlineCalls):
            self.module, self.steps = own_copy(module), []
        self.steps.append(step)


@contextlib.contextmanager
def watching(observer: Observer) -> Generator[None]:
    STANDING.append(observer)
    try:
        yield
    finally:
        STANDING.remove(observer)
