"""Splits a `shard_map` with marks in its body, or one whose backward is split, into several."""

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import clone, remake, replace
from jaxpp.ir.functions import body_of, nested, operands_with_captures, operations
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.ops import traits
from jaxpp.ir.rows import stack_type
from jaxpp.ir.shardings import MeshAxes, manual_axes, shard_count


def split_shard_maps(loop: MicrobatchLoop, mesh: MeshAxes) -> None:
    """Splits each `shard_map` of the loop that has marks, or all of them if the schedule splits backwards.

    A value that passes between two parts is one value per device. It gets a new first dimension with one entry per
    device along the axes of the `shard_map`, and is sharded over it. It takes the same memory, and nothing is sent.
    Light operations form one part if they depend on the same products, collectives and marks, and the same marks and
    results depend on them. The casts of the weights of two stages are thus two parts. Each part makes its own
    constants. Marks inside of a conditional stay.

    ```mlir
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}, {}]>]          // %x: 4x6, on each device 2x6
         out_shardings=[<@mesh, [{}, {"a"}]>] manual_axes={"a"} (%l: 2x6) {
      %1 = stablehlo.all_to_all %l
      %2 = stablehlo.optimization_barrier %1 {jaxpp.boundary}
      %3 = stablehlo.tanh %2
      sdy.return %3 }
    ==>
    %0 = sdy.manual_computation(%x) ... out_shardings=[<@mesh, [{"a"}, {}, {}]>] (%l: 2x6) {
      %1 = stablehlo.all_to_all %l
      %2 = stablehlo.reshape %1
      sdy.return %2 }                                                            // %0: 2x4x3, on each device 1x4x3
    %4 = stablehlo.optimization_barrier %0 {jaxpp.boundary}
    %5 = sdy.manual_computation(%4) in_shardings=[<@mesh, [{"a"}, {}, {}]>] ...
    ```
    """
    inside = [op for op in nested(loop.op) if op.name == at.SHARD_MAP]
    if not loop.stages_with("weight_grad"):
        inside = [op for op in inside if any(map(boundary.is_any_mark, nested(op)))]
    for op in reversed(inside):  # inner ones first
        if _is_in_loop(op):
            replace(op, _Split(mesh, op).results())


def _is_in_loop(op: ir.Operation) -> bool:
    """Whether `op` stands directly in the body of the microbatch loop, or in a `shard_map` that does."""
    above = op.parent
    return above is not None and (
        at.LOOP in above.attributes or (above.operation.name == at.SHARD_MAP and _is_in_loop(above.operation))
    )


@dataclass(eq=False)
class _Part:
    """Operations that become one `shard_map`.

    Attributes:
        needs: the products, collectives and marks on which they depend, one bit each.
        ops: the operations.
    """

    needs: int
    ops: list[ir.Operation]

    @property
    def inputs(self) -> list[ir.Value]:
        """The values that the operations use and do not make."""
        made = {result for op in self.ops for result in op.results}
        return [v for v in dict.fromkeys(v for op in self.ops for v in operands_with_captures(op)) if v not in made]


