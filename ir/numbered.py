"""Operations by their indices, each read once: reading one through the bindings takes longer than using it.

Operations are no keys of dictionaries: their hash is made of their operands and attributes, so an edit loses them.
Indices or results are keys. The tests make it an error to hash an operation.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from jaxlib.mlir import ir

from jaxpp.ir.functions import has_side_effect, operands_with_captures
from jaxpp.ir.values import closure


class Member(NamedTuple):
    """An operation for a new function.

    Attributes:
        op: the operation.
        uses: the values that it uses, also in its regions (`operands_with_captures`).
        results: the values that it makes.
        moves: whether it is moved, much faster than a clone, because no other function needs it. The caller then
            replaces the uses of its results elsewhere.
    """

    op: ir.Operation
    uses: Sequence[ir.Value]
    results: Sequence[ir.Value]
    moves: bool = False

    @staticmethod
    def of(op: ir.Operation) -> "Member":
        """Reads an operation that is cloned."""
        return Member(op, operands_with_captures(op), list(op.results))


class Numbered:
    """Operations of a block in program order, each read once.

    Attributes:
        ops: the operations.
        operands: the values that each operation uses, also in its regions.
        results: the values that each operation makes.
        producers: for each result the index of the operation that makes it.
        makers: for each operation the indices of the operations that make its operands, in their order.
    """

    def __init__(self, ops: Iterable[ir.Operation]) -> None:
        self.ops = list(ops)
        self.operands: list[Sequence[ir.Value]] = [operands_with_captures(op) for op in self.ops]
        self.results: list[list[ir.Value]] = [list(op.results) for op in self.ops]
        self._link()

    def _link(self) -> None:
        self.producers = {result: number for number, results in enumerate(self.results) for result in results}
        find = self.producers.get
        self.makers: list[list[int]] = [
            [number for value in operands if (number := find(value)) is not None] for operands in self.operands
        ]

    @cached_property
    def acting(self) -> list[int]:
        """The operations with side effects, such as callbacks."""
        return [number for number, op in enumerate(self.ops) if has_side_effect(op)]

    @cached_property
    def users(self) -> list[list[int]]:
        """For each operation those that use its results, each once, in program order."""
        users: list[list[int]] = [[] for _ in self.ops]
        for number, makers in enumerate(self.makers):
            for maker in set(makers):
                users[maker].append(number)
        return users

    def member(self, number: int, *, moves: bool = False) -> Member:
        """Returns an operation for a new function."""
        return Member(self.ops[number], self.operands[number], self.results[number], moves)

    def behind(
        self, values: Iterable[ir.Value], through: Callable[[int], bool] = lambda _: True, also: Iterable[int] = ()
    ) -> list[int]:
        """Returns the operations that `values` and the operations `also` depend on, in program order, with `also`.

        Operations that fail `through` end the way.
        """
        makers = [number for value in values if (number := self.producers.get(value)) is not None]
        roots = [*filter(through, makers), *also]
        return sorted(closure(roots, lambda number: filter(through, self.makers[number])))

    def values_behind(
        self, values: Iterable[ir.Value], instead: Mapping[ir.Value, Sequence[ir.Value]] | None = None
    ) -> set[ir.Value]:
        """Returns `values` and all values on which they depend, including the values from elsewhere.

        `instead` maps some values to those on which they depend, in place of the operands of the operation that makes
        them. An argument of a loop's body, for example, depends on the value for the next trip.
        """
        known = instead or {}

        def read(value: ir.Value) -> Sequence[ir.Value]:
            number = self.producers.get(value)
            return known[value] if value in known else () if number is None else self.operands[number]

        return set(closure(values, read))

    def part(
        self,
        values: Iterable[ir.Value],
        instead: Mapping[ir.Value, Sequence[ir.Value]],
        acting: Collection[ir.Operation] = (),
    ) -> tuple[set[ir.Value], list[int]]:
        """Returns the values behind `values` and the operations `acting`, and the operations that these take.

        Results among the keys of `instead`, which is as in `values_behind`, need no operation.
        """
        also = [number for number, op in enumerate(self.ops) if op in acting]
        roots = [*values, *(value for number in also for value in self.operands[number])]
        needed = self.values_behind(roots, instead)
        return needed, sorted({*also, *self.making(needed.difference(instead))})

    def making(self, values: Collection[ir.Value]) -> list[int]:
        """Returns the operations that make any of `values`."""
        return [number for number, results in enumerate(self.results) if any(value in values for value in results)]

    def read(self, numbers: Collection[int], values: Iterable[ir.Value] = ()) -> dict[ir.Value, None]:
        """Returns `values` and the values that these operations use, without those that these operations make."""
        made = set(numbers)
        used = [*values, *(value for number in numbers for value in self.operands[number])]
        return dict.fromkeys(value for value in used if self.producers.get(value) not in made)
