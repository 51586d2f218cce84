"""`jaxpp.debug`: finds the pass after which a step computes wrong results."""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import jax
from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.comparing import mesh_of, number_of, on_host
from jaxpp.hlo_passes.base import STANDING, Observer, Pass
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.jit import MpmdFunction
from jaxpp.validation import MOST_TRIPS
from jaxpp.validation.apart import Apart
from jaxpp.validation.bisection import Bisection, WrongResult, refer, wrong_result
from jaxpp.validation.validator import Given


def bisect(step: object, reference: Callable[..., Any], *args: Any) -> WrongResult | None:
    """Finds where the results of a step begin to differ from those of a reference, and prints it in five lines.

        jaxpp.debug.bisect(step, jax.jit(train_step), state, batch)

    If the step's results differ, the module runs on the CPU before all passes, and after some of them. The search takes
    at most log2(passes) + 3 runs. Each of them is a whole step of the model, so take a small one. No argument is
    donated.

    Args:
        step: a step of `mpmd_jit_with_loop` or `mpmd_jit_by_yield`.
        reference: a function of the same arguments that returns the right results.
        args: the arguments.

    Returns:
        The place and the results that differ, which print as the five lines; None if all results agree.

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
    ours = on_host(lowered.compile().run(leaves))
    with mesh_of(lowered.lowered):
        theirs = on_host(reference(*numbers))
    given = Given(*(dict(enumerate(each)) for each in (on_host(leaves), theirs)))
    found = _found(seen, given, dict(enumerate(ours)))
    print(found or f"the {len(ours)} results agree with the reference")
    return found


def _found(seen: "PassesSeen", given: Given, ours: dict[int, Any]) -> WrongResult | None:
    def new() -> Apart:
        return refer(0, MOST_TRIPS, None, seen.module, given)

    bisection = Bisection(seen.module, seen.steps, new)
    if not (differences := bisection.validator.differing(ours)):
        return None
    if before := bisection.differences(0):
        advice = "the function of the step is not the reference: compare both with plain jax.jit"
        return wrong_result("before all passes", before, seen.module, advice)
    advice = "set JAXPP_DUMP_DIR to write the module before the passes, for jaxpp-bisect and jaxpp-reduce"
    if found := bisection.wrong_pass(lambda _: advice):
        return found
    advice = "the passes are right: look at the devices and the options of the compiler"
    return wrong_result("in the run, after all passes", differences, seen.module, advice)


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