class _Split:
    """A `shard_map` that is being split. `_across` maps values that its parts exchange to their values outside."""

    def __init__(self, mesh: MeshAxes, op: ir.Operation) -> None:
        self._op, self._body = op, body_of(op)
        *self._ops, end = operations(self._body)
        self._returned = list(end.operands)
        axes = manual_axes(op)
        self._mesh, self._is_whole = mesh, len(axes) == len(mesh.named)
        self._axes = [axis for axis in axes if mesh.sizes[axis] > 1]
        self._devices = mesh.count(self._axes)
        self._count = at.i64(shard_count(op, mesh.sizes))
        self._inside, self._outside = (
            list(sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings)
            for name in ("in_shardings", "out_shardings")
        )
        self._constants: dict[ir.Value, ir.Operation] = {}
        for each in self._ops:
            if traits(each).cheap and all(value in self._constants for value in each.operands):
                self._constants[each.results[0]] = each
        self._across: dict[ir.Value, ir.Value] = {}
        self._results: dict[int, ir.Value] = {}

    def results(self) -> list[ir.Value]:
        """Makes the parts before the `shard_map`; returns the replacements of its results."""
        parts = self._parts()
        used = {value for part in parts for value in part.inputs}
        for part in parts:
            if boundary.is_any_mark(part.ops[0]):
                self._mark(part.ops[0])
                continue
            made = [result for op in part.ops for result in op.results]
            self._make(part, [v for v in made if v in used], [n for n, v in enumerate(self._returned) if v in made])
        for number in range(len(self._returned)):
            if number not in self._results:  # a mark, argument or constant, each of its own stage
                self._make(_Part(0, []), [], [number])
        return [self._results[number] for number in range(len(self._returned))]

    def _parts(self) -> list[_Part]:
        """Returns the parts in an order in which values are made before their uses and marks keep their order."""
        needs: dict[ir.Value, int] = {}
        serves = self._serves()
        light: dict[tuple[int, int], _Part] = {}
        heavy: list[_Part] = []
        for op in self._ops:
            if op.results and op.results[0] in self._constants:
                continue
            before = _union(needs, operands_with_captures(op))
            if traits(op).light:
                light.setdefault((before, _union(serves, op.results)), _Part(before, [])).ops.append(op)
                own = 0
            else:
                own = 1 << len(heavy)
                heavy.append(_Part(before, [op]))
            needs.update((result, before | own) for result in op.results)
        ordered: list[_Part] = []
        for part in (*heavy, None):
            ready = [key for key in light if part is None or not key[0] & ~part.needs]
            ready.sort(key=lambda key: (key[0].bit_count(), -key[1].bit_count()))
            ordered += [light.pop(key) for key in ready]
            ordered += [part] if part else []
        return ordered

    def _serves(self) -> dict[ir.Value, int]:
        """Returns, for each value, the marks and results that depend on it, one bit each."""
        serves: dict[ir.Value, int] = {}
        for number, value in enumerate(self._returned):
            serves[value] = serves.get(value, 0) | 1 << number
        marks = len(self._returned)
        for op in reversed(self._ops):
            served = _union(serves, op.results)
            if boundary.is_any_mark(op):
                served |= 1 << marks
                marks += 1
            serves.update((value, serves.get(value, 0) | served) for value in operands_with_captures(op))
        return serves

    def _mark(self, mark: ir.Operation) -> None:
        lacking = [value for value in mark.operands if value not in self._across]
        if lacking:  # arguments and constants
            self._make(_Part(0, []), lacking, [])
        operands = [self._across[value] for value in mark.operands]
        made = remake(mark, operands, [value.type for value in operands], ip=ir.InsertionPoint(self._op))
        self._across.update(zip(mark.results, made.results, strict=True))

    def _make(self, part: _Part, across: Sequence[ir.Value], returned: Sequence[int]) -> None:
        """Makes a part that hands `across` to other parts and computes the results with the indices `returned`."""
        own = [self._returned[number] for number in returned]
        made = {result for op in part.ops for result in op.results}
        needed = dict.fromkeys((*part.inputs, *(value for value in (*across, *own) if value not in made)))
        inputs = [value for value in needed if value not in self._constants]
        new = self._new(inputs, across, returned)
        into = ir.Block.create_at_start(new.regions[0], [self._local(value) for value in inputs])
        ip, values = ir.InsertionPoint(into), dict[ir.Value, ir.Value]()
        for value, argument in zip(inputs, into.arguments, strict=True):
            is_own = value.owner == self._body
            values[value] = argument if is_own else stablehlo.reshape(value.type, argument, ip=ip, loc=new.location)
        for op in (*self._constants_behind(needed), *part.ops):
            clone(op, values, ip)
        handed = [stablehlo.reshape(stack_type(v.type, 1), values[v], ip=ip, loc=new.location) for v in across]
        sdy.return_([*handed, *(values[value] for value in own)], ip=ip, loc=new.location)
        self._across.update(zip(across, new.results, strict=False))
        self._results.update(zip(returned, list(new.results)[len(across) :], strict=True))

    def _new(self, inputs: Sequence[ir.Value], across: Sequence[ir.Value], returned: Sequence[int]) -> ir.Operation:
        """Makes a `shard_map` with these inputs and outputs and an empty body."""
        numbers: dict[ir.Value, int] = {argument: number for number, argument in enumerate(self._body.arguments)}
        operands = [self._op.operands[numbers[v]] if v in numbers else self._across[v] for v in inputs]
        before = [self._inside[numbers[v]] if v in numbers else self._sharding(v) for v in inputs]
        after = [*map(self._sharding, across), *(self._outside[number] for number in returned)]
        types = [stack_type(v.type, self._devices) for v in across] + [self._op.results[n].type for n in returned]
        named = {"in_shardings": before, "out_shardings": after}
        changed = {name: sdy.TensorShardingPerValueAttr.get(each) for name, each in named.items()}
        made = remake(self._op, operands, types, changed, empty=True)
        if shard_count(made, self._mesh.sizes) != self._count.value:
            made.attributes[at.DEVICES] = self._count
        return made

    def _constants_behind(self, values: Iterable[ir.Value]) -> list[ir.Operation]:
        """Returns the constants among `values`, and the operations that they are made of, in program order."""
        wanted = set(values)
        for result, op in reversed(self._constants.items()):
            if result in wanted:
                wanted.update(op.operands)
        return [op for result, op in self._constants.items() if result in wanted]

    def _local(self, value: ir.Value) -> ir.Type:
        return value.type if value.owner == self._body else stack_type(value.type, 1)

    def _sharding(self, value: ir.Value) -> ir.Attribute:
        """Returns the sharding of a value between parts: over the axes of the `shard_map` in its first dimension.

        The other dimensions are open to propagation if the `shard_map` is not manual over all axes.
        """
        first = sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(axis) for axis in self._axes], True)
        others = [sdy.DimensionShardingAttr.get([], self._is_whole)] * ir.RankedTensorType(value.type).rank
        return sdy.TensorShardingAttr.get(self._mesh.name, [first, *others])


def _union(bits: Mapping[ir.Value, int], values: Iterable[ir.Value]) -> int:
    return functools.reduce(operator.or_, (bits.get(value, 0) for value in values), 0)
