"""Ties: values that a comparison finds equal, or apart by a whole number, because one is chosen from the other.

The gradient of a maximum compares the maximum with its operand: equal elements get the gradient. Suppose that one of
the two is kept, and that the other one is recomputed and rounds differently. Then no element is equal, and the gradient
is lost, or becomes 0 / 0.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from jaxlib.mlir import ir

from jaxpp.ir.functions import reducer
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import IDEMPOTENT, jumps, rounds, traits
from jaxpp.ir.values import closure

_JUMP = -1
"""The number of the operation that jumps, among the users of the values that it reads."""
_REDUCING = frozenset(f"stablehlo.{name}" for name in ("reduce", "reduce_window", "scatter"))
_SELECTING = frozenset(("chlo.top_k", "stablehlo.gather", "stablehlo.sort"))


def ties(
    body: Numbered,
    late: Iterable[int],
    is_again: Callable[[int], bool],
    together: Iterable[Sequence[ir.Value]] = (),
) -> Iterator[tuple[int, int]]:
    """Yields pairs of operations of `body`: where the result of the first is kept, the second is not repeated.

    An operation whose result jumps, such as a comparison, depends on both. It depends on the second through the first,
    and also along another path.

    Args:
        body: the operations.
        late: those that the late half may contain.
        is_again: whether the late half may repeat an operation of the early half.
        together: groups of values that an operation outside of `body` reads whose result jumps; see `read_together`.
    """
    inexact = _inexact(body, is_again)
    if inexact:
        groups = [body.makers[number] for number in late if jumps(body.ops[number])]
        groups += [[body.producers[value] for value in values if value in body.producers] for values in together]
        for makers in groups:
            yield from _tied(body, makers, inexact)


def read_together(body: Numbered, stand_for: Mapping[ir.Value, ir.Value]) -> Iterator[list[ir.Value]]:
    """Yields, for each operation that jumps, the values to which `stand_for` maps the values that it reads.

    It reads a value directly, or through operations that show ties. Operations that read fewer than two such values are
    left out.
    """
    for number, op in enumerate(body.ops):
        if jumps(op):
            makers = closure(body.makers[number], partial(_before, body))
            through = [number, *(maker for maker in makers if _shows_ties(body.ops[maker]))]
            values = {value for each in through for value in body.operands[each]}
            read = [value for given, value in stand_for.items() if given in values]
            if len(read) > 1:
                yield read


def _inexact(body: Numbered, is_again: Callable[[int], bool]) -> set[int]:
    """Returns the operations that may be repeated, and whose result may then differ in the last bit."""
    found: set[int] = set()
    for number, op in enumerate(body.ops):
        if is_again(number) and (rounds(op) or not found.isdisjoint(body.makers[number])):
            found.add(number)
    return found


def _tied(body: Numbered, makers: Sequence[int], inexact: set[int]) -> Iterator[tuple[int, int]]:
    """Yields the pairs of `ties` for one operation that jumps, which reads the results of `makers`."""
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
    """Returns the operations that make the operands of an operation that shows ties; none for any other operation."""
    return body.makers[number] if _shows_ties(body.ops[number]) else ()


def _shows_ties(op: ir.Operation) -> bool:
    """Whether values tied at the operands of `op` may be tied at its results: `op` is cheap, a choice or a sort."""
    if op.name in _REDUCING:
        return reducer(op) in IDEMPOTENT
    return traits(op).cheap or op.name in _SELECTING
