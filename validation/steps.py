"""Runs all of a module, in any of its phases."""

from collections.abc import Callable, Mapping

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.validation.cpu import Array, Runner
from jaxpp.validation.interpreter import Interpreter, NamedResults
from jaxpp.validation.signature import public_main

StepFunction = Callable[[Mapping[int, Array]], NamedResults]
"""A function from a step's arguments by number to its results."""


def step_function(module: ir.Module, runner: Runner) -> StepFunction:
    """Returns the function that runs all of a module: by XLA, or by the interpreter if it is a program."""
    main = public_main(module)
    if main is None:
        return Interpreter(module, runner).run
    count = len(ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).inputs)
    run = runner.compile(module, "main")

    def one(arguments: Mapping[int, Array]) -> NamedResults:
        return {number: [("", value)] for number, value in enumerate(run([arguments[n] for n in range(count)]))}

    return all_steps(TrainLoopAttr.of(module), one, runner)


def all_steps(loop: TrainLoopAttr | None, one: StepFunction, runner: Runner) -> StepFunction:
    """Returns a function that runs all steps of a loop over optimizer steps, of which a module has one.

    It hands on the state, and slices and stacks all else.
    """
    if loop is None:
        return one

    def run(arguments: Mapping[int, Array]) -> NamedResults:
        state = {number: value for number, value in arguments.items() if number < loop.state}
        every: list[NamedResults] = []
        for step in range(loop.steps):
            batch = {n: runner.put(np.asarray(value)[step]) for n, value in arguments.items() if n >= loop.state}
            every.append(one(state | batch))
            state = {number: every[-1][number][0][1] for number in state}
        rest = [number for number in every[-1] if number >= loop.state]
        stacks = {n: [("", runner.put(np.stack([np.asarray(each[n][0][1]) for each in every])))] for n in rest}
        return {**every[-1], **stacks}

    return run
