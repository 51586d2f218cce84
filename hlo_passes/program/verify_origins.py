"""`verify-origins`: each task reads, for each microbatch, what it reads for the others."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.accumulators import CONSTRAINT, UPDATES, updates
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of, operations
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.program import Call, Constant, Program, TaskName
from jaxpp.ir.read_program import ProgramReader


@dataclass(frozen=True)
class VerifyOrigins(Pass):
    """Checks that each task reads, for each microbatch, what it reads for the others, and changes nothing.

    A program does one microbatch many times over, so calls of one function for one stage must read in each place

    - the same result of the same task of their own microbatch, be it straight from there, from another mesh, or back
      from the host or a peer;
    - or sums, and what is carried from one microbatch to another;
    - or what comes from outside of the loop. Integers that are constants are equal, or go up or down by a constant
      from one microbatch to the next; they may begin again, as they do in another step.

    A value of another microbatch is found though its type fits, which `verify-program` takes for right; one that is
    wrong for all microbatches is not.

    Preconditions: what `verify-program` proves.

    ```mlir
    %a = call @forward_0(%x) {jaxpp.microbatch = 0, ...}    ==>   error: the backward of stage 0, microbatch 1
    %b = call @forward_0(%y) {jaxpp.microbatch = 1, ...}          reads value 0 of the forward of stage 0,
    %c = call @backward_0(%a) {jaxpp.microbatch = 0, ...}         microbatch 0, expected value 0 of the forward
    %d = call @backward_0(%a) {jaxpp.microbatch = 1, ...}         of stage 0, microbatch 1, as for other microbatches
    ```
    """

    name: ClassVar[str] = "verify-origins"

    def run(self, module: ir.Module) -> None:
        """Check `module`. Raises ProgramError at a call that reads another value than those for other microbatches."""
        reader = ProgramReader(module)
        places = _places(reader.program)
        for place, reads in places.items():
            function, _ = reader.sources[place.function]
            found = _stranger(reads)
            if found is not None and not (function and _is_sum(function, place.operand)):
                raise _error(*found, module, reader.program)
        found = _miscounted(places.values())
        if found is not None:
            raise _error(*found, module, reader.program)


class _Maker(NamedTuple):
    """What makes a value for each microbatch: a task, the function that does it, and which of its results it is."""

    kind: str
    stage: int
    slice: int
    function: str
    result: int


class _Place(NamedTuple):
    """An operand of a function: for each of its tasks (stage, slice, whether what it reads is computed again)."""

    function: str
    tasks: tuple[tuple[int, int, bool], ...]
    operand: int


class _Read(NamedTuple):
    """A call that reads an operand for a task: what a task made for a microbatch, a number, or anything else."""

    mesh: int
    call: Call
    task: TaskName
    value: "_Value | None"

    @property
    def origin(self) -> tuple[int, _Maker] | None:
        """What makes the operand, if a task does, and how many microbatches ahead of that of the reader."""
        return (self.value[0] - self.task.microbatch, self.value[1]) if isinstance(self.value, tuple) else None

    def __str__(self) -> str:
        if isinstance(self.value, int):
            return f"the number {self.value}"
        if self.value is None:
            return "a value from outside of the loop"
        microbatch, (kind, stage, part, _, result) = self.value
        return f"value {result} of the {TaskName(kind, stage, microbatch, part)}"


_Value = tuple[int, _Maker] | int

_WHOLE = {"input_grad": "backward", "weight_grad": "backward"}
"""What a schedule may split for some microbatches, and for others not."""


def _places(program: Program) -> Mapping[_Place, Sequence[_Read]]:
    """All that tasks read, by where they read it."""
    values = _values(program)
    calls = [(mesh, step) for mesh, line in enumerate(program.sequences) for step in line if isinstance(step, Call)]
    again = {task[1:] for _, call in calls for task in call.tasks if task.kind == "recompute"}
    places = defaultdict[_Place, list[_Read]](list)
    for mesh, call in calls:
        if tasks := call.tasks:
            parts = program.functions[call.function].argument_parts or [0] * len(call.operands)
            names = tuple([(task.stage, task.slice, task[1:] in again) for task in tasks])
            for operand, (part, register) in enumerate(zip(parts, call.operands, strict=True)):
                read = _Read(mesh, call, tasks[part], values.get((mesh, register)))
                places[_Place(call.function, names, operand)].append(read)
    return places


def _values(program: Program) -> Mapping[tuple[int, int], _Value]:
    """What is in registers, by (mesh, register); what was copied, resharded or sent counts as what it was."""
    values = dict[tuple[int, int], _Value]()
    copied = {(hop.target, hop.result): (hop.source, hop.operand) for hop in program.hops.values()}
    for mesh, sequence in enumerate(program.sequences):
        for step in sequence:
            if isinstance(step, Constant) and not step.value.shape and step.value.dtype.kind in "iu":
                values[mesh, step.result] = int(step.value)
            if not isinstance(step, Call):
                continue
            function, tasks = program.functions[step.function], step.tasks
            if function.is_copy or step.kind == "reshard":
                pairs = zip(step.results, step.operands, strict=True)
                copied.update(((mesh, result), (mesh, operand)) for result, operand in pairs)
            elif tasks:
                parts = function.result_parts or [0] * len(step.results)
                for number, (part, register) in enumerate(zip(parts, step.results, strict=True)):
                    if number in function.gathered:
                        continue
                    kind, stage, microbatch, piece = tasks[part]
                    maker = _Maker(_WHOLE.get(kind, kind), stage, piece, step.function, number)
                    values[mesh, register] = microbatch, maker
    for place, source in copied.items():
        while source in copied:
            source = copied[source]
        if source in values:
            values[place] = values[source]
    return values


def _stranger(reads: Sequence[_Read]) -> tuple[_Read, str] | None:
    """The first of those that differ from the others, and what was expected; None if these may all be right.

    That is: all are of other microbatches or from outside, or all are of their own, of one task. Where several
    functions do that task, each may have the value at another place among its results.
    """
    groups = defaultdict[tuple[int, _Maker] | None, list[_Read]](list)
    for read in reads:
        groups[read.origin].append(read)
    own = [origin for origin in groups if origin is not None and not origin[0]]
    one_each = len(own) == len(groups) == len({maker.function for _, maker in own})
    if not own or (one_each and len({maker[:3] for _, maker in own}) == 1):
        return None
    usual = max(own, key=lambda origin: len(groups[origin]))
    odd, *_ = min((group for origin, group in groups.items() if origin != usual), key=len)
    expected = odd._replace(value=(odd.task.microbatch, usual[1]))
    return odd, f"{expected}, as for other microbatches"


def _miscounted(places: Iterable[Sequence[_Read]]) -> tuple[_Read, str] | None:
    """The first number that is out of line, and what was expected; None if there is none.

    The rate of a place is that from most microbatches to the next. Where none is that of more than half (two of three
    numbers have changed places, say) it is the rate of most places. By it each number says what that of microbatch 0
    would be: always the same, or less and less as steps begin again.
    """
    numbers = (
        {
            read.task.microbatch: (read.task.microbatch, read.value, read)
            for read in reads
            if isinstance(read.value, int)
        }
        for reads in places
    )
    lines = [sorted(line.values()) for line in numbers if len({number for _, number, _ in line.values()}) > 1]
    rates = [Counter((y[1] - x[1]) / (y[0] - x[0]) for x, y in pairwise(line)) for line in lines]
    usual = sum(rates, Counter[float]())
    for line, own in zip(lines, rates, strict=True):
        rate, _ = (own if 2 * max(own.values()) > own.total() else usual).most_common(1)[0]
        starts = [number - rate * microbatch for microbatch, number, _ in line]
        if starts != sorted(starts, reverse=rate > 0):
            start, _ = Counter(starts).most_common(1)[0]
            odd = next(read for (_, _, read), found in zip(line, starts, strict=True) if found != start)
            return odd, f"{start + rate * odd.task.microbatch:g}, as the numbers for other microbatches say"
    return None


def _is_sum(function: ir.Operation, position: int) -> bool:
    """Whether the function does nothing with an argument but add to it, or write into it, and return that."""
    found = updates(body_of(function), position, (*UPDATES, CONSTRAINT))
    return found is not None and any(use.owner.operation.name != CONSTRAINT for use in found.uses)


def _error(odd: _Read, expected: str, module: ir.Module, program: Program) -> ProgramError:
    """The error, at the operation of the call: the program has those that reshard besides."""
    body = body_of(mesh_functions(module)[odd.mesh])
    ops = [op for op in operations(body) if op.name == "func.call"]
    calls = [step for step in program.sequences[odd.mesh] if isinstance(step, Call) and step.kind != "reshard"]
    location = next(op.location for op, call in zip(ops, calls, strict=True) if call is odd.call)
    return ProgramError(f"the {odd.task} reads {odd}, expected {expected}", location=location)
