"""The program (docs/ir.md, section 6) as plain Python data, as `load` reads it and the runtime runs it."""

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jaxpp.ir.kinds import FORMS
from jaxpp.ir.tensors import TensorSpec

Place = tuple[int, int]
"""(mesh, its register)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One stage program: what is compiled, once, and run by calls.

    bytecode: a module of its own with `@main`, the `sdy.mesh`, and the functions that it calls.
    donates: the arguments whose buffer becomes a result's.
    sums: of a weight gradient that only adds to sums, for each result the number of the argument that it adds
        to: where such a call is left out, its results are these.
    gathered: the results of a task that are weights, gathered beside it for tasks after it: of no microbatch.
    is_operation: whether the user's own function of the name `kind` is called in its place; it has no results.
    argument_parts: of a function that is several tasks, the number of the task that each argument is for; else empty.
    result_parts: likewise.
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
        """Whether it returns its arguments as they are, in another memory or not: there is nothing to compile."""
        return self.kind in FORMS and FORMS[self.kind].is_copy

    @property
    def is_compiled(self) -> bool:
        """Whether it is a program of its own: not a copy, and not a function of the user's."""
        return not (self.is_copy or self.is_operation)

    @property
    def donors(self) -> list[int | None]:
        """For each result the number of the argument whose buffer it takes: the first donated one of its type."""
        free = list(self.donates)
        found: list[int | None] = []
        for spec in self.results:
            donor = next((number for number in free if self.arguments[number] == spec), None)
            if donor is not None:
                free.remove(donor)
            found.append(donor)
        return found


# Instructions are many, and take four times as long to make if they are frozen; nobody changes one.


@dataclasses.dataclass(slots=True)
class Constant:
    """`value` is in register `result` from the start."""

    result: int
    value: np.ndarray[Any, Any]
    spec: TensorSpec


class TaskName(NamedTuple):
    """A task of the microbatch loop: of one slice of the sequence, where the schedule cuts it."""

    kind: str
    stage: int
    microbatch: int
    slice: int = 0

    def __str__(self) -> str:
        part = f", slice {self.slice}" if self.slice else ""
        return f"{self.kind} of stage {self.stage}, microbatch {self.microbatch}{part}"


@dataclasses.dataclass(slots=True)
class Call:
    """Run `function` on the registers `operands`; what it returns goes to the registers `results`.

    frees: the registers that nobody on this mesh reads afterwards.
    fused: the tasks that the call is, if it is several (a forward and a backward, say); then it has no `stage` and no
        `microbatch`, and its `kind` is theirs, joined by "+".
    slice: of the sequence, where the schedule cuts it.
    """

    function: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    kind: str
    stage: int | None
    microbatch: int | None
    frees: tuple[int, ...]
    fused: tuple[TaskName, ...] = ()
    slice: int = 0

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """The tasks of the microbatch loop that it is: one, several that are fused, or none."""
        if self.stage is None or self.microbatch is None:
            return self.fused
        return (TaskName(self.kind, self.stage, self.microbatch, self.slice),)

    def maker(self, result: int, function: Function) -> TaskName | None:
        """The task that makes the result of this number; None for a gathered weight, and for a call that is no task."""
        tasks = () if result in function.gathered else self.tasks
        return tasks[function.result_parts[result] if len(tasks) > 1 else 0] if tasks else None

    def __str__(self) -> str:
        if self.tasks:
            return " + ".join(map(str, self.tasks))
        stage = "" if self.stage is None else f" of stage {self.stage}"
        microbatch = "" if self.microbatch is None else f", microbatch {self.microbatch}"
        return f"{self.kind or self.function}{stage}{microbatch}"


@dataclasses.dataclass(slots=True)
class Send:
    """Send the register `operand` to the mesh `destination` on a channel that is used once."""

    channel: int
    operand: int
    destination: int
    frees: tuple[int, ...]

    def __str__(self) -> str:
        return f"send on channel {self.channel}"


@dataclasses.dataclass(slots=True)
class Receive:
    """Put what the mesh `source` sends on the channel into the register `result`."""

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
    stacked: each register has another block of it along the first dimension, in this order; `spec` is that of a block.
    """

    spec: TensorSpec
    donated: bool
    registers: tuple[tuple[int, int], ...]
    stacked: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A result of the program. registers: (mesh, register) wherever it lives; `stacked` as of an Argument."""

    spec: TensorSpec
    registers: tuple[tuple[int, int], ...]
    stacked: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Program:
    """One instruction sequence per mesh, over registers numbered 0, 1, ... on each mesh.

    registers: for each mesh the spec of each register.
    arguments: by number; a number that no mesh names is absent.
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
        calls, sends = (
            sum(isinstance(each, kind) for sequence in self.sequences for each in sequence) for kind in (Call, Send)
        )
        counts = f"{len(self.functions)} functions, {calls} calls, {sends} sends"
        return f"<Program of {self.meshes} mesh{'es' * (self.meshes != 1)}: {counts}>"

    def shard_bytes(self, mesh: int, spec: TensorSpec) -> tuple[int, int]:
        """The bytes that a value takes for each device of a mesh: (in its memory, in that of the host)."""
        sizes = self.axis_sizes[mesh]
        shards = math.prod(sizes[axis] if isinstance(axis, str) else axis.size for axes in spec.axes for axis in axes)
        size = spec.bytes // shards
        return (0, size) if spec.memory else (size, 0)

    @cached_property
    def hops(self) -> Mapping[int, Hop]:
        """Every transfer, by its channel."""
        results = {
            each.channel: each.result for sequence in self.sequences for each in sequence if isinstance(each, Receive)
        }
        return {
            each.channel: Hop(mesh, each.operand, each.destination, results[each.channel])
            for mesh, sequence in enumerate(self.sequences)
            for each in sequence
            if isinstance(each, Send)
        }
