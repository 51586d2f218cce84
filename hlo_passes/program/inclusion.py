"""Finds the operations of one function in another, such as the layers of a middle stage in the first stage."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jaxlib.mlir import ir

from jaxpp.ir.functions import body_of, nested, operations
from jaxpp.ir.numbering import kind_of
from jaxpp.ir.ops import is_cheap
from jaxpp.ir.outlining import Member


@dataclass(eq=False, slots=True)
class BodyOp:
    """An operation of a function.

    Attributes:
        op: the operation.
        uses: the values from outside that it and its regions use, in order, one entry for each use.
        results: its results.
        kind: its kind, as `kind_of` returns it.
        computed: a key for its results if it is cheap and depends on constants only, otherwise None. Operations with
            equal keys make equal values.
    """

    op: ir.Operation
    uses: list[ir.Value]
    results: list[ir.Value]
    kind: Hashable
    computed: Hashable = None

    @property
    def is_constant(self) -> bool:
        """Whether every function can make the results by itself."""
        return self.computed is not None

    def member(self, *, moves: bool) -> Member:
        """Returns the operation as a member of a new function."""
        return Member(self.op, list(dict.fromkeys(self.uses)), self.results, moves)


class Body:
    """The body of a function, read once.

    Attributes:
        function: the function.
        arguments: its arguments.
        ops: its operations, without the return.
        makers: the operation that makes each value.
        returned: the values that it returns.
    """

    def __init__(self, function: ir.Operation) -> None:
        self.function = function
        self.arguments = list(body_of(function).arguments)
        *ops, end = operations(body_of(function))
        self.makers: dict[ir.Value, BodyOp] = {}
        self.ops = [self._read(op) for op in ops]
        self.returned = list(end.operands)

    @cached_property
    def work(self) -> int:
        """The number of operations, including operations in regions, without constants."""
        return sum(1 + sum(1 for _ in nested(each.op)) for each in self.ops if not each.is_constant)

    def _read(self, op: ir.Operation) -> BodyOp:
        kind, uses = kind_of(op)
        made = BodyOp(op, uses, list(op.results), kind)
        makers = [self.makers.get(value) for value in uses]
        if is_cheap(op) and all(maker is not None and maker.is_constant for maker in makers):
            made.computed = (made.kind, tuple([maker.computed for maker in makers if maker is not None]))
        self.makers.update(dict.fromkeys(made.results, made))
        return made


def find(small: Body, large: Body) -> dict[ir.Value, ir.Value] | None:
    """Maps each value of `small` to a value of `large`, if `large` contains the operations of `small`.

    An argument of `small` may be any value of `large` that these operations do not make. Returns None if an operation
    is missing, or if the match is ambiguous. A match is clear if both functions have equally many operations of its
    kind, or if the operations around it decide.
    """
    matching = _Matching(small, large)
    return matching.values if matching.run() else None


@dataclass
class _Matching:
    """A search for the operations of one function in another.

    Attributes:
        small: the function whose operations are searched.
        large: the function in which they are searched.
        values: for each matched value of `small` its value of `large`.
        found: for each matched operation of `small` its operation of `large`.
        taken: the matched operations of `large`.
    """

    small: Body
    large: Body
    values: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])
    found: dict[BodyOp, BodyOp] = field(default_factory=dict[BodyOp, BodyOp])
    taken: set[BodyOp] = field(default_factory=set[BodyOp])

    def run(self) -> bool:
        """Matches all operations of `small`; returns whether this succeeded."""
        constants = {each.computed: each for each in self.large.ops if each.is_constant}
        for each in self.small.ops:
            if each.is_constant:
                if each.computed not in constants:
                    return False
                self._note(each, constants[each.computed])
        mine, others = (_by_kind(body) for body in (self.small, self.large))
        if any(len(others[kind]) < len(each) for kind, each in mine.items()):
            return False
        for kind, each in mine.items():
            if len(others[kind]) == len(each) and not all(
                self._match(one, other) for one, other in zip(each, others[kind], strict=True)
            ):
                return False
        while waiting := [each for each in self.small.ops if each not in self.found]:
            for each, candidates in ((each, self._candidates(each, others[each.kind])) for each in waiting):
                if each in self.found:
                    continue
                if not candidates or (len(candidates) == 1 and not self._match(each, candidates[0])):
                    return False
                if each in self.found:
                    break
            else:
                return False
        return self._is_apart()

    def _candidates(self, op: BodyOp, others: Sequence[BodyOp]) -> list[BodyOp]:
        """Returns the unmatched operations of `large` that may be `op`, judging by its operands that are matched."""
        known = [(position, value) for position, value in enumerate(op.uses) if value in self.values]
        free = (other for other in others if other not in self.taken)
        return [other for other in free if all(self._may_be(value, other.uses[position]) for position, value in known)]

    def _may_be(self, value: ir.Value, match: ir.Value) -> bool:
        """Returns whether `value` of `small` may be `match` of `large`.

        Constants are compared by their keys (`computed`), as `large` may have several equal constants.
        """
        maker, made = self.small.makers.get(value), self.large.makers.get(match)
        if maker is not None and maker.is_constant:
            return made is not None and made.computed == maker.computed
        return self.values.get(value, match) == match

    def _match(self, one: BodyOp, other: BodyOp) -> bool:
        """Matches two operations and the makers of their operands; returns whether no contradiction arose."""
        work = [(one, other)]
        while work:
            one, other = work.pop()
            if one in self.found:
                if self.found[one] is not other:
                    return False
                continue
            if other in self.taken or one.kind != other.kind:
                return False
            self._note(one, other)
            for value, match in zip(one.uses, other.uses, strict=True):
                if not self._may_be(value, match):
                    return False
                self.values.setdefault(value, match)
                maker, made = self.small.makers.get(value), self.large.makers.get(match)
                if maker is not None and not maker.is_constant:
                    if made is None or maker.results.index(value) != made.results.index(match):
                        return False
                    work.append((maker, made))
        return True

    def _note(self, one: BodyOp, other: BodyOp) -> None:
        self.found[one] = other
        self.taken.add(other)
        self.values.update(zip(one.results, other.results, strict=True))

    def _is_apart(self) -> bool:
        """Returns whether each argument of `small` is matched with a value that no operation of `small` makes."""
        made = {self.values[value] for each in self.small.ops if not each.is_constant for value in each.results}
        return all(argument in self.values and self.values[argument] not in made for argument in self.small.arguments)


def _by_kind(body: Body) -> dict[Hashable, list[BodyOp]]:
    found: defaultdict[Hashable, list[BodyOp]] = defaultdict(list)
    for each in body.ops:
        if not each.is_constant:
            found[each.kind].append(each)
    return found
