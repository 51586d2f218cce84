"""Writes the two loops and the two conditionals for each of those that make both gradients of a backward."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.fission import Halved
from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant, remake, sharded, shardings
from jaxpp.ir.functions import blocks_of, has_side_effect, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.outlining import clone_into
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import block_of


class _Written(NamedTuple):
    """The two operations that replace a loop or a conditional.

    Attributes:
        first: the operation of the input gradient.
        second: the operation of the weight gradient.
        results: maps results of the old operation to those of `first` that replace them.
        late: the same for `second`.
        kept: the results of `first` that `second` reads.
    """

    first: ir.Operation
    second: ir.Operation
    results: Mapping[ir.Value, ir.Value]
    late: Mapping[ir.Value, ir.Value]
    kept: Iterable[ir.Value]


def write_constructs(halved: Halved, mesh: MeshAxes | None) -> list[ir.Value]:
    """Writes the two operations for each of `halved.constructs`, those inside of others first.

    Returns the values outside of them that the input gradient keeps for the weight gradient. The new operations with
    side effects join `halved.acting`. The old ones stay, without uses, because `halved` has their values as keys.
    """
    kept = dict.fromkeys(halved.kept)
    for op in reversed(halved.constructs):
        written = (_write_loops if op.name == "stablehlo.while" else _write_conditionals)(op, halved, kept, mesh)
        outside = (value for value in kept if block_of(value) not in blocks_of(op))
        kept = dict.fromkeys([*(written.results.get(value, value) for value in outside), *written.kept])
        new = {**written.late, **written.results}
        # The operations around this one look through barriers, and must not find the old operation there.
        halved.barriers.update({end: new[value] for end, value in halved.barriers.items() if value in new})
        for acting, made in zip(halved.acting, (written.first, written.second), strict=True):
            if has_side_effect(made):
                acting.append(made)
    return list(kept)


def _write_loops(op: ir.Operation, halved: Halved, kept: Collection[ir.Value], mesh: MeshAxes | None) -> _Written:
    """Writes two loops. The first one stacks the values of `kept` for the second one."""
    loop = OpenLoop(op)
    early, late = (
        [position for argument, position in loop.arguments.items() if argument in values]
        for values in (halved.early, halved.late)
    )
    inside = [value for value in kept if value in loop.inside]
    first = loop.first(early, inside, mesh, halved.early_barriers, halved.acting[0])
    second = loop.second(late, first.stacks, mesh, halved.barriers, halved.acting[1])
    stacks = [stack for stack, _ in first.stacks.values()]
    return _Written(first.op, second.op, first.results, second.results, stacks)


def _write_conditionals(
    op: ir.Operation, halved: Halved, kept: Collection[ir.Value], mesh: MeshAxes | None
) -> _Written:
    """Writes two conditionals, which take the same branch.

    The first one also returns the values of `kept`. Branches share these additional results where types and shardings
    match. A branch that has no value for one of them returns zeros.
    """
    early, late = (
        [number for number, result in enumerate(op.results) if result in values]
        for values in (halved.early, halved.late)
    )
    branches = [_Branch(block, halved, kept) for block in blocks_of(op)]
    slots = _slots(branches, mesh)
    first = _remade(op, early, slots)
    second = _remade(op, late, [])
    for branch, one, other in zip(branches, first.regions, second.regions, strict=True):
        place = branch.places(slots, mesh)
        branch.write_first(one, early, slots, place)
        branch.write_second(other, late, {v: first.results[len(early) + number] for v, number in place.items()})
    results, later = (
        {op.results[number]: result for number, result in zip(numbers, made.results, strict=False)}
        for made, numbers in ((first, early), (second, late))
    )
    for old, new in (*results.items(), *later.items()):
        old.replace_all_uses_with(new)
    return _Written(first, second, results, later, list(first.results)[len(early) :])


_Slot = tuple[ir.Type, ir.Attribute | None]
"""The type and the sharding of a value that the first conditional returns for the second."""


class _Branch:
    """A branch of a conditional that becomes two.

    Attributes:
        kept: the values that the first conditional makes and the second one reads.
    """

    def __init__(self, block: ir.Block, halved: Halved, kept: Iterable[ir.Value]) -> None:
        self._body = Numbered(operations(block)[:-1])
        self._halved, self._end = halved, terminator(block)
        self.kept = [value for value in kept if value in self._body.producers]

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
        values = dict[ir.Value, ir.Value]()
        barriers, acting = self._halved.early_barriers, self._halved.acting[0]
        returned = self._write(region, early, values, self.kept, barriers, acting)
        kept = {number: values[value] for value, number in place.items()}
        with ir.InsertionPoint(region.blocks[0]), self._end.location:
            rest = [
                kept[number] if number in kept else sharded(constant(type_, 0), sharding)
                for number, (type_, sharding) in enumerate(slots)
            ]
            stablehlo.return_([*returned, *rest])

    def write_second(self, region: ir.Region, late: Sequence[int], handed_on: dict[ir.Value, ir.Value]) -> None:
        """Writes this branch of the second conditional into `region`.

        `handed_on` maps each kept value to the result of the first conditional that holds it.
        """
        returned = self._write(region, late, handed_on, (), self._halved.barriers, self._halved.acting[1])
        stablehlo.return_(returned, ip=ir.InsertionPoint(region.blocks[0]), loc=self._end.location)

    def _write(
        self,
        region: ir.Region,
        numbers: Sequence[int],
        values: dict[ir.Value, ir.Value],
        kept: Iterable[ir.Value],
        barriers: Mapping[ir.Value, ir.Value],
        acting: Collection[ir.Operation],
    ) -> list[ir.Value]:
        """Writes the operations that results with these numbers and the values `kept` take. Returns these results."""
        returned = [self._end.operands[number] for number in numbers]
        instead = {value: [other] for value, other in barriers.items()} | {value: [] for value in values}
        _, ops = self._body.part([*returned, *kept], instead, acting)
        clone_into(ir.Block.create_at_start(region), [self._body.ops[op] for op in ops], values, barriers)
        return [values.get(value, value) for value in (barriers.get(value, value) for value in returned)]


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
