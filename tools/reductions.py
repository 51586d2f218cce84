"""The reductions of `jaxpp-reduce`. Each lists the sites in a module where it applies, and rewrites some of them."""

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace as replace_fields
from typing import Any

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass, run_passes
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.mlir_pass import MlirPass
from jaxpp.ir import attributes as at
from jaxpp.ir import boundary
from jaxpp.ir.build import constant, erase_dead, recarried, replace, set_returned, shardings
from jaxpp.ir.errors import PassError
from jaxpp.ir.functions import (
    CONDITIONALS,
    blocks_of,
    body_of,
    functions,
    nested,
    operations,
    reachable,
    terminator,
)
from jaxpp.ir.loop import entries
from jaxpp.ir.values import is_used
from jaxpp.schedules import Placement, Schedule
from jaxpp.schedules.errors import ScheduleError
from jaxpp.schedules.given import of_text
from jaxpp.tools.isolate import Isolate

_OPEN = ("stablehlo.while", "stablehlo.case", "stablehlo.if", at.SHARD_MAP)
"""The operations whose regions hold operations to reduce."""


class Reduction(ABC):
    """A way to make a module smaller.

    Attributes:
        name: the name of the sites in messages.
    """

    name: str

    @abstractmethod
    def sites(self, module: ir.Module) -> Sequence[Any]:
        """Returns the places where the reduction applies. Equal modules have the same places, in the same order."""

    @abstractmethod
    def apply(self, module: ir.Module, sites: Sequence[Any]) -> ir.Module:
        """Rewrites some of the places of `module`; returns the module, or another one."""


class Passes(Reduction):
    """Runs a pass that makes most modules smaller; it does so with every pass by itself."""

    name = "passes"
    _passes: Sequence[Pass] = (InlineCalls(), MlirPass("canonicalize"), MlirPass("cse"))

    def sites(self, module: ir.Module) -> Sequence[Pass]:
        """Returns the passes."""
        return self._passes

    def apply(self, module: ir.Module, sites: Sequence[Pass]) -> ir.Module:
        """Runs the passes."""
        run_passes(module, sites, [Isolate(every=False)])
        return module


class Functions(Reduction):
    """Replaces the results of private functions by zeros."""

    name = "functions"

    def sites(self, module: ir.Module) -> Sequence[ir.Operation]:
        """Returns the ends of the functions."""
        private = [function for function in functions(module).values() if not _is_public(function)]
        return [terminator(body_of(function)) for function in private if len(function.regions[0].blocks)]

    def apply(self, module: ir.Module, sites: Sequence[ir.Operation]) -> ir.Module:
        """Replaces the operands of the ends."""
        for end in sites:
            for number, operand in enumerate(end.operands):
                end.operands[number] = constant(operand.type, 0, ip=ir.InsertionPoint(end), loc=end.location)
        return module


class FewerResults(Reduction):
    """Drops results of `@main`, so that all that only they need goes too."""

    name = "results"

    def sites(self, module: ir.Module) -> Sequence[int]:
        """Returns the numbers of the results."""
        main = functions(module).get("main")
        return [] if main is None else range(len(terminator(body_of(main)).operands))

    def apply(self, module: ir.Module, sites: Sequence[int]) -> ir.Module:
        """Drops the results. An argument that was donated to one of the results is no longer donated."""
        main = functions(module)["main"]
        end = terminator(body_of(main))
        kept = [number for number in range(len(end.operands)) if number not in set(sites)]
        arguments, results = at.argument_attributes(main), at.result_attributes(main)
        for entry in arguments:
            entry.pop(at.ALIAS, None)
        set_returned(main, [end.operands[number] for number in kept])
        at.set_tables(main, arguments, [results[number] for number in kept])
        return module


