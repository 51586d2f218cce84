"""The registers of a program flattened for dispatch: one list for all meshes of this process."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from jaxpp.ir.program import Place

Operands = Callable[[list[Any]], Sequence[Any]]

NOTHING: Operands = operator.itemgetter(slice(0, 0))
"""The operands of a step that asks other processes for values, which may come only after later steps."""


class Registers:
    """The flat registers so far.

    Attributes:
        numbers: (mesh, the mesh's register) -> flat register.
        count: the number of flat registers.
    """

    def __init__(self) -> None:
        self.numbers: dict[Place, int] = {}
        self.count = 0

    def define(self, places: Sequence[Place]) -> slice:
        """Defines flat registers of these (mesh, register) pairs, next to each other."""
        for place in places:
            if place not in self.numbers:
                self.numbers[place] = self.count
                self.count += 1
        start = self.numbers[places[0]] if places else self.count
        return slice(start, start + len(places))

    def number(self, mesh: int, register: int) -> int:
        """Returns the flat register of a (mesh, register); defines it for an argument or a constant."""
        place = mesh, register
        return self.numbers[place] if place in self.numbers else self.define([place]).start

    def reserve(self, count: int) -> range:
        """Returns new flat registers that stand for no register of a mesh."""
        self.count += count
        return range(self.count - count, self.count)

    def read(self, mesh: int, registers: Sequence[int]) -> Operands:
        """Returns a function that reads registers of a mesh."""
        return getter([self.number(mesh, register) for register in registers])


def getter(numbers: Sequence[int]) -> Operands:
    """Returns a function that reads these flat registers, always as a sequence."""
    if len(numbers) > 1:
        return operator.itemgetter(*numbers)
    start = numbers[0] if numbers else 0
    return operator.itemgetter(slice(start, start + len(numbers)))
