"""Checks that each task reads the same values for every microbatch, whatever channels these came by.

Values that leave a mesh for its host or a peer must come back in their place, for their microbatch.

A program runs the same tasks for every microbatch. So all calls of one function for one stage must read, at each
operand position, one of these:

- The same result of the same task of their own microbatch. It may come directly, from another mesh, or back from the
  host or a peer.
- A sum, which may be of any microbatches, or a value that an earlier microbatch hands on. The distance to that
  microbatch is the same for all calls.
- A value from outside of the loop. Integer constants are equal, or change by a constant from one microbatch to the
  next. They may begin again, as they do in another step. The finished sum of an earlier step is from outside, too.

So the check finds a value of another microbatch, even if its type fits. Causes are a wrong channel, a wrong operand,
or a residual that came back in place of another. The check cannot find a value that is wrong in the same way for
all microbatches, such as two results of one task that are always exchanged. Nor can it find a wrong value from outside
of the loop. The program does not say what these values should be; `--validate` finds such errors by the numbers.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir.accumulators import CONSTRAINT, UPDATES, updates
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.functions import body_of
from jaxpp.ir.kinds import FORMS
from jaxpp.ir.program import Call, Constant, Place, Program, Receive, Send, TaskName


class Maker(NamedTuple):
    """The source of a value in each microbatch: a task, the function that runs it, and the position of the result."""

    kind: str
    stage: int
    slice: int
    function: str
    result: int


_Value: TypeAlias = tuple[int, int] | int
"""The known content of a register: the microbatch and the maker's index of a task's result, or an integer constant."""

_Reads: TypeAlias = tuple[tuple[int, int] | None, ...]
"""For each operand of a call (microbatches ahead of the call's own, index of the maker); None for other values."""

_Reader: TypeAlias = tuple[int, Call]
"""A mesh, and a call on it."""

_LEAVING = {form.back: kind for kind, form in FORMS.items() if form.back}
"""For each kind that brings values back, the kind that takes them away."""

_WHOLE = {"input_grad": "backward", "weight_grad": "backward"}
"""The kinds that a schedule may split for some microbatches only, and the kind that their results count as."""


class OriginError(ProgramError):
    """A call reads another value than the calls for other microbatches do.

    Attributes:
        mesh: the mesh that runs the call.
        call: the call.
    """

    def __init__(self, message: str, mesh: int, call: Call) -> None:
        self.mesh, self.call = mesh, call
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class _Group:
    """The calls of one function for the same stages and slices.

    Attributes:
        parts: for each operand the index of the task, among those of a fused call, that it belongs to.
        calls: the calls, grouped by the values that they read.
        numbers: by operand and microbatch, the integer constant that is read there and the call that reads it.
    """

    function: str
    parts: Sequence[int]
    calls: dict[_Reads, list[_Reader]] = field(default_factory=dict)
    numbers: dict[int, dict[int, tuple[int, _Reader]]] = field(default_factory=lambda: defaultdict(dict))

    def read(self, reader: _Reader, microbatches: Sequence[int], values: Sequence[_Value | None]) -> None:
        """Adds a call that reads `values`. `microbatches` has the microbatch of each of its tasks."""
        if len(microbatches) == 1:
            (own,) = microbatches
            reads = tuple([(value[0] - own, value[1]) if type(value) is tuple else None for value in values])
        else:
            pairs = zip(self.parts, values, strict=True)
            reads = tuple(
                [(value[0] - microbatches[part], value[1]) if type(value) is tuple else None for part, value in pairs]
            )
        if None in reads:
            for operand, value in enumerate(values):
                if type(value) is int:
                    self.numbers[operand][microbatches[self.parts[operand]]] = value, reader
        if reads in self.calls:
            self.calls[reads].append(reader)
        else:
            self.calls[reads] = [reader]

    def without(self, finished: Collection[_Value], values: Sequence[Sequence[_Value | None]]) -> "_Group":
        """Returns the same calls with the finished sums of earlier microbatches as values from outside of the loop."""
        group = _Group(self.function, self.parts)
        for mesh, call in (reader for readers in self.calls.values() for reader in readers):
            _, microbatches = _units(call)
            reads = [values[mesh][register] for register in call.operands]
            for operand, value in enumerate(reads):
                if type(value) is tuple and value in finished and value[0] < microbatches[self.parts[operand]]:
                    reads[operand] = None
            group.read((mesh, call), microbatches, reads)
        return group

    def strangers(self, makers: Sequence[Maker]) -> Iterator[tuple[int, _Reader, int | None]]:
        """Yields (operand, call, expected maker) for each operand that the calls read inconsistently.

        The call is one that reads an unexpected value. An operand is consistent in two cases. Either all calls read it
        from one task of their own microbatch; where several functions run that task, each may return the value at
        another position. Or all calls read a value from the same number of microbatches before their own, and the first
        ones read a value from outside. The expected maker is None where no call reads from its own microbatch.
        """
        for operand in range(len(self.parts)) if len(self.calls) > 1 else ():
            counts = Counter[tuple[int, int] | None]()
            for reads, readers in self.calls.items():
                counts[reads[operand]] += len(readers)
            own = [origin[1] for origin in counts if origin is not None and not origin[0]]
            one_each = len(own) == len(counts) == len({makers[maker].function for maker in own})
            if one_each and len({makers[maker][:3] for maker in own}) == 1:
                continue
            usual = max(own, key=lambda maker: counts[0, maker], default=None)
            before = Counter[int]()
            for origin, count in counts.items():
                before[0 if origin is None else min(origin[0], 0)] += count
            distance = max(before.keys() - {0}, key=before.__getitem__, default=None)
            expected = [(0, usual)] if own else [each for each in counts if each is None or each[0] == distance]
            odd = min(counts.keys() - expected, key=counts.__getitem__, default=None)
            if counts.keys() - expected:
                yield operand, next(each[0] for reads, each in self.calls.items() if reads[operand] == odd), usual


def check_moves(program: Program) -> None:
    """Raises OriginError at a call that brings back other values than its counterpart took away.

    An exchange of two values that is the same for all microbatches is wrong too.
    """
    if not any(function.is_copy for function in program.functions.values()):
        return
    calls = [(mesh, call) for mesh, line in enumerate(program.calls) for call in line]
    came = {(hop.target, hop.result): (hop.source, hop.operand) for hop in program.hops.values()}
    came |= {(mesh, call.results[0]): (mesh, call.operands[0]) for mesh, call in calls if call.kind == "reshard"}
    moves = [(mesh, call, task) for mesh, call in calls for task in call.tasks]
    gone = {
        (mesh, register): (task, number)
        for mesh, call, task in moves
        if task.kind in _LEAVING.values()
        for number, register in enumerate(call.results)
    }
    for mesh, call, task in moves:
        if task.kind not in _LEAVING:
            continue
        away = task._replace(kind=_LEAVING[task.kind])
        for number, register in enumerate(call.operands):
            place = mesh, register
            while place in came and place not in gone:
                place = came[place]
            found = gone.get(place)
            if found != (away, number):
                what = f"value {found[1]} of the {found[0]}" if found else f"nothing that any {away.kind} returned"
                raise OriginError(f"the {task} takes {what}, expected value {number} of the {away}", mesh, call)


def check_origins(program: Program, functions: Mapping[str, ir.Operation | None]) -> None:
    """Raises OriginError at a call that reads another value than the calls for other microbatches do.

    functions: the func.func of each function of the program, by name; None for a function that reshards.
    """
    values, makers = _values(program)
    groups = _groups(program, values)
    finished: set[_Value] | None = None
    for group in groups:
        function = functions[group.function]
        if all(_sum(function, operand) is not None for operand, *_ in group.strangers(makers)):
            continue
        if finished is None:
            finished = _finished(program, values, makers, functions)
        for operand, (mesh, call), usual in group.without(finished, values).strangers(makers):
            if _sum(function, operand) is None:
                task = call.tasks[group.parts[operand]]
                found = _described(values[mesh][call.operands[operand]], makers)
                if usual is None:
                    expected = f"one of microbatch {task.microbatch}, or what an earlier one hands on"
                else:
                    expected = f"{_described((task.microbatch, usual), makers)}, as for other microbatches"
                raise OriginError(f"the {task} reads {found}, expected {expected}", mesh, call)
    _check_numbers(groups, makers)


def _units(call: Call) -> tuple[tuple[object, ...], Sequence[int]]:
    """Returns a key of a call's function, stages and slices, and the microbatches of its tasks.

    A call that is no task has no microbatches.
    """
    if len(call.tasks) == 1:  # as nearly all, for which this takes a third of the time
        _, stage, microbatch, part = call.tasks[0]
        return (call.function, stage, part), (microbatch,)
    stages = [(task.stage, task.slice) for task in call.tasks]
    return (call.function, *stages), [task.microbatch for task in call.tasks]


def _values(program: Program) -> tuple[Sequence[Sequence[_Value | None]], Sequence[Maker]]:
    """Returns the values in the registers of each mesh, and all makers. Copies, reshards and transfers keep a value."""
    values = [list[_Value | None]([None]) * len(registers) for registers in program.registers]
    sent, copied = program.sent, dict[Place, Place]()
    copies = {name: function.is_copy or function.kind == "reshard" for name, function in program.functions.items()}
    makers, makes = list[Maker](), dict[tuple[object, ...], Sequence[tuple[int, int, int]]]()
    for mesh, sequence in enumerate(program.sequences):
        here = values[mesh]
        for step in sequence:
            if isinstance(step, Constant):
                if not step.value.shape and step.value.dtype.kind in "iu":
                    here[step.result] = int(step.value)
            elif isinstance(step, Receive):
                copied[mesh, step.result] = sent[step.channel]
            elif isinstance(step, Send):
                continue
            elif copies[step.function]:
                pairs = zip(step.results, step.operands, strict=True)
                copied.update(((mesh, result), (mesh, operand)) for result, operand in pairs)
            else:
                key, microbatches = _units(step)
                if key not in makes:
                    makes[key] = _makers(program, step, makers)
                results = step.results
                for number, part, maker in makes[key]:
                    here[results[number]] = microbatches[part], maker
    for (mesh, register), source in copied.items():
        while source in copied:
            source = copied[source]
        values[mesh][register] = values[source[0]][source[1]]
    return values, makers


def _makers(program: Program, call: Call, makers: list[Maker]) -> Sequence[tuple[int, int, int]]:
    """Adds the makers of a call's results to `makers`; returns (result, index of its task, index of its maker)."""
    function, tasks = program.functions[call.function], call.tasks
    parts = function.result_parts or [0] * len(call.results)
    found = list[tuple[int, int, int]]()
    for number, part in enumerate(parts) if tasks else ():
        if number not in function.gathered:
            kind, stage, _, piece = tasks[part]
            found.append((number, part, len(makers)))
            makers.append(Maker(_WHOLE.get(kind, kind), stage, piece, call.function, number))
    return found


def _groups(program: Program, values: Sequence[Sequence[_Value | None]]) -> Sequence[_Group]:
    """Returns the reads of all tasks, one group for each function with its stages and slices."""
    calls = [(mesh, call) for mesh, line in enumerate(program.calls) for call in line]
    remade = [call for _, call in calls if "recompute" in call.kind]
    again = {task[1:] for call in remade for task in call.tasks if task.kind == "recompute"}
    groups = dict[object, _Group]()
    for reader in calls:
        mesh, call = reader
        key, microbatches = _units(call)
        if not microbatches:
            continue
        if again:  # recomputed residuals have another maker than kept ones, so the calls that read them are apart
            key = (*key, *[task[1:] in again for task in call.tasks])
        group = groups.get(key)
        if group is None:
            parts = program.functions[call.function].argument_parts or [0] * len(call.operands)
            group = groups[key] = _Group(call.function, parts)
        here = values[mesh]
        group.read(reader, microbatches, [here[register] for register in call.operands])
    return list(groups.values())


def _check_numbers(groups: Sequence[_Group], makers: Sequence[Maker]) -> None:
    """Raises OriginError at the first integer constant that does not fit those for other microbatches.

    The rate of an operand is its most frequent change from one microbatch to the next. If fewer than half of the
    changes have that rate (two of three numbers are exchanged, say), the most frequent change of all operands counts.
    By the rate, each number implies the number of microbatch 0. The implied numbers must be equal, or move against the
    rate only, as they do where another step begins again.
    """
    places = [(group.parts[operand], line) for group in groups for operand, line in group.numbers.items()]
    lines = [
        (part, [(microbatch, *line[microbatch]) for microbatch in sorted(line)])
        for part, line in places
        if len({number for number, _ in line.values()}) > 1
    ]
    rates = [Counter((y[1] - x[1]) / (y[0] - x[0]) for x, y in pairwise(line)) for _, line in lines]
    usual = sum(rates, Counter[float]())
    for (part, line), own in zip(lines, rates, strict=True):
        rate, _ = (own if 2 * max(own.values()) > own.total() else usual).most_common(1)[0]
        starts = [number - rate * microbatch for microbatch, number, _ in line]
        if starts != sorted(starts, reverse=rate > 0):
            start, _ = Counter(starts).most_common(1)[0]
            _, number, (mesh, call) = next(each for each, found in zip(line, starts, strict=True) if found != start)
            task = call.tasks[part]
            expected = f"{start + rate * task.microbatch:g}, as the numbers for other microbatches say"
            raise OriginError(f"the {task} reads {_described(number, makers)}, expected {expected}", mesh, call)


def _sum(function: ir.Operation | None, position: int) -> int | None:
    """Returns the result of an argument that a function only adds to, or writes into; None for another argument."""
    if function is None:
        return None
    update = updates(body_of(function), position, (*UPDATES, CONSTRAINT))
    is_sum = update is not None and any(use.owner.operation.name != CONSTRAINT for use in update.uses)
    return update.result if update is not None and is_sum else None


def _finished(
    program: Program,
    values: Sequence[Sequence[_Value | None]],
    makers: Sequence[Maker],
    functions: Mapping[str, ir.Operation | None],
) -> set[_Value]:
    """Returns the sums over several microbatches to which no task adds more."""
    called = {call.function: range(len(call.operands)) for line in program.calls for call in line}
    sums = {name: {n: _sum(functions[name], n) for n in operands} for name, operands in called.items()}
    made, added = set[_Value](), set[_Value]()
    for here, line in zip(values, program.calls, strict=True):
        for call in line:
            for operand, result in sums[call.function].items():
                if result is None:
                    continue
                before, after = here[call.operands[operand]], here[call.results[result]]
                # What adds a bias to a value is no sum: the value is not from the same task of another microbatch.
                if type(before) is tuple and type(after) is tuple and makers[before[1]][:3] == makers[after[1]][:3]:
                    added.add(before)
                    made.add(after)
    return made - added


def _described(value: _Value | None, makers: Sequence[Maker]) -> str:
    if isinstance(value, int):
        return f"the number {value}"
    if value is None:
        return "a value from outside of the loop"
    kind, stage, part, _, result = makers[value[1]]
    return f"value {result} of the {TaskName(kind, stage, value[0], part)}"
