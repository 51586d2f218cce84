"""The memory, FLOPs and sent bytes of each mesh in one step of a program.

All numbers come from the program and from the compiler's statistics of each function. So they are also known for
programs that are compiled for devices which this machine lacks.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxpp.ir.program import Call, Constant, Instruction, Program, Receive, Send, TaskName
from jaxpp.ir.tensors import TensorSpec
from jaxpp.runtime.execution.compiling import FunctionStats, Stats
from jaxpp.runtime.execution.route import route_of

ADDED = ("flops", "transcendentals", "bytes accessed", "optimal_seconds")
"""The entries of XLA's cost analysis that can be summed over calls."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryStats:
    """The bytes that a step takes on each device of one mesh, under the names of `jax.stages.Compiled`.

    Attributes:
        argument_size_in_bytes: the arguments on this mesh.
        output_size_in_bytes: the results on this mesh.
        alias_size_in_bytes: the results that take the buffer of an argument.
        temp_size_in_bytes: the temporaries of the function that has most of them.
        generated_code_size_in_bytes: the code of all functions that this mesh runs.
        peak_memory_in_bytes: the most bytes that the step needs at once, without the code. It counts the arguments,
            the results of tasks until their last use, and the temporaries of the running task. A value from another
            mesh counts from its receive on. Other arrays on the device do not count.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    peak_memory_in_bytes: int


def memory_analysis(program: Program, stats: Stats) -> tuple[MemoryStats | None, ...]:
    """Returns the memory of each mesh; None for a mesh that only other processes run."""
    return tuple(
        memory_of(program, mesh, stats[mesh]) if _knows(program, mesh, stats) else None
        for mesh in range(program.meshes)
    )


def memory_of(program: Program, mesh: int, stats: Mapping[str, FunctionStats]) -> MemoryStats:
    """Returns the memory of one mesh. `stats` has all functions that the mesh runs."""
    return _BufferWalk(program, mesh, stats).analysed()


def host_bytes(program: Program, mesh: int) -> int:
    """Returns the most bytes of host memory that a step needs at once, for each device of a mesh."""
    stats = dict.fromkeys(calls(program, mesh), FunctionStats(0, 0, {}))
    return _BufferWalk(program, mesh, stats, on_host=True).analysed().peak_memory_in_bytes


def cost_analysis(program: Program, stats: Stats) -> tuple[dict[str, float] | None, ...]:
    """Returns the costs of each mesh's tasks per device and step, under XLA's names; None for other processes' meshes.

    XLA counts a loop inside a task as one iteration.
    """
    found: list[dict[str, float] | None] = []
    for mesh in range(program.meshes):
        if not _knows(program, mesh, stats):
            found.append(None)
            continue
        total: Counter[str] = Counter()
        for name, count in calls(program, mesh).items():
            total.update({key: count * value for key, value in stats[mesh][name].costs.items() if key in ADDED})
        found.append(dict(total))
    return tuple(found)


def calls(program: Program, mesh: int) -> Counter[str]:
    """Returns how often a mesh calls each compiled function in a step. Copies and user's functions are left out."""
    names = Counter(each.function for each in program.calls[mesh])
    return Counter({name: count for name, count in names.items() if program.functions[name].is_compiled})


def sent_bytes(program: Program, mesh: int) -> int:
    """Returns the bytes that all devices of a mesh together send to other meshes in a step.

    A part counts once for each receiving device, although a process with several such devices receives the part once
    and copies it.
    """
    sends = (each for each in program.sequences[mesh] if isinstance(each, Send))
    return sum(
        route_of(program, each.channel).size * program.registers[mesh][each.operand].dtype.itemsize for each in sends
    )


def stages(program: Program, mesh: int) -> list[int]:
    """Returns the stages that a mesh runs, sorted."""
    return sorted({task.stage for task in _tasks(program.calls[mesh])})


def microbatches(program: Program) -> int:
    """Returns the number of microbatches in a step."""
    return 1 + max((task.microbatch for calls in program.calls for task in _tasks(calls)), default=-1)


def _tasks(calls: Sequence[Call]) -> Iterator[TaskName]:
    """Yields the tasks of the microbatch loop that a mesh runs, including the tasks of fused calls."""
    return (task for each in calls for task in each.tasks)