class Arguments(Reduction):
    """Drops arguments of `@main` that nothing uses."""

    name = "arguments"

    def sites(self, module: ir.Module) -> Sequence[int]:
        """Returns the numbers of the unused arguments."""
        main = functions(module).get("main")
        return [] if main is None else [a.arg_number for a in body_of(main).arguments if not is_used(a)]

    def apply(self, module: ir.Module, sites: Sequence[int]) -> ir.Module:
        """Drops the arguments, and renumbers those that results feed."""
        main = functions(module)["main"]
        block, arguments, results = body_of(main), at.argument_attributes(main), at.result_attributes(main)
        kept = [number for number in range(len(arguments)) if number not in set(sites)]
        for number in sorted(sites, reverse=True):
            block.erase_argument(number)
        set_returned(main, list(terminator(block).operands))
        for entry in results:
            fed = entry.pop(at.FEEDS, None)
            if isinstance(fed, ir.IntegerAttr) and fed.value in kept:
                entry[at.FEEDS] = at.i64(kept.index(fed.value))
        at.set_tables(main, [arguments[number] for number in kept], results)
        return module


class FewerStages(Reduction):
    """Joins stages with those after them: it drops their marks, and their tasks in the schedule of the loop."""

    name = "stages"

    def sites(self, module: ir.Module) -> Sequence[int]:
        """Returns the stages that have marks."""
        return sorted({mark.stage for _, mark in _marks(module)})

    def apply(self, module: ir.Module, sites: Sequence[int]) -> ir.Module:
        """Drops the marks of the stages, and renumbers the other stages."""
        kept = [stage for stage in self.sites(module) if stage not in set(sites)]
        for op, mark in _marks(module):
            if mark.stage in kept:
                boundary.write(op, replace_fields(mark, stage=kept.index(mark.stage)))
            else:
                replace(op, op.operands)
        for loop, fields in _scheduled_loops(module):
            fields["schedule"] = str(_with_stages(of_text(fields["schedule"]), kept))
            loop.attributes[at.LOOP] = at.attribute_of(fields)
        return module


class Regions(Reduction):
    """Replaces a conditional by one of its branches, and a loop by one run of its body."""

    name = "regions"

    def sites(self, module: ir.Module) -> Sequence[tuple[ir.Operation, int]]:
        """Returns the conditionals and loops, each with the number of a region."""
        ops = [op for block in _blocks(module) for op in operations(block)]
        conditionals = [(op, number) for op in ops if op.name in CONDITIONALS for number in range(len(op.regions))]
        return [*conditionals, *((op, 1) for op in ops if op.name == "stablehlo.while")]

    def apply(self, module: ir.Module, sites: Sequence[tuple[ir.Operation, int]]) -> ir.Module:
        """Moves the operations of the first region of each operation in front of it."""
        last: ir.Operation | None = None
        for op, number in sites:
            if last is not None and op == last:
                continue
            last = op
            block = op.regions[number].blocks[0]
            for argument, value in zip(block.arguments, op.operands if block.arguments else (), strict=True):
                argument.replace_all_uses_with(value)
            *inside, end = operations(block)
            values = list(end.operands)
            for inner in inside:
                inner.move_before(op)
            for result, value in zip(op.results, values, strict=True):
                result.replace_all_uses_with(value)
        return module


class Carried(Reduction):
    """Replaces a value that a loop carries by its initial value."""

    name = "carried values"

    def sites(self, module: ir.Module) -> Sequence[tuple[ir.Operation, int]]:
        """Returns the loops, each with the position of a value."""
        loops = [op for block in _blocks(module) for op in operations(block) if op.name == "stablehlo.while"]
        return [(loop, position) for loop in loops for position in range(len(loop.operands))]

    def apply(self, module: ir.Module, sites: Sequence[tuple[ir.Operation, int]]) -> ir.Module:
        """Rebuilds the loops without the values."""
        while sites:
            loop = sites[0][0]
            without = {position for each, position in sites if each == loop}
            sites = [site for site in sites if site[0] != loop]
            known = [at.value_sharding(result) for number, result in enumerate(loop.results) if number not in without]
            recarried(loop, without=without, changed=shardings(known))
        return module


