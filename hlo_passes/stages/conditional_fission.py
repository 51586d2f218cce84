"""Conditional fission: splits a conditional that makes both the input gradient and weight gradients into two."""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.block_halves import BlockHalves, Known
from jaxpp.hlo_passes.stages.cut import divide
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant, remake, sharded, shardings
from jaxpp.ir.functions import blocks_of, operations, terminator
from jaxpp.ir.outlining import clone_into
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import is_used


def divide_conditional(op: ir.Operation, known: Known, mesh: MeshAxes | None) -> None:
    """Writes the two conditionals that replace `op` in front of it, and leaves `op` without uses.

    Both conditionals take the same branch. The first one makes the values that the input gradient needs. It also
    returns the values that the second one reads: in each branch those with the fewest bytes. Branches share these
    additional results where types and shardings match. A branch that has no value for one of them returns zeros.
    """
    used = [number for number, result in enumerate(op.results) if is_used(result)]
    early = [number for number in used if op.results[number] in known.early]
    late = [number for number in used if number not in early]
    branches = [_Branch(block, known, early, late) for block in blocks_of(op)]
    slots = _slots(branches, mesh)
    first = _remade(op, early, [(type_, sharding) for type_, sharding in slots])
    second = _remade(op, late, [])
    for branch, one, other in zip(branches, first.regions, second.regions, strict=True):
        place = branch.places(slots, mesh)
        branch.write_first(one, early, slots, place)
        handed_on = {value: first.results[len(early) + number] for value, number in place.items()}
        branch.write_second(other, handed_on)
    for made, numbers in ((first, early), (second, late)):
        for result, number in zip(made.results, numbers, strict=False):
            op.results[number].replace_all_uses_with(result)
    known.divided(op, first.results)


_Slot = tuple[ir.Type, ir.Attribute | None]
"""The type and the sharding of a value that the first conditional returns for the second."""


class _Branch(BlockHalves):
    """A branch, divided into the operations of the first and the second conditional.

    Attributes:
        kept: the values that the first conditional makes and the second one reads.
    """

    def __init__(self, block: ir.Block, known: Known, early: Sequence[int], late: Sequence[int]) -> None:
        self._returned = list(terminator(block).operands)
        super().__init__(operations(block)[:-1], known, [self._returned[number] for number in early])
        self._location = terminator(block).location
        self._last = [self.past(self._returned[number]) for number in late]
        self.find_late(self._returned[number] for number in late)
        division = divide(self, self.late, self._last)
        self._first, self._second, self.kept = division.halves(self.body, self.early, self.late, self._last)

    def places(self, slots: Sequence[_Slot], mesh: MeshAxes | None) -> dict[ir.Value, int]:
        """Returns a distinct slot for each kept value: the index in `slots` of an entry with its type and sharding."""
        free = dict(enumerate(slots))
        found: dict[ir.Value, int] = {}
        for value in self.kept:
            found[value] = next(number for number, slot in free.items() if slot == _slot(value, mesh))
            del free[found[value]]
        return found

    def write_first(
        self, region: ir.Region, early: Sequence[int], slots: Sequence[_Slot], place: dict[ir.Value, int]
    ) -> None:
        """Writes this branch of the first conditional into `region`: it returns the early results, then all slots."""
        block, values = ir.Block.create_at_start(region), dict[ir.Value, ir.Value]()
        barriers = self.late_barriers()
        clone_into(block, self.all(self._first), values, barriers)
        returned = [barriers.get(self._returned[number], self._returned[number]) for number in early]
        kept = {number: values[value] for value, number in place.items()}
        with ir.InsertionPoint(block), self._location:
            rest = [
                kept[number] if number in kept else sharded(constant(type_, 0), sharding)
                for number, (type_, sharding) in enumerate(slots)
            ]
            stablehlo.return_([*(values.get(value, value) for value in returned), *rest])

    def write_second(self, region: ir.Region, handed_on: dict[ir.Value, ir.Value]) -> None:
        """Writes this branch of the second conditional into `region`.

        `handed_on` maps each kept value to the result of the first conditional that holds it.
        """
        block, values = ir.Block.create_at_start(region), dict(handed_on)
        clone_into(block, self.all(self._second), values, self.before_barriers)
        returned = [values.get(value, value) for value in self._last]
        stablehlo.return_(returned, ip=ir.InsertionPoint(block), loc=self._location)


def _slot(value: ir.Value, mesh: MeshAxes | None) -> _Slot:
    return value.type, None if mesh is None else mesh.attribute(mesh.read(value))


def _slots(branches: Sequence[_Branch], mesh: MeshAxes | None) -> list[_Slot]:
    """Returns, for each type and sharding, as many slots as the branch that keeps the most such values needs."""
    slots: list[_Slot] = []
    for branch in branches:
        free = list(slots)
        for value in branch.kept:
            slot = _slot(value, mesh)
            if slot in free:
                free.remove(slot)
            else:
                slots.append(slot)
    return slots


def _remade(op: ir.Operation, numbers: Sequence[int], more: Sequence[_Slot]) -> ir.Operation:
    """Returns a copy of the conditional with empty branches, whose results are `numbers` of `op` and then `more`."""
    kept = [(op.results[number].type, at.value_sharding(op.results[number])) for number in numbers]
    types, known = zip(*kept, *more, strict=True)
    return remake(op, types=types, changed=shardings(known), empty=True)
