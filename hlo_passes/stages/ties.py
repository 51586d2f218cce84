"""Ties: values that a comparison finds equal, or apart by a whole number, because one is chosen from the other.

The gradient of a maximum compares the maximum with what it is of: equal elements get the gradient. If one of the two is
kept and the other one made again, which may round otherwise, none is equal, and the gradient is lost, or 0 / 0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from jaxlib.mlir import ir

from jaxpp.ir.functions import reducer
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import jumps, rounds, traits
from jaxpp.ir.values import closure

_JUMP = -1
"""The operation that jumps, as a user of what it reads."""
_CHOOSING = frozenset(f"stablehlo.{name}" for name in ("and", "maximum", "minimum", "or"))
_REDUCING = frozenset(f"stablehlo.{name}" for name in ("reduce", "reduce_window", "scatter"))
_SELECTING = frozenset(("chlo.top_k", "stablehlo.gather", "stablehlo.sort"))


def ties(body: Numbered, groups: Iterable[Sequence[int]], is_again: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
    """Yields pairs of operations of `body`: where the result of the first is kept, the second is not done again.

    An operation whose result jumps reads both: the first, which is made of the second, and the second on another way.

    Args:
        body: the operations.
        groups: for each operation that jumps, those of `body` whose results it reads; see `deciding`.
        is_again: whether the later half may do an operation of the early one again.
    """
    inexact = _inexact(body, is_again)
    for makers in groups if inexact else ():
        yield from _tied(body, makers, inexact)


def deciding(body: Numbered, late: Iterable[int]) -> Iterator[Sequence[int]]:
    """Yields the groups of `ties` for those of the operations `late` of `body` that jump."""
    return (body.makers[number] for number in late if jumps(body.ops[number]))


def read_together(body: Numbered, stand_for: Mapping[ir.Value, ir.Value]) -> Iterator[list[ir.Value]]:
    """Yields for each operation that jumps what the values that it reads stand for, if it reads several."""
    for number, op in enumerate(body.ops):
        if jumps(op):
            makers = closure(body.makers[number], partial(_before, body))
            through = [number, *(maker for maker in makers if _shows_ties(body.ops[maker]))]
            values = {value for each in through for value in body.operands[each]}
            read = [value for given, value in stand_for.items() if given in values]
            if len(read) > 1:
                yield read


def _inexact(body: Numbered, is_again: Callable[[int], bool]) -> set[int]:
    """The operations that may be done again, and then may make another last bit."""
    found: set[int] = set()
    for number, op in enumerate(body.ops):
        if is_again(number) and (rounds(op) or not found.isdisjoint(body.makers[number])):
            found.add(number)
    return found


def _tied(body: Numbered, makers: Sequence[int], inexact: set[int]) -> Iterator[tuple[int, int]]:
    """Yields what `ties` does for one operation that jumps."""
    behind = closure(makers, partial(_before, body))
    users: dict[int, set[int]] = {number: {_JUMP} if number in makers else set() for number in behind}
    for number in behind:
        for maker in _before(body, number):
            users[maker].add(number)
    for number in inexact.intersection(behind):
        if len(users[number]) > 1:
            made = closure(users[number], lambda each: users.get(each, ()))
            yield from ((each, number) for each in made if each != _JUMP)


def _before(body: Numbered, number: int) -> Sequence[int]:
    """The operations that may make what ties in the results of one."""
    return body.makers[number] if _shows_ties(body.ops[number]) else ()


def _shows_ties(op: ir.Operation) -> bool:
    """Whether a tie of operands of `op` may still be one of its results: it is arithmetic, a view or a choice."""
    if op.name in _REDUCING:
        return reducer(op) in _CHOOSING
    return traits(op).cheap or op.name in _SELECTING