class Operations(Reduction):
    """Replaces the results of operations by other values; an operation without a used result goes."""

    def sites(self, module: ir.Module) -> Sequence[ir.Operation]:
        """Returns the operations, users before what they use."""
        ops = [op for block in _blocks(module) for op in operations(block)[:-1] if op.name != "stablehlo.constant"]
        return ops[::-1]

    def apply(self, module: ir.Module, sites: Sequence[ir.Operation]) -> ir.Module:
        """Replaces the results."""
        for op in sites:
            for result in op.results:
                if is_used(result) and (value := self.value(op, result)) is not None:
                    result.replace_all_uses_with(value)
        for op in sites:
            if not len(op.regions) and not any(map(is_used, op.results)):
                op.erase()
        return module

    @abstractmethod
    def value(self, op: ir.Operation, result: ir.OpResult) -> ir.Value | None:
        """Returns a value that replaces a result; None if there is none."""


class ByZeros(Operations):
    """Replaces results by zeros."""

    name = "operations by zeros"

    def value(self, op: ir.Operation, result: ir.OpResult) -> ir.Value:
        """Returns a constant in front of the operation."""
        return constant(result.type, 0, ip=ir.InsertionPoint(op), loc=op.location)


class ByOperands(Operations):
    """Replaces results by operands, and those of a loop by the initial values."""

    name = "operations by operands"

    def value(self, op: ir.Operation, result: ir.OpResult) -> ir.Value | None:
        """Returns the operand at the position of the result, or the first other operand of its type."""
        operands = list(op.operands)
        first = operands[result.result_number : result.result_number + 1]
        return next((each for each in [*first, *operands] if each.type == result.type), None)


class ByArguments(Operations):
    """Replaces results by arguments of the block."""

    name = "operations by arguments"

    def value(self, op: ir.Operation, result: ir.OpResult) -> ir.Value | None:
        """Returns the first argument of the type."""
        return next((each for each in op.block.arguments if each.type == result.type), None)


class Attributes(Reduction):
    """Drops attributes that an operation, an argument or a result may lack, such as shardings; and unused meshes."""

    name = "attributes"

    def sites(self, module: ir.Module) -> Sequence[tuple[ir.Operation, str]]:
        """Returns the operations, each with the name of an attribute; "" stands for the operation itself."""
        ops = [module.operation, *nested(module.operation)]
        named = [
            (op, name) for op in ops for name in op.attributes if "." in name or name in ("arg_attrs", "res_attrs")
        ]
        return [*named, *((op, "") for op in ops if op.name == "sdy.mesh")]

    def apply(self, module: ir.Module, sites: Sequence[tuple[ir.Operation, str]]) -> ir.Module:
        """Drops the attributes and the meshes."""
        for op, name in sites:
            if name:
                del op.attributes[name]
            else:
                op.erase()
        return module


class SmallerNumbers(Reduction):
    """Replaces a number by a smaller one wherever the text has it: a dimension, a limit, the microbatches of a loop."""

    name = "numbers"

    # Names, positions of dimensions, and numbers of stages are no sizes.
    _TOKEN = re.compile(
        r'"(?:[^"\\]|\\.)*"|[%@#!][\w.]+(?:[#:]\d+|<[^<>]*>)?|'
        r"\b[a-z_]*dim[a-z]* = (?:\d+|\[[\d, ]*\](?: x \[[\d, ]*\])?)|"
        r"\bstage = \d+|(?:(?<![\w.+-])|(?<=\dx))(?P<number>\d+)(?=x|[^\w.]|$)"
    )

    def sites(self, module: ir.Module) -> Sequence[tuple[int, int]]:
        """Returns the numbers, largest first, each with a smaller one."""
        found = {int(token["number"] or 0) for token in self._TOKEN.finditer(str(module))}
        return [(number, less) for number in sorted(found, reverse=True) for less in _smaller(number)]

    def apply(self, module: ir.Module, sites: Sequence[tuple[int, int]]) -> ir.Module:
        """Replaces the numbers, and drops the tasks of the microbatches that no longer exist."""
        smaller = dict(reversed(sites))  # of several smaller numbers the first
        for loop, fields in _scheduled_loops(module):
            if count := smaller.get(fields.get("length", 0)):
                fields["schedule"] = str(_with_microbatches(of_text(fields["schedule"]), count))
                loop.attributes[at.LOOP] = at.attribute_of(fields)

        def replaced(token: re.Match[str]) -> str:
            return str(smaller.get(int(token["number"]), token[0])) if token["number"] else token[0]

        return ir.Module.parse(self._TOKEN.sub(replaced, str(module)), module.context)


