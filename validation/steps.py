"""Runs all steps of a loop over optimizer steps, of which a module has one (`jaxpp.train_loop`)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.validation.cpu import Array, Runner

NamedResults = dict[int, list[tuple[str, Array]]]
"""The results of a step by number: on each mesh that has one, a phrase that names the mesh, and the value."""
StepFunction = Callable[[Mapping[int, Array]], NamedResults]
"""A function from a step's arguments by number to its results."""


def of_all(loop: TrainLoopAttr | None, types: Sequence[ir.Type]) -> dict[int, ir.Type]:
    """Returns the types of the arguments or results of all steps, from those of one step."""
    return {number: loop.of_all(number, type_) if loop else type_ for number, type_ in enumerate(types)}


def run_all(loop: TrainLoopAttr | None, one: StepFunction, runner: Runner) -> StepFunction:
    """Returns a function that runs all steps of the loop: it hands on the state, and slices and stacks all else."""
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
