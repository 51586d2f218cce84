"""The memory, FLOPs and sent bytes of each mesh in one step of a program.

All numbers come from the program and from the compiler's statistics of each function. So they are also known for
programs that are compiled for devices which this machine lacks.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from jaxpp.ir.liveness import peaks_on
from jaxpp.ir.program import Call, Place, Program, Send, TaskName
from jaxpp.ir.tensors import TensorSpec
from jaxpp.ir.values import closure
from jaxpp.runtime.execution.compiling import Stats
from jaxpp.runtime.execution.route import channel_bytes

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
        memory_of(program, mesh, stats) if _knows(program, mesh, stats) else None for mesh in range(program.meshes)
    )


def memory_of(program: Program, mesh: int, stats: Stats) -> MemoryStats:
    """Returns the memory of one mesh. `stats` has all functions that the mesh runs."""

    def size(registers: Iterable[int]) -> int:
        return sum(program.shard_bytes(mesh, program.registers[mesh][register])[0] for register in registers)

    def buffer(register: int) -> int:
        while register in reused:
            register = reused[register]
        return register

    donors = {name: program.functions[name].donors for name in {each.function for each in program.calls[mesh]}}
    reused = {
        result: each.operands[donor]
        for each in program.calls[mesh]
        for result, donor in zip(each.results, donors[each.function], strict=True)
        if donor is not None
    }
    arguments = {register for each in program.arguments.values() for at, register in each.registers if at == mesh}
    results = {register for each in program.results for at, register in each.registers if at == mesh}
    called = {name: stats[name, mesh] for name in calls(program, mesh)}
    temporaries = {name: each.temp_size_in_bytes for name, each in called.items()}
    return MemoryStats(
        argument_size_in_bytes=size(arguments),
        output_size_in_bytes=size(results),
        alias_size_in_bytes=size(each for each in results if buffer(each) in arguments),
        temp_size_in_bytes=max(temporaries.values(), default=0),
        generated_code_size_in_bytes=sum(each.generated_code_size_in_bytes for each in called.values()),
        peak_memory_in_bytes=peaks_on(program, mesh, temporaries)[0],
    )


def host_bytes(program: Program, mesh: int) -> int:
    """Returns the most bytes of host memory that a step needs at once, for each device of a mesh."""
    return peaks_on(program, mesh)[1]


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
            total.update({key: count * value for key, value in stats[name, mesh].costs.items() if key in ADDED})
        found.append(dict(total))
    return tuple(found)


def calls(program: Program, mesh: int) -> Counter[str]:
    """Returns how often a mesh calls each compiled function in a step. Copies and user's functions are left out."""
    names = Counter(each.function for each in program.calls[mesh])
    return Counter({name: count for name, count in names.items() if program.functions[name].is_compiled})


def sent_bytes(program: Program, mesh: int) -> int:
    """Returns the bytes that all devices of a mesh together send to other meshes in a step: see `channel_bytes`."""
    return sum(channel_bytes(program, each.channel) for each in program.sequences[mesh] if isinstance(each, Send))


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
    readers: dict[Place, list[Call]] = {}
    for mesh, called in enumerate(program.calls):
        for each in called:
            for operand in each.operands:
                readers.setdefault((mesh, operand), []).append(each)
    hops: dict[Place, list[Place]] = {}
    for hop in program.hops.values():
        hops.setdefault((hop.source, hop.operand), []).append((hop.target, hop.result))

    def following(place: Place) -> list[Place]:
        before = [call for call in readers.get(place, ()) if not call.tasks and call.kind != "after"]
        return [*hops.get(place, ()), *((place[0], result) for call in before for result in call.results)]

    def is_read(places: Sequence[Place]) -> bool:
        return any(call.tasks for place in closure(places, following) for call in readers.get(place, ()))

    return {
        number: math.prod(argument.spec.shape)
        for number, argument in program.arguments.items()
        if number in state and _is_floating(argument.spec) and is_read(argument.registers)
    }


def _is_floating(spec: TensorSpec) -> bool:
    return spec.dtype.kind in "fc" or spec.dtype.name.startswith(("bfloat", "float"))


def _knows(program: Program, mesh: int, stats: Stats) -> bool:
    return all((name, mesh) in stats for name in calls(program, mesh))
