"""Writes the two loops and the two conditionals for each of those that make values of both halves of a computation."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from jaxpp.hlo_passes.stages.open_loops import OpenLoop
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant, remake, sharded, shardings
from jaxpp.ir.functions import blocks_of, has_side_effect, operations, terminator
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.outlining import clone_into
from jaxpp.ir.shardings import MeshAxes
from jaxpp.ir.values import block_of


class Halved(NamedTuple):
    """The two halves of a computation, as decided before any edit.

    They are the input gradient and the weight gradient of a backward, or a forward and the recompute of its residuals.

    Attributes:
        constructs: the loops and conditionals that make values of both. An outer one comes before those inside of it.
        early: the values that the first half makes, also inside of `constructs`.
        late: the values that the second half makes.
        kept: the values that the first half keeps for the second one, of each trip where they are in a loop.
        acting: the operations with side effects of the first half, and those of the second one.
        barriers: maps each result of a barrier in `constructs` at which the second half does not wait to the value that
            enters the first barrier of its chain.
        twins: maps values to those that replace them in the second half; it gains the results of `constructs`.
    """

    constructs: list[ir.Operation]
    early: set[ir.Value]
    late: set[ir.Value]
    kept: list[ir.Value]
    acting: tuple[list[ir.Operation], list[ir.Operation]]
    barriers: dict[ir.Value, ir.Value]
    twins: dict[ir.Value, ir.Value]

    @property
    def early_barriers(self) -> Mapping[ir.Value, ir.Value]:
        """The entries of `barriers` for the barriers at which the first half does not wait either."""
        return {result: value for result, value in self.barriers.items() if result not in self.early}

    @property
    def late_values(self) -> Mapping[ir.Value, ir.Value]:
        """The values that the second half uses in place of others."""
        return {**self.barriers, **self.twins}


class _Written(NamedTuple):
    """The two operations that replace a loop or a conditional.

    Attributes:
        first: the operation of the first half.
        second: the operation of the second half.
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

    Returns the values outside of them that the first half keeps for the second one. The new operations with side
    effects join `halved.acting`. The old ones stay, without uses, because `halved` has their values as keys.
    """
    kept = dict.fromkeys(halved.kept)
    for op in reversed(halved.constructs):
        written = (_write_loops if op.name == "stablehlo.while" else _write_conditionals)(op, halved, kept, mesh)
        outside = (value for value in kept if block_of(value) not in blocks_of(op))
        kept = dict.fromkeys([*(written.results.get(value, value) for value in outside), *written.kept])
        new = {**written.late, **written.results}
        # The operations around this one look through barriers, and must not find the old operation there.
        halved.barriers.update({end: new[value] for end, value in halved.barriers.items() if value in new})
        shared = halved.early & halved.late & written.late.keys()
        halved.twins.update({written.results[old]: written.late[old] for old in shared} | {**written.late})
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
    first = loop.write(early, mesh, kept=inside, same=halved.early_barriers, acting=halved.acting[0])
    second = loop.write(late, mesh, read=first.stacks, same=halved.late_values, acting=halved.acting[1])
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
    blocks = blocks_of(op)
    slots, places = _slots([[value for value in kept if block_of(value) == block] for block in blocks], mesh)
    first, second = _remade(op, early, slots), _remade(op, late, [])
    handed_on = list(first.results)[len(early) :]
    for block, place, one, other in zip(blocks, places, first.regions, second.regions, strict=True):
        values: dict[ir.Value, ir.Value] = {}
        returned = _write(block, one, early, values, place, halved.early_barriers, halved.acting[0])
        filled = {number: values[value] for value, number in place.items()}
        with ir.InsertionPoint(one.blocks[0]), terminator(block).location:
            rest = [
                filled[number] if number in filled else sharded(constant(type_, 0), sharding)
                for number, (type_, sharding) in enumerate(slots)
            ]
            stablehlo.return_([*returned, *rest])
        values = {value: handed_on[number] for value, number in place.items()}
        returned = _write(block, other, late, values, (), halved.late_values, halved.acting[1])
        stablehlo.return_(returned, ip=ir.InsertionPoint(other.blocks[0]), loc=terminator(block).location)
    results, later = (
        {op.results[number]: result for number, result in zip(numbers, made.results, strict=False)}
        for made, numbers in ((first, early), (second, late))
    )
    for old, new in (*results.items(), *later.items()):
        old.replace_all_uses_with(new)
    return _Written(first, second, results, later, handed_on)


def _write(
    block: ir.Block,
    region: ir.Region,
    numbers: Sequence[int],
    values: dict[ir.Value, ir.Value],
    kept: Iterable[ir.Value],
    barriers: Mapping[ir.Value, ir.Value],
    acting: Collection[ir.Operation],
) -> list[ir.Value]:
    """Writes into `region` the operations of the branch `block` that results with these numbers and `kept` take.

    `values` replaces values that these operations use, and gains the values that they make. Returns the results.
    """
    body = Numbered(operations(block)[:-1])
    returned = [terminator(block).operands[number] for number in numbers]
    instead = {value: [other] for value, other in barriers.items()} | {value: [] for value in values}
    _, ops = body.part([*returned, *kept], instead, acting)
    clone_into(ir.Block.create_at_start(region), [body.ops[op] for op in ops], values, barriers)
    return [values.get(value, value) for value in (barriers.get(value, value) for value in returned)]


_Slot = tuple[ir.Type, ir.Attribute | None]
"""The type and the sharding of a value that the first conditional returns for the second."""


def _slots(held: Iterable[Sequence[ir.Value]], mesh: MeshAxes | None) -> tuple[list[_Slot], list[dict[ir.Value, int]]]:
    """Returns the slots for the kept values of all branches, and for each branch the index of each value's slot.

    For each type and sharding there are as many slots as the branch that keeps the most such values needs.
    """
    slots: list[_Slot] = []
    places: list[dict[ir.Value, int]] = []
    for values in held:
        place: dict[ir.Value, int] = {}
        taken: set[int] = set()
        for value in values:
            slot = value.type, None if mesh is None else mesh.attribute(mesh.read(value))
            free = (number for number, each in enumerate(slots) if each == slot and number not in taken)
            place[value] = next(free, len(slots))
            taken.add(place[value])
            if place[value] == len(slots):
                slots.append(slot)
        places.append(place)
    return slots, places


def _remade(op: ir.Operation, numbers: Sequence[int], more: Sequence[_Slot]) -> ir.Operation:
    """Returns a copy of the conditional with empty branches, whose results are `numbers` of `op` and then `more`."""
    kept = [(op.results[number].type, at.value_sharding(op.results[number])) for number in numbers]
    types, known = zip(*kept, *more, strict=True)
    return remake(op, types=types, changed=shardings(known), empty=True)
