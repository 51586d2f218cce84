"""The program (docs/ir.md, section 6) as plain Python data: `load` reads it, and the runtime runs it."""

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jaxpp.ir.kinds import FORMS
from jaxpp.ir.tensors import TensorSpec

Place = tuple[int, int]
"""A mesh, and a register on it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A function of the program, which is compiled once and run by calls.

    bytecode: a module of its own with `@main`, the `sdy.mesh`, and the functions that it calls.
    donates: the arguments whose buffers become those of results.
    sums: for each result of a weight gradient that only adds to sums, the number of the argument that it adds to.
        Where such a call is left out, these arguments are its results.
    gathered: the results of a task that are weights, gathered beside it for later tasks. They have no microbatch.
    is_operation: whether a call runs the user's function of the name `kind` instead; it has no results.
    argument_parts: in a fused function, the index of the task that each argument is for; otherwise empty.
    result_parts: the same for each result.
    """

    name: str
    kind: str
    stage: int | None
    arguments: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    donates: tuple[int, ...]
    bytecode: bytes
    argument_parts: tuple[int, ...] = ()
    result_parts: tuple[int, ...] = ()
    is_operation: bool = False
    sums: tuple[int, ...] = ()
    gathered: tuple[int, ...] = ()

    @property
    def is_copy(self) -> bool:
        """Whether it returns its arguments as they are, perhaps in another memory: there is nothing to compile."""
        return self.kind in FORMS and FORMS[self.kind].is_copy

    @property
    def is_compiled(self) -> bool:
        """Whether it is compiled: it is neither a copy nor a user's function."""
        return not (self.is_copy or self.is_operation)

    @property
    def donors(self) -> list[int | None]:
        """For each result the argument whose buffer it takes: the first donated one of its spec, if one is left."""
        free = list(self.donates)
        found: list[int | None] = []
        for spec in self.results:
            donor = next((number for number in free if self.arguments[number] == spec), None)
            if donor is not None:
                free.remove(donor)
            found.append(donor)
        return found


# Instructions are many, and frozen ones take four times as long to make. They are not frozen, but only `plan-buffers`
# changes them: what they free, and which of equal functions they call.


@dataclasses.dataclass(slots=True)
class Constant:
    """A constant: register `result` holds `value` from the start."""

    result: int
    value: np.ndarray[Any, Any]
    spec: TensorSpec


class TaskName(NamedTuple):
    """A task of the microbatch loop, and the slice that it is for where the schedule cuts the sequence."""

    kind: str
    stage: int
    microbatch: int
    slice: int = 0

    def __str__(self) -> str:
        part = f", slice {self.slice}" if self.slice else ""
        return f"{self.kind} of stage {self.stage}, microbatch {self.microbatch}{part}"


@dataclasses.dataclass(slots=True)
class Call:
    """A call: runs `function` on the registers `operands`, and puts its results into the registers `results`.

    tasks: the tasks of the microbatch loop that the call runs: one, several that are fused, or none. The `kind` of
        several joins their kinds by "+".
    frees: the registers that nobody on this mesh reads afterwards.
    """

    function: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    kind: str
    tasks: tuple[TaskName, ...]
    frees: tuple[int, ...]

    @property
    def stage(self) -> int | None:
        """The stage of a call of one task."""
        return self.tasks[0].stage if len(self.tasks) == 1 else None

    @property
    def microbatch(self) -> int | None:
        """The microbatch of a call of one task."""
        return self.tasks[0].microbatch if len(self.tasks) == 1 else None

    @property
    def slice(self) -> int:
        """The slice of the sequence, where the schedule cuts it, of a call of one task."""
        return self.tasks[0].slice if len(self.tasks) == 1 else 0

    @property
    def fused(self) -> tuple[TaskName, ...]:
        """The tasks of a call of several."""
        return self.tasks if len(self.tasks) > 1 else ()

    def maker(self, result: int, function: Function) -> TaskName | None:
        """Returns the task that makes a result; None for a gathered weight, and for a call that is no task."""
        tasks = () if result in function.gathered else self.tasks
        return tasks[function.result_parts[result] if len(tasks) > 1 else 0] if tasks else None

    def __str__(self) -> str:
        return " + ".join(map(str, self.tasks)) or self.kind or self.function


