"""Bounds loops that run long, or for a number of trips that depends on data: XLA can't be interrupted once it runs."""

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.ir import attributes as at
from jaxpp.ir.build import constant, recarried, remake, replace, shardings
from jaxpp.ir.counted import trips
from jaxpp.ir.functions import CONDITIONALS, body_of, loop_body, main_of, nested, operations, terminator

MOST_TRIPS = 100_000
"""The default bound, in trips: about a second for an empty loop."""


def bound_loops(module: ir.Module, most: int) -> list[ir.Location]:
    """Ends each loop whose number of trips is unknown, or more than `most`, after `most`; returns their locations.

    If there are such loops, `@main` gets an additional result: 0, or the number of a loop that reached its bound,
    counted from 1 in the returned list. The loops around that loop end too. Loops inside of operations other than
    loops and conditionals (in a shard_map, or in the test of a loop) stay as they are.
    """
    if not any(op.name == "stablehlo.while" and _is_long(op, most) for op in nested(module.operation)):
        return []
    with module.operation.location:
        InlineCalls().run(module)
        main = main_of(module)
        bounds = _Bounds(most)
        stopped = bounds.add(body_of(main))
    if stopped is None:
        return []
    end = terminator(body_of(main))
    remake(end, [*end.operands, stopped])
    end.erase()
    type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    main.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(type_.inputs, [*type_.results, stopped.type])
    )
    at.set_tables(main, results=[*at.result_attributes(main)[: len(type_.results)], {}])
    return bounds.loops


class _Bounds:
    """Adds the bounds. Each method returns a value with the number of a loop that reached its bound, or None."""

    def __init__(self, most: int) -> None:
        self.loops: list[ir.Location] = []
        self._most = most
        self._number = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))

    def add(self, block: ir.Block) -> ir.Value | None:
        """Bounds the loops of a block."""
        found: list[ir.Value] = []
        for op in operations(block):
            made = None
            if op.name == "stablehlo.while":
                made = self._bound(op)
            elif op.name in CONDITIONALS:
                made = self._choose([self.add(region.blocks[0]) for region in op.regions], op)
            found += [] if made is None else [made]
        if not found:
            return None
        highest, *others = found
        for other in others:
            highest = stablehlo.maximum(highest, other, ip=ir.InsertionPoint(terminator(block)))
        return highest

    def _bound(self, loop: ir.Operation) -> ir.Value | None:
        inner = self.add(loop_body(loop))
        is_long = _is_long(loop, self._most)
        if inner is None and not is_long:
            return None
        zero = self._constant(0, ir.InsertionPoint(loop))
        new = recarried(loop, [zero, zero], changed=_scalars_too(loop, 2))
        test, body = (region.blocks[0] for region in new.regions)
        end = terminator(test)
        *_, stopped = test.arguments
        ip = ir.InsertionPoint(end)
        goes_on = stablehlo.compare(stopped, zero, _direction("EQ"), ip=ip)
        end.operands[0] = stablehlo.and_(end.operands[0], goes_on, ip=ip)
        end = terminator(body)
        *_, count, stopped = body.arguments
        ip = ir.InsertionPoint(end)
        if inner is not None:
            stopped = stablehlo.maximum(stopped, inner, ip=ip)
        if is_long:
            self.loops.append(new.location)
            count = stablehlo.add(count, self._constant(1, ip), ip=ip)
            late = stablehlo.compare(count, self._constant(self._most, ip), _direction("GT"), ip=ip)
            stopped = stablehlo.select(late, self._constant(len(self.loops), ip), stopped, ip=ip)
        last = len(end.operands) - 1
        end.operands[last - 1], end.operands[last] = count, stopped
        return new.results[last]

    def _choose(self, stopped: Sequence[ir.Value | None], op: ir.Operation) -> ir.Value | None:
        if all(value is None for value in stopped):
            return None
        types = [result.type for result in op.results]
        new = remake(op, types=[*types, self._number], changed=_scalars_too(op, 1))
        replace(op, list(new.results)[: len(types)])
        for region, value in zip(new.regions, stopped, strict=True):
            end = terminator(region.blocks[0])
            ip = ir.InsertionPoint(end)
            stablehlo.return_([*end.operands, self._constant(0, ip) if value is None else value], ip=ip)
            end.erase()
        return new.results[len(types)]

    def _constant(self, number: int, ip: ir.InsertionPoint) -> ir.Value:
        return constant(self._number, number, ip=ip)


def _is_long(loop: ir.Operation, most: int) -> bool:
    found = trips(loop)
    return found is None or found > most


def _direction(name: str) -> ir.Attribute:
    return stablehlo.ComparisonDirectionAttr.get(name)


def _scalars_too(op: ir.Operation, count: int) -> dict[str, ir.Attribute]:
    """Returns the shardings of an operation that gets `count` more results, which are scalars."""
    known = [at.value_sharding(result) for result in op.results]
    if not known or known[0] is None:
        return {}
    scalar = sdy.TensorShardingAttr.get(sdy.TensorShardingAttr(known[0]).mesh_or_ref, [])
    return shardings([*known, *[scalar] * count])
