"""The terms of tasks: what each function adds to its arguments, and what the loop adds in each microbatch."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import body_of, callee, operands_with_captures, operations, terminator
from jaxpp.ir.linear_terms import TAKEN_APART, Linear, Parts, Scales, known_scales, parts_with, terms
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.tasks import task_inside
from jaxpp.ir.values import block_of, defining_op


class OwnTerm(NamedTuple):
    """A term that a call makes itself, by its number among those of a result."""

    result: ir.Value
    number: int


class Summary(NamedTuple):
    """A result of a function: the factors of the arguments that it sums, and those of the function's own terms."""

    arguments: Sequence[tuple[int, Scales]]
    own: Sequence[Scales]


class TaskTerms:
    """The summaries of functions, each of which is read once."""

    def __init__(self, functions: Mapping[str, ir.Operation], linear: Linear) -> None:
        self._functions, self._linear = functions, linear
        self._known = dict[tuple[str, int], Summary]()

    def of_call(self, result: ir.Value) -> Summary:
        """Returns the summary of the result of a call."""
        op = defining_op(result)
        assert op is not None
        key = callee(op), ir.OpResult(result).result_number
        if key not in self._known:
            self._known[key] = self._summary(*key)
        return self._known[key]

    def _summary(self, name: str, number: int) -> Summary:
        arguments, own = list[tuple[int, Scales]](), list[Scales]()
        body = body_of(self._functions[name])
        for term, scales in terms(terminator(body).operands[number], self._linear.in_task).items():
            assert isinstance(term, ir.Value)
            op = defining_op(term)
            if op is None:
                arguments.append((ir.BlockArgument(term).arg_number, scales))
            elif len(op.operands) or len(op.regions):  # what is equal for all microbatches is no term
                own.append(known_scales(op, scales))
        return Summary(arguments, own)


class LoopTerm(NamedTuple):
    """A term that the loop adds for each microbatch.

    Attributes:
        scales: its factors; 0 if they are not known.
        stage: the stage that makes it; -1 if it is not known.
        is_inside: whether its operation holds others, or moves rows. Passes take both apart, and so the term.
    """

    scales: Scales
    stage: int
    is_inside: bool


class LoopTerms:
    """The terms that the body of the microbatch loop adds to what it carries."""

    def __init__(self, loop: MicrobatchLoop, tasks: TaskTerms, linear: Linear) -> None:
        self._loop, self._tasks, self._linear = loop, tasks, linear
        self._known = dict[int, Mapping[Hashable, Scales]]()

    def added(self, number: int) -> Sequence[LoopTerm] | None:
        """Returns what a microbatch adds to the value that the loop carries; None if it does not only add to it."""
        if self._carried(number) != {self._loop.body.arguments[number]: {(): 1.0}}:
            return None
        added = list[LoopTerm]()
        for term, scales in self._terms(number).items():
            value = term.result if isinstance(term, OwnTerm) else term
            op = defining_op(value) if isinstance(value, ir.Value) else None
            if op is not None and value in self._varying and value not in self._loop.counts:
                added.append(LoopTerm(known_scales(op, scales), self._stage(op), op.name in TAKEN_APART))
        return added

    def is_of_others(self, number: int) -> bool:
        """Whether a value that the loop hands on sums others that it carries, as the sum before the last one does."""
        return not self._carried(number).keys() <= {self._loop.body.arguments[number]}

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
        summary = self._tasks.of_call(value)
        parts = [part for number, scales in summary.arguments for part in parts_with(op.operands[number], scales)]
        own = [part for number, scales in enumerate(summary.own) for part in parts_with(OwnTerm(value, number), scales)]
        return [*parts, *own]

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
