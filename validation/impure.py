"""Finds the results of a module that may differ from run to run, such as those that use a generator's state."""

from collections.abc import Iterable
from itertools import chain

from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.ir.functions import (
    CONDITIONALS,
    body_of,
    functions,
    has_side_effect,
    loop_body,
    main_of,
    operands_with_captures,
    operations,
    terminator,
)
from jaxpp.ir.train_loop import TrainLoopAttr


def is_impure(module: ir.Module) -> bool:
    """Whether a function of the module has an operation with a side effect."""
    return any(map(has_side_effect, functions(module).values()))


def varying_results(module: ir.Module) -> set[int]:
    """Returns the numbers of the results of `@main` that may differ from run to run. No function may call itself."""
    if not is_impure(module):
        return set()
    module = own_copy(module)
    with module.operation.location:
        InlineCalls().run(module)
    body, loop = body_of(main_of(module)), TrainLoopAttr.of(module)
    state = loop.state if loop else 0
    arguments = [False] * len(body.arguments)
    while True:
        results = _Flow().block(body, arguments)
        again = [*map(max, arguments, results[:state]), *arguments[state:]]
        if again == arguments:
            return {number for number, varies in enumerate(results) if varies}
        arguments = again


class _Flow:
    """Follows the values that depend on an operation which differs from run to run, through regions."""

    def __init__(self) -> None:
        self._varying: set[ir.Value] = set()

    def block(self, block: ir.Block, arguments: Iterable[bool]) -> list[bool]:
        """Returns which operands of the terminator vary if these arguments do."""
        self._mark(block.arguments, arguments)
        for op in operations(block)[:-1]:
            self._mark(op.results, self._results(op))
        return [value in self._varying for value in terminator(block).operands]

    def _mark(self, values: Iterable[ir.Value], vary: Iterable[bool]) -> None:
        self._varying.update(value for value, varies in zip(values, vary, strict=True) if varies)

    def _results(self, op: ir.Operation) -> list[bool]:
        operands = [value in self._varying for value in op.operands]
        if op.name == "stablehlo.while":
            return self._loop(op, operands)
        if op.name in CONDITIONALS and not operands[0]:
            branches = [self.block(region.blocks[0], []) for region in op.regions]
            return [any(results) for results in zip(*branches, strict=True)]
        varies = has_side_effect(op) or any(value in self._varying for value in operands_with_captures(op))
        return [varies] * len(op.results)

    def _loop(self, loop: ir.Operation, carried: list[bool]) -> list[bool]:
        """Returns which results of a loop vary.

        A value that varies in one iteration varies in all later ones. If the number of iterations varies, all do.
        """
        while True:
            stops = self.block(loop.regions[0].blocks[0], carried)
            made = self.block(loop_body(loop), carried)
            after = [any(chain(each, stops)) for each in zip(carried, made, strict=True)]
            if after == carried:
                return carried
            carried = after
