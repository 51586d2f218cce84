"""Ties: values that a comparison finds equal, or apart by a whole number, because one is chosen from the other.

The gradient of a maximum compares the maximum with what it is of: equal elements get the gradient. If one of the two is
kept and the other one made again, which may round otherwise, none is equal, and the gradient is lost, or 0 / 0.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from jaxlib.mlir import ir

from jaxpp.ir.functions import reducer
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import jumps, rounds, traits
from jaxpp.ir.values import closure

_CHOOSING = frozenset(f"stablehlo.{name}" for name in ("and", "maximum", "minimum", "or"))
_REDUCING = frozenset(f"stablehlo.{name}" for name in ("reduce", "reduce_window", "scatter"))
_SELECTING = frozenset(("chlo.top_k", "stablehlo.gather", "stablehlo.sort"))


def ties(body: Numbered, late: Iterable[int], is_again: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
    """Yields pairs of operations of `body`: where the result of the first is kept, the second is not done again.

    A comparison, or another operation whose result jumps, reads both: the first, which is made of the second, and the
    second on another way.

    Args:
        body: the operations.
        late: those that the later half may do.
        is_again: whether the later half may do an operation of the early one again.
    """
    inexact = _inexact(body, is_again)
    for number in late:
        if inexact and jumps(body.ops[number]):
            yield from _tied(body, number, inexact)


def _inexact(body: Numbered, is_again: Callable[[int], bool]) -> set[int]:
    """The operations that may be done again, and then may make another last bit."""
    found: set[int] = set()
    for number, op in enumerate(body.ops):
        if is_again(number) and (rounds(op) or not found.isdisjoint(body.makers[number])):
            found.add(number)
    return found


def _tied(body: Numbered, deciding: int, inexact: set[int]) -> Iterator[tuple[int, int]]:
    """Yields what `ties` does for one operation that decides."""

    def before(number: int) -> Sequence[int]:
        return body.makers[number] if number == deciding or _shows_ties(body.ops[number]) else ()

    behind = sorted(closure([deciding], before))
    users: dict[int, list[int]] = {number: [] for number in behind}
    for number in behind:
        for maker in before(number):
            users[maker].append(number)
    for number in inexact.intersection(behind):
        if len(users[number]) > 1:
            made = closure(users[number], users.__getitem__)
            yield from ((each, number) for each in made if each != deciding)


def _shows_ties(op: ir.Operation) -> bool:
    """Whether a tie of operands of `op` may still be one of its results: it is arithmetic, a view or a choice."""
    if op.name in _REDUCING:
        return reducer(op) in _CHOOSING
    return traits(op).cheap or op.name in _SELECTING