REDUCTIONS: Sequence[Reduction] = (
    Passes(),  # first: what is inlined is reduced where it is called
    Functions(),
    FewerResults(),
    Carried(),
    ByZeros(),
    ByOperands(),
    ByArguments(),
    Regions(),
    FewerStages(),
    SmallerNumbers(),
    Arguments(),
    Attributes(),
)
"""All reductions, from large to small."""


def clean(module: ir.Module) -> None:
    """Erases the operations whose results nobody uses, and the functions that no public one needs."""
    by_name = functions(module)
    roots = [name for name, function in by_name.items() if _is_public(function)]
    needed = {name for root in roots for name in reachable(root, by_name)}
    for name in by_name.keys() - needed:
        by_name[name].erase()
    for block in reversed(list(_blocks(module))):  # inner ones first: they use values of the outer ones
        erase_dead(block)


def size(module: ir.Module) -> int:
    """Returns the number of operations, without functions and the ends of blocks."""
    return sum(len(operations(block)) - 1 for block in _blocks(module))


def _blocks(module: ir.Module) -> Iterator[ir.Block]:
    """Yields the blocks whose operations can be reduced, outermost first."""
    waiting = [block for function in functions(module).values() for block in blocks_of(function)]
    while waiting:
        yield (block := waiting.pop(0))
        waiting[:0] = [inner for op in operations(block) if op.name in _OPEN for inner in blocks_of(op)]


def _is_public(function: ir.Operation) -> bool:
    return str(function.attributes.get("sym_visibility")) != '"private"'


def _marks(module: ir.Module) -> list[tuple[ir.Operation, boundary.Boundary]]:
    """Returns the stage marks, each with what it says. One that can't be read may be what the test looks for."""
    found: list[tuple[ir.Operation, boundary.Boundary]] = []
    for op in filter(boundary.is_mark, nested(module.operation)):
        with contextlib.suppress(PassError):
            found.append((op, boundary.read(op)))
    return found


def _scheduled_loops(module: ir.Module) -> list[tuple[ir.Operation, dict[str, Any]]]:
    """Returns the microbatch loops that have a schedule, each with its entries, but those that can't be read."""
    found: list[tuple[ir.Operation, dict[str, Any]]] = []
    for op in nested(module.operation):
        with contextlib.suppress(PassError):
            fields = entries(op)
            found += [(op, fields)] * bool(fields.get("schedule"))
    return found


def _smaller(number: int) -> list[int]:
    """Returns the numbers by which a number is replaced: 1, 2 and its half."""
    return sorted({less for less in (1, 2, number // 2) if 0 < less < number})


def _with_stages(schedule: Schedule, kept: Sequence[int]) -> Schedule:
    """Returns the schedule of some of the stages, on the meshes that hold one of them.

    Raises ScheduleError if it lacks one of these stages.
    """
    if kept and kept[-1] >= schedule.stages:
        raise ScheduleError(f"there is a mark of stage {kept[-1]}, the schedule has {schedule.stages} stages")
    homes = [schedule.placement.homes[stage] for stage in kept]
    meshes = sorted({mesh for each in homes for mesh in each})
    placement = Placement.of(*(tuple(meshes.index(mesh) for mesh in each) for each in homes))
    tasks = [[task for task in schedule.orders[mesh] if task.stage in kept] for mesh in meshes]
    rows = [[replace_fields(task, stage=kept.index(task.stage)) for task in row] for row in tasks]
    return Schedule.of(schedule.name, placement, rows, schedule.kinds)


def _with_microbatches(schedule: Schedule, count: int) -> Schedule:
    """Returns the schedule of the first microbatches."""
    rows = [[task for task in order if task.microbatch < count] for order in schedule.orders]
    return Schedule.of(schedule.name, schedule.placement, rows, schedule.kinds)