@dataclasses.dataclass(slots=True)
class Send:
    """A send of the register `operand` to the mesh `destination`, on a channel that is used once."""

    channel: int
    operand: int
    destination: int
    frees: tuple[int, ...]

    def __str__(self) -> str:
        return f"send on channel {self.channel}"


@dataclasses.dataclass(slots=True)
class Receive:
    """A receive: puts the value that the mesh `source` sends on the channel into the register `result`."""

    channel: int
    result: int
    source: int

    def __str__(self) -> str:
        return f"receive on channel {self.channel}"


class Hop(NamedTuple):
    """A transfer: the register `operand` of mesh `source` goes to the register `result` of mesh `target`."""

    source: int
    operand: int
    target: int
    result: int


Instruction = Constant | Call | Send | Receive


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the program.

    registers: (mesh, register) wherever it lives; none if nobody uses it.
    stacked: whether each register has another block of it, along the first dimension and in this order. `spec` is then
        the spec of a block.
    """

    spec: TensorSpec
    donated: bool
    registers: tuple[tuple[int, int], ...]
    stacked: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A result of the program. registers: (mesh, register) wherever it lives; `stacked` is as in an Argument."""

    spec: TensorSpec
    registers: tuple[tuple[int, int], ...]
    stacked: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Program:
    """One instruction sequence per mesh, over registers numbered 0, 1, ... on each mesh.

    registers: for each mesh the spec of each register.
    arguments: the arguments by number; one that no mesh uses is absent.
    partitions: for each mesh the number of its devices.
    axis_sizes: for each mesh the sizes of its axes; empty where the program has no `sdy.mesh`.
    """

    meshes: int
    partitions: tuple[int, ...]
    axis_sizes: tuple[Mapping[str, int], ...]
    functions: Mapping[str, Function]
    sequences: tuple[tuple[Instruction, ...], ...]
    registers: tuple[tuple[TensorSpec, ...], ...]
    arguments: Mapping[int, Argument]
    results: tuple[Result, ...]

    def __repr__(self) -> str:
        counts = f"{len(self.functions)} functions, {sum(map(len, self.calls))} calls, {len(self.hops)} sends"
        return f"<Program of {self.meshes} mesh{'es' * (self.meshes != 1)}: {counts}>"

    @cached_property
    def calls(self) -> tuple[tuple[Call, ...], ...]:
        """The calls of each mesh, in their order."""
        return tuple(tuple([each for each in sequence if isinstance(each, Call)]) for sequence in self.sequences)

    def shard_bytes(self, mesh: int, spec: TensorSpec) -> tuple[int, int]:
        """Returns the bytes of a value for each device of a mesh: (in the device's memory, in the host's memory)."""
        sizes = self.axis_sizes[mesh]
        shards = math.prod(sizes[axis] if isinstance(axis, str) else axis.size for axes in spec.axes for axis in axes)
        size = spec.bytes // shards
        return (0, size) if spec.memory else (size, 0)

    def run_order(self) -> Iterator[tuple[int, Instruction]]:
        """Yields (mesh, instruction) in an order in which all can run: each mesh goes on until it waits for a value.

        A send never waits. Instructions of meshes that wait for one another forever are left out.
        """
        lines = [iter(sequence) for sequence in self.sequences]
        sent, waiting = set[int](), dict[int, tuple[int, Receive]]()
        ready = deque(range(self.meshes))
        while ready:
            mesh = ready.popleft()
            for each in lines[mesh]:
                if isinstance(each, Receive) and each.channel not in sent:
                    waiting[each.channel] = mesh, each
                    break
                yield mesh, each
                if isinstance(each, Send):
                    sent.add(each.channel)
                    if each.channel in waiting:
                        yield (receiver := waiting.pop(each.channel))
                        ready.append(receiver[0])

    @cached_property
    def sent(self) -> Mapping[int, Place]:
        """The place of every value that is sent, by its channel."""
        pairs = ((mesh, each) for mesh, sequence in enumerate(self.sequences) for each in sequence)
        return {each.channel: (mesh, each.operand) for mesh, each in pairs if isinstance(each, Send)}

    @cached_property
    def hops(self) -> Mapping[int, Hop]:
        """Every transfer, by its channel."""
        pairs = ((mesh, each) for mesh, sequence in enumerate(self.sequences) for each in sequence)
        sent = self.sent
        return {
            each.channel: Hop(*sent[each.channel], mesh, each.result)
            for mesh, each in pairs
            if isinstance(each, Receive)
        }
