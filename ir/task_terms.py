"""The terms of tasks: what each function adds to its arguments, and what the loop adds in each microbatch."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Final, NamedTuple, TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, callee, operands_with_captures, operations, terminator
from jaxpp.ir.linear_terms import Linear, Part, Parts, Scales, made_by, number_of, parts_with, terms
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import float_width, shape_of
from jaxpp.ir.tasks import task_inside
from jaxpp.ir.values import block_of, defining_op


class OwnTerm(NamedTuple):
    """A term of a result that a call or the loop makes itself.

    Attributes:
        result: the result.
        number: the index of the term.
        stage: the stage of a term of the loop; -1 if the stage is not known, or where there are slices.
    """

    result: ir.Value
    number: int
    stage: int = -1


OTHERS: Final = "others"
"""The term of a value of the loop that sums others which it carries, as the sum before the last one does."""


Summary: TypeAlias = tuple[Sequence[tuple[int, Scales]], Sequence[Scales]]
"""A result of a function: the factors of the arguments that it sums, and those of the function's own terms."""


class TaskTerms:
    """The summaries of functions, each of which is read once for the constants that it takes."""

    def __init__(self, functions: Mapping[str, ir.Operation], linear: Linear) -> None:
        self._functions, self._linear = functions, linear
        self._scalars = dict[str, Sequence[int]]()
        self._known = dict[tuple[str, int, tuple[float | None, ...]], Summary]()

    def parts(self, result: ir.Value) -> tuple[Sequence[tuple[int, Scales]], list[Part]]:
        """Returns the factors of the operands that the result of a call sums, and the call's own terms."""
        op = defining_op(result)
        assert op is not None
        name = callee(op)
        if name not in self._scalars:
            arguments = enumerate(body_of(self._functions[name]).arguments)
            self._scalars[name] = [number for number, each in arguments if not shape_of(each) and float_width(each)]
        key = name, ir.OpResult(result).result_number, tuple(number_of(op.operands[n]) for n in self._scalars[name])
        if key not in self._known:
            self._known[key] = self._summary(*key)
        arguments, own = self._known[key]
        return arguments, [part for n, scales in enumerate(own) for part in parts_with(OwnTerm(result, n), scales)]

    def _summary(self, name: str, number: int, constants: Sequence[float | None]) -> Summary:
        arguments, own = list[tuple[int, Scales]](), list[Scales]()
        body = body_of(self._functions[name])
        given = zip(self._scalars[name], constants, strict=True)
        numbers = {body.arguments[n]: constant for n, constant in given if constant is not None}
        found = terms(terminator(body).operands[number], partial(self._linear.in_task, numbers=numbers))
        for term, scales in found.items():
            assert isinstance(term, ir.Value)
            op = defining_op(term)
            if op is None:
                arguments.append((ir.BlockArgument(term).arg_number, scales))
            elif len(op.operands) or len(op.regions):  # a constant is equal for all microbatches
                own.append(made_by(op, scales))
        return arguments, own


class LoopTerms:
    """The terms that the body of the microbatch loop adds to the carried values.

    Attributes:
        length: the number of microbatches; 0 where the schedule may leave out tasks, and their terms.
    """

    def __init__(self, loop: MicrobatchLoop, tasks: TaskTerms, linear: Linear) -> None:
        self._loop, self._tasks, self._linear = loop, tasks, linear
        self.length = 0 if "skipped:" in loop.schedule else loop.length
        self._known = dict[int, Mapping[Hashable, Scales]]()

    def parts(self, result: ir.Value) -> list[Part]:
        """Returns what a microbatch adds to a result of the loop; nothing if it does not only add."""
        number = ir.OpResult(result).result_number
        carried, argument = self._carried(number), self._loop.body.arguments[number]
        if number in self._loop.indices or (carried != {argument: {(): 1.0}} and carried.keys() <= {argument}):
            return []
        found = [Part(OTHERS)] if carried.keys() - {argument} else []
        for index, (term, scales) in enumerate(self._terms(number).items()):
            value = term.result if isinstance(term, OwnTerm) else term
            op = defining_op(value) if isinstance(value, ir.Value) else None
            if op is not None and value in self._varying and value not in self._loop.counts:
                found += parts_with(OwnTerm(result, index, self._stage(op)), made_by(op, scales))
        return found

    def _carried(self, number: int) -> Mapping[Hashable, Scales]:
        """Returns the factors of what the last microbatch handed on."""
        return {
            term: scales
            for term, scales in self._terms(number).items()
            if term in self._loop.carried and term in self._varying
        }

    def _terms(self, number: int) -> Mapping[Hashable, Scales]:
        if number not in self._known:
            self._known[number] = terms(terminator(self._loop.body).operands[number], self._parts)
        return self._known[number]

    def _parts(self, value: Hashable) -> Parts:
        if not isinstance(value, ir.Value) or not self._is_inside(value):
            return None
        op = defining_op(value)
        if op is None or op.name != "func.call":
            return self._linear.in_task(value)
        arguments, own = self._tasks.parts(value)
        return [part for number, scales in arguments for part in parts_with(op.operands[number], scales)] + own

    def _is_inside(self, value: ir.Value) -> bool:
        """Whether the body of the loop makes a value, perhaps inside of a `shard_map`."""
        block = block_of(value)
        while block != self._loop.body and block.owner.operation.name == at.SHARD_MAP:
            block = block.owner.operation.block
        return block == self._loop.body

    @cached_property
    def _varying(self) -> set[ir.Value]:
        """The values of the body that may differ from microbatch to microbatch."""
        body = self._loop.body
        pairs = zip(body.arguments, terminator(body).operands, strict=True)
        varying = set[ir.Value](argument for argument, value in pairs if argument != value)
        _spread(operations(body), varying)
        return varying

    def _stage(self, op: ir.Operation) -> int:
        if self._loop.slices > 1:
            return -1
        stage = at.integer(op, at.STAGE)
        task = task_inside(op, self._loop.body) if stage is None else None
        return stage if stage is not None else -1 if task is None else task.stage


def _spread(ops: Iterable[ir.Operation], varying: set[ir.Value]) -> None:
    """Adds the results that depend on values of `varying` to these."""
    for op in ops:
        if any(value in varying for value in operands_with_captures(op)):
            varying.update(op.results)
        if op.name == at.SHARD_MAP:
            pairs = zip(body_of(op).arguments, op.operands, strict=True)
            varying.update(argument for argument, value in pairs if value in varying)
            _spread(operations(body_of(op)), varying)
