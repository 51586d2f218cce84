"""Runs a module of any phase, and returns each value that it makes: in `@main`, in loops and in tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.ir import attributes as at
from jaxpp.ir.counted import trips
from jaxpp.ir.functions import (
    body_of,
    callee,
    functions,
    kind_and_stage,
    name_of,
    nested,
    operands_with_captures,
    operations,
)
from jaxpp.ir.locations import source_of
from jaxpp.ir.loop import entries
from jaxpp.ir.mesh_functions import tasks_of_call
from jaxpp.ir.numbered import Member
from jaxpp.ir.outlining import outline
from jaxpp.ir.program import Call, TaskName
from jaxpp.ir.shardings import Shardings
from jaxpp.ir.tasks import task_of
from jaxpp.ir.tensors import DTYPES
from jaxpp.ir.train_loop import TrainLoopAttr
from jaxpp.ir.values import defining_op, is_integer_scalar
from jaxpp.validation.cpu import Array, Runner
from jaxpp.validation.interpreter import Interpreter, NamedResults
from jaxpp.validation.observed import CARRIED, Observed, Unit
from jaxpp.validation.signature import public_main
from jaxpp.validation.steps import all_steps
from jaxpp.validation.task_values import Behind, Outputs, TaskValues

_MOST_TRIPS = 64
"""A loop of more trips, or of an unknown number, is one operation here, unless it is the loop over microbatches."""


class _Known(NamedTuple):
    """The numbers of a value, and the microbatches and slices from which they were computed.

    number: the index of the value among all that were observed, or -1.
    """

    array: Array
    behind: Behind
    number: int = -1


class _Where(NamedTuple):
    """The place of an operation in a run. task: None where operations name their tasks by themselves."""

    task: TaskName | None = None
    unit: Unit | None = None
    words: str = "outside of the microbatches"
    stages: int = 0

    @staticmethod
    def of_call(tasks: Sequence[TaskName], words: str) -> "_Where":
        """Returns the place of a call of these tasks. Of fused tasks, an operation may be of any."""
        units = {(task.microbatch, task.slice) for task in tasks}
        task = tasks[0] if len(tasks) == 1 else None
        return _Where(task, units.pop() if len(units) == 1 else None, words)

    def of(self, op: ir.Operation) -> "_Where":
        """Returns the place of an operation that may name its task."""
        named = task_of(op) if self.task is None and self.unit is not None else None
        return self if named is None else self.inside(named.kind, named.stage, self.unit or (0, 0))

    def inside(self, kind: str, stage: int, unit: Unit) -> "_Where":
        """Returns the place of a task. Before `add-tasks` the number of a stage counts the stages of all slices."""
        microbatch, part = unit
        if self.stages and stage >= self.stages:
            part, stage = divmod(stage, self.stages)
        task = TaskName(kind, stage, microbatch, part)
        return _Where(task, (microbatch, part), str(task), self.stages)


@dataclass
class _Segment:
    """Operations of a block that run as one program, which returns each of their values."""

    ops: list[ir.Operation]
    uses: list[list[ir.Value]] = field(default_factory=list[list[ir.Value]])
    inputs: list[ir.Value] = field(default_factory=list[ir.Value])
    outputs: list[ir.Value] = field(default_factory=list[ir.Value])
    run: Callable[[Sequence[Array]], list[Array]] = lambda _: []


@dataclass
class _FollowedLoop:
    """A loop whose trips run one by one."""

    op: ir.Operation
    test: "_Code"
    body: "_Code"
    is_over_microbatches: bool


@dataclass
class _Jump:
    """A call of a function of the module."""

    op: ir.Operation
    function: ir.Operation


@dataclass
class _Code:
    """A block: its arguments, its parts in their order, and what it returns."""

    arguments: list[ir.Value]
    parts: list[_Segment | _FollowedLoop | _Jump]
    results: list[ir.Value]


class ValueRunner:
    """A module that runs any number of times, and tells each value that it makes.

    Conditionals, and loops whose number of trips is large or unknown, count as one operation.

    program: the interpreter of a module that is a program; None for a module with `@main`.

    Raises PassError where the module can't be run.
    """

    def __init__(self, module: ir.Module, runner: Runner) -> None:
        self._module, self._runner = own_copy(module), runner
        self._known: dict[ir.Value, _Known] = {}
        self._found: list[Observed] = []
        self._codes: dict[str, _Code] = {}
        self._segments = 0
        self._first_microbatch = self._length = 0
        with self._module.context, ir.Location.unknown():
            self._shardings = Shardings(self._module)
            self._functions = functions(self._module)
            self.program = Interpreter(self._module, runner) if public_main(self._module) is None else None

    def run(self, arguments: Mapping[int, Array]) -> tuple[list[Observed], NamedResults]:
        """Runs the step; returns all values of arrays in the order in which they were made, and the results."""
        self._found, self._first_microbatch = [], 0
        with self._module.context, ir.Location.unknown():
            if self.program is None:
                results = all_steps(TrainLoopAttr.of(self._module), self._one_step, self._runner)(arguments)
            else:
                results = self._run_program(self.program, arguments)
        return self._found, results

    def values_of(self, function: ir.Operation, operands: Sequence[Array]) -> list[Observed]:
        """Runs a function of the module; returns all values of arrays that it makes."""
        self._found = []
        with self._module.context, ir.Location.unknown():
            self._run(self._code(name_of(function)), [_Known(each, frozenset()) for each in operands], _Where())
        return self._found

    def _one_step(self, arguments: Mapping[int, Array]) -> NamedResults:
        code = self._code("main")
        known = [_Known(arguments[number], frozenset()) for number in range(len(code.arguments))]
        results = self._run(code, known, _Where())
        self._first_microbatch += self._length
        return {number: [("", each.array)] for number, each in enumerate(results)}

    def _run_program(self, program: Interpreter, arguments: Mapping[int, Array]) -> NamedResults:
        tasks = TaskValues(program.program, program.bodies)

        def watch(mesh: int, call: Call, operands: Sequence[Array], results: Sequence[Array]) -> None:
            if call.function in program.bodies:
                places = (tasks.behind[mesh, register] for register in call.operands)
                code = self._code(name_of(program.bodies[call.function]))
                where = _Where.of_call(call.tasks, f"{call} on mesh {mesh}")
                self._run(code, list(map(_Known, operands, places)), where)
            self._found += tasks.of(mesh, call, results)

        return program.run(arguments, watch)

    def _code(self, name: str) -> _Code:
        if name not in self._codes:
            self._codes[name] = self._read(body_of(self._functions[name]), depth=0)
        return self._codes[name]

    def _read(self, block: ir.Block, depth: int) -> _Code:
        parts: list[_Segment | _FollowedLoop | _Jump] = []
        *ops, end = operations(block)
        for op in ops:
            if op.name == "func.call" and callee(op) in self._functions:
                parts.append(_Jump(op, self._functions[callee(op)]))
            elif op.name == "stablehlo.while" and _is_followed(op):
                test, body = (self._read(region.blocks[0], depth + 1) for region in op.regions)
                parts.append(_FollowedLoop(op, test, body, not depth and _is_over_microbatches(op)))
            elif parts and isinstance(parts[-1], _Segment):
                parts[-1].ops.append(op)
            else:
                parts.append(_Segment([op]))
        for part in parts:
            if isinstance(part, _Segment):
                self._compile(part)
        return _Code(list(block.arguments), parts, list(end.operands))

    def _compile(self, segment: _Segment) -> None:
        segment.uses = [operands_with_captures(op) for op in segment.ops]
        segment.outputs = [result for op in segment.ops for result in op.results if _is_array(result)]
        if not segment.outputs:
            return
        name = f"jaxpp_observed_{self._segments}"
        self._segments += 1
        outlined = outline(self._module, name, map(Member.of, segment.ops), segment.outputs, {}, self._shardings)
        segment.inputs, segment.run = outlined.inputs, self._runner.compile(self._module, name)

    def _run(self, code: _Code, arguments: Sequence[_Known], where: _Where) -> list[_Known]:
        self._known.update(zip(code.arguments, arguments, strict=True))
        for part in code.parts:
            match part:
                case _Segment():
                    self._run_segment(part, where)
                case _FollowedLoop():
                    self._run_loop(part, where)
                case _Jump():
                    self._run_call(part, where)
        return [self._known[value] for value in code.results]

    def _run_segment(self, segment: _Segment, where: _Where) -> None:
        arrays = segment.run([self._known[value].array for value in segment.inputs])
        made = dict(zip(segment.outputs, arrays, strict=True))
        for op, uses in zip(segment.ops, segment.uses, strict=True):
            place = where.of(op)
            behind = frozenset[Unit]() if place.unit is None else frozenset([place.unit])
            behind = behind.union(*(self._known[value].behind for value in uses if value in self._known))
            for number, result in enumerate(op.results):
                if result in made:
                    # A count of microbatches comes from those before, but is no sum of their values.
                    own = frozenset[Unit]() if is_integer_scalar(result) else behind
                    self._known[result] = known = _Known(made[result], own, len(self._found))
                    key = ("operation", str(op.location), op.name, number, str(result.type))
                    reads = [self._known[value].number if value in self._known else -1 for value in uses]
                    self._note(key, place, known, op, reads)

    def _run_loop(self, loop: _FollowedLoop, where: _Where) -> None:
        carried = [self._known[value] for value in loop.op.operands]
        trip = 0
        while bool(np.asarray(self._run(loop.test, carried, _Where(words="the test of a loop"))[0].array)):
            inside = where
            if loop.is_over_microbatches:
                microbatch, known = self._first_microbatch + trip, entries(loop.op)
                stages = known.get("stages", 0) // known.get("slices", 1)
                inside = _Where(None, (microbatch, 0), f"microbatch {microbatch}", stages)
            carried = self._run(loop.body, carried, inside)
            trip += 1
            types = tuple(str(value.type) for value in loop.op.operands)
            for number, (value, each) in enumerate(zip(loop.body.results, carried, strict=True)):
                maker = defining_op(value)
                place = inside if maker is None else inside.of(maker)
                self._note((CARRIED, number, types), place, each, maker)
        if loop.is_over_microbatches:
            self._length = trip
        self._known.update(zip(loop.op.results, carried, strict=True))

    def _run_call(self, jump: _Jump, where: _Where) -> None:
        kind, _ = kind_and_stage(jump.function)
        tasks = tasks_of_call(jump.op, kind) if at.MICROBATCH in jump.op.attributes else ()
        if tasks:
            inside = _Where.of_call(tasks, " + ".join(map(str, tasks)))
        elif where.unit and at.STAGE in jump.op.attributes:
            part = at.integer(jump.op, at.SLICE) or where.unit[1]
            inside = where.inside(kind, at.integer(jump.op, at.STAGE) or 0, (where.unit[0], part))
            tasks = (inside.task,) if inside.task else ()
        else:
            inside = _Where(words=f"@{name_of(jump.function)}") if kind else where
        operands = [self._known[value] for value in jump.op.operands]
        if kind and not jump.op.results:  # it stands for a user's function
            return
        made = self._run(self._code(name_of(jump.function)), operands, inside)
        self._known.update(zip(jump.op.results, made, strict=True))
        outputs = Outputs.of(jump.function)
        parts = [at.plain(entry.get(at.TASK)) or 0 for entry in at.result_attributes(jump.function)]
        for number, each in enumerate(made if tasks else ()):
            self._found.append(outputs.observed(number, kind, tasks[parts[number]], each.array, each.behind))

    def _note(
        self,
        place: tuple[object, ...],
        where: _Where,
        known: _Known,
        op: ir.Operation | None,
        reads: Sequence[int] = (),
    ) -> None:
        name, line = ("", "") if op is None else (op.name, source_of(op.location) or "")
        value = np.asarray(known.array)
        self._found.append(
            Observed(place, where.task, where.unit, value, known.behind, name, line, where.words, tuple(reads))
        )


def _is_followed(loop: ir.Operation) -> bool:
    count = trips(loop)
    return _is_over_microbatches(loop) or (count is not None and count <= _MOST_TRIPS)


def _is_over_microbatches(loop: ir.Operation) -> bool:
    return at.LOOP in loop.attributes or any(at.BOUNDARY in op.attributes for op in nested(loop))


def _is_array(value: ir.Value) -> bool:
    type_ = value.type
    known = isinstance(type_, ir.RankedTensorType) and type_.has_static_shape
    return known and str(ir.RankedTensorType(type_).element_type) in DTYPES
