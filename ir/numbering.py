"""Finds which operations, values and functions are equal. Those that can't be compared are unequal.

`kind_of` compares operations by what they do, whatever values they take. `Numbering` compares values: two have one
number only if the same operations make them from the same values, and none of these operations has a side effect.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import (
    CONDITIONALS,
    blocks_of,
    has_side_effect,
    name_of,
    operations,
    reachable,
    symbols_in,
    terminator,
)
from jaxpp.ir.ops import traits
from jaxpp.ir.tensors import constant_text
from jaxpp.ir.values import defining_op

_PER_RESULT = (at.SHARDING, "in_shardings", "out_shardings")


def attributes_of(op: ir.Operation, without: Collection[str] = ()) -> Hashable:
    """Returns the attributes of `op` but those `without`, as a key: equal for operations with equal attributes."""
    try:
        read = op.attributes.items()
    except TypeError:  # jaxlib can't read attributes of complex numbers
        is_constant = op.name == "stablehlo.constant"
        read = [(name, constant_text(op) if is_constant and name == "value" else object()) for name in op.attributes]
    return tuple([each for each in read if each[0] not in without] if without else read)


def kind_of(op: ir.Operation, without: Collection[str] = ()) -> tuple[Hashable, list[ir.Value]]:
    """Returns a key of what an operation does, and the values from outside that it takes: in order, one for each use.

    The keys are equal for two operations that make the same results from equal values. A key ignores side effects, and
    the attributes `without`.
    """
    uses: list[ir.Value] = []
    return _kind(op, uses, {}, without), uses


def _kind(op: ir.Operation, uses: list[ir.Value], inside: dict[ir.Value, int], without: Collection[str]) -> Hashable:
    """Returns the key of `kind_of`; adds the values that are not `inside` of the outermost operation to `uses`."""
    operands: list[Hashable] = []
    for value in op.operands:
        number = inside.get(value)
        operands.append(value.type if number is None else number)
        if number is None:
            uses.append(value)
    regions: list[Hashable] = []
    for region in op.regions if len(op.regions) else ():
        blocks = list(region.blocks)
        regions.append(len(blocks) if len(blocks) < 2 else object())  # branches between blocks are not read: unequal
        for block in blocks:
            for argument in block.arguments:
                inside[argument] = len(inside)
            regions.append(tuple([argument.type for argument in block.arguments]))
            for inner in operations(block):
                regions.append(_kind(inner, uses, inside, without))
                for result in inner.results:
                    inside[result] = len(inside)
    types = tuple([result.type for result in op.results])
    return op.name, attributes_of(op, without), tuple(operands), tuple(regions), types


class Numbering:
    """Numbers values on demand: values of one number are equal.

    A loop, a conditional, a sort or a `shard_map` is compared result by result. So the final carry of a `lax.scan`
    equals that of the loop in its gradient, which carries more.

    Between two queries, only operations after all queried values may be edited.

    Args:
        same: returns the value that an operation hands on as its result of this position, or None. The result then has
            the number of that value.
        without: the names of attributes that don't count.
    """

    def __init__(
        self,
        same: Callable[[ir.Operation, int], ir.Value | None] | None = None,
        without: Collection[str] = (),
    ) -> None:
        self._hands_on = same
        self._without = without
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[ir.Value, int] = {}
        self._inputs: dict[ir.Value, Sequence[ir.Value]] = {}
        self._carried: dict[ir.Value, list[int]] = {}
        self._depth = 0

    def of(self, value: ir.Value) -> int:
        """Returns the number of `value`."""
        known, work = self._known, [value]
        while work:
            value = work[-1]
            missing = [] if value in known else [each for each in self._reads(value) if each not in known]
            work.extend(reversed(missing))
            if not missing:
                work.pop()
                if value not in known:
                    known[value] = self._number(value)
        return known[value]

    def _find(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _reads(self, value: ir.Value) -> Sequence[ir.Value]:
        """Returns the values on which `value` depends, from outside of the operation that makes it."""
        if value not in self._inputs:
            self._inputs[value] = self._find_inputs(value)
        return self._inputs[value]

    def _same(self, op: ir.Operation, number: int) -> ir.Value | None:
        return None if self._hands_on is None else self._hands_on(op, number)

    def _find_inputs(self, value: ir.Value) -> Sequence[ir.Value]:
        op = defining_op(value)
        if op is None:
            return ()
        number = ir.OpResult(value).result_number
        same = self._same(op, number)
        if same is not None:
            return [same]
        if op.name == "stablehlo.while":
            return self._read_loop(op, number)
        if op.name in CONDITIONALS:
            return [*op.operands, *self._outside(op, [terminator(block).operands[number] for block in blocks_of(op)])]
        return kind_of(op)[1] if len(op.regions) else list(op.operands)

    def _read_loop(self, loop: ir.Operation, number: int) -> list[ir.Value]:
        """Finds the values on which a result of a loop depends, and records the positions of the carried ones.

        Equal loops have the positions in one order: the order in which the test, and then the body, use them.
        """
        test, body = blocks_of(loop)
        if is_invariant(body, number):
            return [loop.operands[number]]
        positions: list[int] = []
        inputs: dict[ir.Value, None] = {}

        def read(value: ir.Value) -> None:
            for used in self._outside(loop, [value]):
                if not isinstance(used, ir.BlockArgument) or used.owner not in (test, body):
                    inputs[used] = None
                elif is_invariant(body, used.arg_number):
                    inputs[loop.operands[used.arg_number]] = None
                elif used.arg_number not in positions:
                    positions.append(used.arg_number)

        read(terminator(test).operands[0])
        if number not in positions:
            positions.append(number)
        for position in positions:  # grows on the way
            inputs[loop.operands[position]] = None
            read(terminator(body).operands[position])
        self._carried[loop.results[number]] = positions
        return list(inputs)

    def _outside(self, op: ir.Operation, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the values from which `op` makes `values`: arguments of its blocks, and values from outside."""
        blocks, work = blocks_of(op), [*reversed(values)]
        seen: dict[ir.Value, bool] = {}
        while work:
            value = work.pop()
            if value in seen:
                continue
            maker = defining_op(value)
            seen[value] = maker is None or maker.block not in blocks
            if not seen[value]:
                work.extend(reversed(self._reads(value)))
        return [value for value, is_outside in seen.items() if is_outside]

    def _number(self, value: ir.Value) -> int:
        """Returns the number of a value; all values that it reads have theirs."""
        op = defining_op(value)
        if op is None:
            return self._find(object())
        number = ir.OpResult(value).result_number
        same = self._same(op, number)
        if same is not None:
            return self._known[same]
        if op.name == "stablehlo.while":
            return self._number_loop(op, number)
        if op.name in CONDITIONALS:
            made = [self._inside({}, [terminator(block).operands[number]]) for block in blocks_of(op)]
            return self._find((*self._result_of(op, number), *(self._known[each] for each in op.operands), *made))
        if op.name == "stablehlo.sort" and _is_stable(op):
            return self._number_sorted(op, number)
        if op.name == at.SHARD_MAP:
            return self._number_mapped(op, number)
        if has_side_effect(op) or self._calls_effects(op):
            return self._find(object())
        kind, uses = kind_of(op, self._without)
        if traits(op).collective and "channel_handle" in op.attributes:
            channel = stablehlo.ChannelHandle(op.attributes["channel_handle"])
            kind = (kind_of(op, {*self._without, "channel_handle"})[0], channel.handle > 0, channel.channel_type)
        return self._find((kind, tuple([self._known[each] for each in uses]), number))

    def _result_of(self, op: ir.Operation, *numbers: int) -> tuple[Hashable, ...]:
        """Returns a key of these results of an operation: its attributes, and their types and shardings."""
        results = [op.results[number] for number in numbers]
        shardings = tuple([at.value_sharding(each) for each in results])
        types = tuple([each.type for each in results])
        return op.name, attributes_of(op, {*self._without, *_PER_RESULT}), types, shardings

    def _inside(self, arguments: Mapping[ir.Value, int], values: Sequence[ir.Value]) -> tuple[int, ...]:
        """Returns the numbers of values in a region whose arguments have these numbers; forgets both afterwards."""
        size = len(self._known)
        self._known.update(arguments)
        self._depth += 1
        numbers = tuple([self.of(each) for each in values])
        self._depth -= 1
        while len(self._known) > size:
            self._known.popitem()
        return numbers

    def _number_loop(self, loop: ir.Operation, number: int) -> int:
        test, body = blocks_of(loop)
        if is_invariant(body, number):
            return self._known[loop.operands[number]]
        positions = self._carried[loop.results[number]]
        numbers = {
            position: self._find(("carried", self._depth, place, loop.operands[position].type))
            for place, position in enumerate(positions)
        }
        for position, value in enumerate(loop.operands):
            if position not in numbers and value in self._known and is_invariant(body, position):
                numbers[position] = self._known[value]
        arguments = {block.arguments[each]: number for block in (test, body) for each, number in numbers.items()}
        returned = [terminator(body).operands[position] for position in positions]
        made = self._inside(arguments, [terminator(test).operands[0], *returned])
        begun = tuple([self._known[loop.operands[position]] for position in positions])
        return self._find((*self._result_of(loop, *positions), begun, made, positions.index(number)))

    def _number_sorted(self, op: ir.Operation, number: int) -> int:
        """Numbers a result of a stable sort. Only its own operand and those that the comparison reads count."""
        (block,) = blocks_of(op)
        arguments: dict[ir.Value, int] = {
            argument: self._find(("compared", self._depth, self._known[op.operands[place // 2]], place % 2))
            for place, argument in enumerate(block.arguments)
        }
        made = self._inside(arguments, terminator(block).operands)
        return self._find((*self._result_of(op, number), self._known[op.operands[number]], made))

    def _number_mapped(self, op: ir.Operation, number: int) -> int:
        """Numbers a result of a `shard_map`."""
        (block,) = blocks_of(op)
        given = sdy.TensorShardingPerValueAttr(op.attributes["in_shardings"]).shardings
        arguments: dict[ir.Value, int] = {
            argument: self._find(("local", self._depth, self._known[value], sharding, argument.type))
            for argument, value, sharding in zip(block.arguments, op.operands, given, strict=True)
        }
        made = self._inside(arguments, [terminator(block).operands[number]])
        return self._find((*self._result_of(op, number), made))

    def _calls_effects(self, op: ir.Operation) -> bool:
        """Whether `op` calls a function that has a side effect, or that the module lacks."""
        names = symbols_in(op)
        if not names:
            return False
        while op.parent is not None:
            op = op.parent.operation
        by_name = {
            name_of(each): each.operation for each in blocks_of(op)[0].operations if "sym_name" in each.attributes
        }
        return not by_name.keys() >= {*names} or any(
            has_side_effect(by_name[each]) for name in names for each in reachable(name, by_name)
        )


def is_invariant(body: ir.Block, position: int) -> bool:
    """Whether the body of a loop hands on the carried value at `position` as it is."""
    return terminator(body).operands[position] == body.arguments[position]


def _is_stable(sort: ir.Operation) -> bool:
    flag = sort.attributes.get("is_stable")
    return isinstance(flag, ir.BoolAttr) and flag.value
