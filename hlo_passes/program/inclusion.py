"""Finds the operations of one function in another, such as the layers of a middle stage in the first stage."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jaxlib.mlir import ir

from jaxpp.ir.functions import body_of, nested, operations
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.numbering import kind_of
from jaxpp.ir.ops import is_cheap


class Body(Numbered):
    """The body of a function, without the return.

    Attributes:
        function: the function.
        arguments: its arguments.
        returned: the values that it returns.
        kinds: the kind of each operation, as `kind_of` returns it.
        uses: the values from outside that each operation and its regions use, in order, one entry for each use.
        constants: a key for the results of each operation that is cheap and depends on constants only, so that every
            function can make them by itself. Operations with equal keys make equal values.
    """

    def __init__(self, function: ir.Operation) -> None:
        *ops, end = operations(body_of(function))
        super().__init__(ops)
        self.function, self.returned = function, list(end.operands)
        self.arguments = list(body_of(function).arguments)
        self.kinds: list[Hashable] = []
        self.uses: list[list[ir.Value]] = []
        self.constants: dict[int, Hashable] = {}
        for number, op in enumerate(ops):
            kind, uses = kind_of(op)
            self.kinds.append(kind)
            self.uses.append(uses)
            makers = [self.producers.get(value) for value in uses]
            if is_cheap(op) and self.constants.keys() >= {*makers}:
                self.constants[number] = kind, tuple([self.constants[maker] for maker in makers if maker is not None])

    @cached_property
    def working(self) -> list[int]:
        """The operations that are no constants."""
        return [number for number in range(len(self.ops)) if number not in self.constants]

    @cached_property
    def work(self) -> int:
        """The number of operations, including operations in regions, without constants."""
        return sum(1 + sum(1 for _ in nested(self.ops[number])) for number in self.working)


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
    found: dict[int, int] = field(default_factory=dict[int, int])
    taken: set[int] = field(default_factory=set[int])

    def run(self) -> bool:
        """Matches all operations of `small`; returns whether this succeeded."""
        constants = {key: number for number, key in self.large.constants.items()}
        for number, key in self.small.constants.items():
            if key not in constants:
                return False
            self._note(number, constants[key])
        mine, others = (_by_kind(body) for body in (self.small, self.large))
        if any(len(others[kind]) < len(each) for kind, each in mine.items()):
            return False
        for kind, each in mine.items():
            if len(others[kind]) == len(each) and not all(
                self._match(one, other) for one, other in zip(each, others[kind], strict=True)
            ):
                return False
        while waiting := [each for each in self.small.working if each not in self.found]:
            for each in waiting:
                candidates = self._candidates(each, others[self.small.kinds[each]])
                if not candidates or (len(candidates) == 1 and not self._match(each, candidates[0])):
                    return False
                if each in self.found:
                    break
            else:
                return False
        return self._is_apart()

    def _candidates(self, op: int, others: Sequence[int]) -> list[int]:
        """Returns the unmatched operations of `large` that may be `op`, judging by its operands that are matched."""
        known = [(position, value) for position, value in enumerate(self.small.uses[op]) if value in self.values]
        free = ((other, self.large.uses[other]) for other in others if other not in self.taken)
        return [other for other, uses in free if all(self._may_be(value, uses[position]) for position, value in known)]

    def _may_be(self, value: ir.Value, match: ir.Value) -> bool:
        """Returns whether `value` of `small` may be `match` of `large`.

        Constants are compared by their keys, as `large` may have several equal constants.
        """
        maker, made = self.small.producers.get(value), self.large.producers.get(match)
        if maker in self.small.constants:
            return made in self.large.constants and self.large.constants[made] == self.small.constants[maker]
        return self.values.get(value, match) == match

    def _match(self, one: int, other: int) -> bool:
        """Matches two operations and the makers of their operands; returns whether no contradiction arose."""
        small, large = self.small, self.large
        work = [(one, other)]
        while work:
            one, other = work.pop()
            if one in self.found:
                if self.found[one] != other:
                    return False
                continue
            if other in self.taken or small.kinds[one] != large.kinds[other]:
                return False
            self._note(one, other)
            for value, match in zip(small.uses[one], large.uses[other], strict=True):
                if not self._may_be(value, match):
                    return False
                self.values.setdefault(value, match)
                maker, made = small.producers.get(value), large.producers.get(match)
                if maker is not None and maker not in small.constants:
                    if made is None or small.results[maker].index(value) != large.results[made].index(match):
                        return False
                    work.append((maker, made))
        return True

    def _note(self, one: int, other: int) -> None:
        self.found[one] = other
        self.taken.add(other)
        self.values.update(zip(self.small.results[one], self.large.results[other], strict=True))

    def _is_apart(self) -> bool:
        """Returns whether each argument of `small` is matched with a value that no operation of `small` makes."""
        made = {self.values[value] for number in self.small.working for value in self.small.results[number]}
        return all(argument in self.values and self.values[argument] not in made for argument in self.small.arguments)


def _by_kind(body: Body) -> defaultdict[Hashable, list[int]]:
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number in body.working:
        found[body.kinds[number]].append(number)
    return found