def parameters(program: Program, state: Collection[int]) -> dict[int, int]:
    """Returns the parameters of a model: for each argument, the number of elements on each of its meshes.

    A parameter is a floating-point argument that the step returns updated (`state`) and that a microbatch's task reads.
    Operations before the loop, such as a cast, may lie between the argument and the task.
    """
    readers: dict[tuple[int, int], list[tuple[int, Call]]] = {}
    for mesh, called in enumerate(program.calls):
        for each in called:
            for operand in each.operands:
                readers.setdefault((mesh, operand), []).append((mesh, each))
    hops: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for hop in program.hops.values():
        hops.setdefault((hop.source, hop.operand), []).append((hop.target, hop.result))

    def is_read(places: Sequence[tuple[int, int]]) -> bool:
        pending, seen = list(places), set(places)
        while pending:
            place = pending.pop()
            made = list(hops.get(place, ()))
            for mesh, call in readers.get(place, ()):
                if call.tasks:
                    return True
                if call.kind != "after":
                    made += [(mesh, result) for result in call.results]
            pending += [each for each in made if each not in seen]
            seen.update(made)
        return False

    return {
        number: math.prod(argument.spec.shape)
        for number, argument in program.arguments.items()
        if number in state and _is_floating(argument.spec) and is_read(argument.registers)
    }


def _is_floating(spec: TensorSpec) -> bool:
    return spec.dtype.kind in "fc" or spec.dtype.name.startswith(("bfloat", "float"))


def _knows(program: Program, mesh: int, stats: Stats) -> bool:
    return calls(program, mesh).keys() <= stats.get(mesh, {}).keys()


class _BufferWalk:
    """Follows the buffers of one device of a mesh through a step, either in device memory or in host memory.

    A buffer is named by its first register. A result that takes the buffer of an operand keeps that name.

    buffers: the buffer of each register.
    live: the bytes of each buffer that is still needed.
    total: the sum of `live`.
    """

    def __init__(self, program: Program, mesh: int, stats: Mapping[str, FunctionStats], on_host: bool = False) -> None:
        self.program, self.mesh, self.stats, self.on_host = program, mesh, stats, on_host
        self.buffers: dict[int, int] = {}
        self.live: dict[int, int] = {}
        self.total = 0
        self.arguments = {
            register: argument
            for argument in program.arguments.values()
            for owner, register in argument.registers
            if owner == mesh
        }
        self.peak = 0

    def analysed(self) -> MemoryStats:
        for register in self.arguments:
            self._make(register)
        names = calls(self.program, self.mesh)
        for each in self.program.sequences[self.mesh]:
            self._run(each)
        results = {
            register for result in self.program.results for owner, register in result.registers if owner == self.mesh
        }
        return MemoryStats(
            argument_size_in_bytes=sum(map(self._size, self.arguments)),
            output_size_in_bytes=sum(map(self._size, results)),
            alias_size_in_bytes=sum(self._size(each) for each in results if self.buffers[each] in self.arguments),
            temp_size_in_bytes=max((self.stats[name].temp_size_in_bytes for name in names), default=0),
            generated_code_size_in_bytes=sum(self.stats[name].generated_code_size_in_bytes for name in names),
            peak_memory_in_bytes=self.peak,
        )

    def _size(self, register: int) -> int:
        return self.program.shard_bytes(self.mesh, self.program.registers[self.mesh][register])[self.on_host]

    def _make(self, register: int) -> None:
        self.buffers[register] = register
        self.live[register] = self._size(register)
        self.total += self.live[register]
        self.peak = max(self.peak, self.total)

    def _run(self, each: Instruction) -> None:
        if isinstance(each, Constant | Receive):
            self._make(each.result)
            return
        taken = self._call(each) if isinstance(each, Call) else set[int]()
        for register in each.frees:
            if register not in taken:
                self.total -= self.live.pop(self.buffers[register], 0)

    def _call(self, call: Call) -> set[int]:
        """Allocates the results of a call; returns the operands whose buffers the results take over."""
        function = self.program.functions[call.function]
        taken: set[int] = set()
        for register, donor in zip(call.results, function.donors, strict=True):
            if donor is None:
                self._make(register)
            else:
                self.buffers[register] = self.buffers[call.operands[donor]]
                taken.add(call.operands[donor])
        if function.is_compiled:
            self.peak = max(self.peak, self.total + self.stats[call.function].temp_size_in_bytes)
        return taken
