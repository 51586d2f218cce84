"""Makes the plan of a compiled program."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jaxpp.ir.kinds import AROUND
from jaxpp.ir.program import Call, Program
from jaxpp.planning.compiling import Compiled, compilers
from jaxpp.planning.estimate import CallSeconds, Network, busiest_bytes, message_seconds, predict, seconds_of
from jaxpp.planning.numbers import HopPlan, MeshPlan, ProgramPlan
from jaxpp.planning.plan import Plan
from jaxpp.runtime import Event, measured_costs
from jaxpp.runtime.execution.compiling import FunctionStats
from jaxpp.runtime.execution.route import channel_bytes
from jaxpp.runtime.measuring.analysis import calls, host_bytes, memory_of, microbatches, sent_bytes, stages
from jaxpp.targets.target import Target


def make_plan(
    program: Program,
    compiled: Mapping[str, Compiled],
    meshes: Sequence[Sequence[Any]],
    target: Target,
    *,
    name: str,
    schedule: str,
) -> tuple[Plan, list[Event]]:
    """Returns the plan of a step, and its predicted events.

    Args:
        program: the program of the step.
        compiled: the statistics of each function that it calls.
        meshes: the devices of each mesh, from `target`.
        target: the target.
        name: the name of the step.
        schedule: its schedule as a grid.
    """
    network = Network(target, tuple(frozenset(map(target.host_of, devices)) for devices in meshes))
    users: dict[str, list[tuple[int, Call]]] = {}
    for mesh, called in enumerate(program.calls):
        for each in called:
            users.setdefault(each.function, []).append((mesh, each))
    seconds = {function: seconds_of(each, target.chip) for function, each in compiled.items()}
    events = predict(program, {function: each.total for function, each in seconds.items()}, network)
    hidden = predict(program, {function: each.hidden for function, each in seconds.items()}, network)
    programs = [
        _program_plan(program, users[function], each, seconds[function], target) for function, each in compiled.items()
    ]
    by_name = {each.name: each for each in programs}
    elements: Counter[str] = Counter()
    for function, each in compiled.items():
        elements.update({element: len(users[function]) * count for element, count in each.products.items()})
    plan = Plan(
        name=name,
        target=target.name,
        chip=target.chip.name,
        compilers=compilers(target),
        microbatches=microbatches(program),
        schedule=schedule,
        step_seconds=max((each.end for each in events), default=0.0),
        hidden_seconds=max((each.end for each in hidden), default=0.0),
        prepare_seconds=0.0,
        model_flops=_model_flops(program, programs),
        products=dict(elements),
        meshes=tuple(_mesh_plan(program, mesh, by_name, network) for mesh in range(program.meshes)),
        programs=tuple(sorted(programs, key=lambda each: -each.calls * each.seconds)),
        hops=_hops(program, network),
        cost_table=_cost_table(program, events, network),
    )
    return plan, events


def _program_plan(
    program: Program, users: Sequence[tuple[int, Call]], compiled: Compiled, seconds: CallSeconds, target: Target
) -> ProgramPlan:
    """Returns the plan of a function that is compiled. `users` are its calls, each with its mesh."""
    mesh, call = users[0]
    function = program.functions[call.function]
    on_host = 1 if target.platform == "cuda" else 0  # its compiler counts both memories together
    sizes = [program.shard_bytes(mesh, spec) for spec in (*function.arguments, *function.results)]
    taken = [program.shard_bytes(mesh, function.arguments[donor]) for donor in function.donors if donor is not None]
    accounted = sum(size[0] + on_host * size[1] for size in sizes) - sum(size[0] + on_host * size[1] for size in taken)
    return ProgramPlan(
        name=function.name,
        kind=function.kind,
        stages=tuple(sorted({task.stage for _, each in users for task in each.tasks})),
        calls=len(users),
        argument_bytes=compiled.argument_bytes,
        output_bytes=compiled.output_bytes,
        alias_bytes=compiled.alias_bytes,
        temp_bytes=compiled.temp_bytes,
        code_bytes=compiled.code_bytes,
        accounted_bytes=accounted,
        products=sum(compiled.products.values()),
        accessed_bytes=compiled.trips * compiled.accessed_bytes,
        collective_bytes=compiled.trips * compiled.collective_bytes,
        seconds=seconds.total,
        product_seconds=seconds.products,
        memory_seconds=seconds.memory,
        collective_seconds=seconds.collectives,
        compile_seconds=compiled.compile_seconds,
        timed_by="compiler" if compiled.optimal_seconds else "roofline",
    )


def _mesh_plan(program: Program, mesh: int, programs: Mapping[str, ProgramPlan], network: Network) -> MeshPlan:
    """Returns the plan of one mesh. Its peak is the program's own, plus padding, temporaries and machine code."""
    counts = calls(program, mesh)
    stats = {
        (name, mesh): FunctionStats(programs[name].temp_bytes + max(programs[name].padding_bytes, 0), 0, {})
        for name in counts
    }
    memory = memory_of(program, mesh, stats)

    def seconds(what: str) -> float:
        return sum(count * getattr(programs[name], what) for name, count in counts.items())

    return MeshPlan(
        stages=tuple(stages(program, mesh)),
        devices=program.partitions[mesh],
        hosts=len(network.hosts[mesh]),
        argument_bytes=memory.argument_size_in_bytes,
        temp_bytes=max((programs[name].temp_bytes for name in counts), default=0),
        peak_bytes=memory.peak_memory_in_bytes + sum(programs[name].code_bytes for name in counts),
        host_bytes=host_bytes(program, mesh),
        products=sum(count * programs[name].products for name, count in counts.items()),
        sent_bytes=sent_bytes(program, mesh),
        busy_seconds=seconds("seconds"),
        product_seconds=seconds("product_seconds"),
        memory_seconds=seconds("memory_seconds"),
        collective_seconds=seconds("collective_seconds"),
        calls=sum(counts.values()),
        compile_seconds=max((programs[name].compile_seconds for name in counts), default=0.0),
    )


def _hops(program: Program, network: Network) -> tuple[HopPlan, ...]:
    found: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for channel, hop in program.hops.items():
        sent = channel_bytes(program, channel), message_seconds(program, channel, network)
        found.setdefault((hop.source, hop.target), []).append(sent)
    return tuple(
        HopPlan(*pair, len(each), sum(size for size, _ in each), max(seconds for _, seconds in each))
        for pair, each in sorted(found.items())
    )


def _model_flops(program: Program, programs: Sequence[ProgramPlan]) -> int:
    """Returns `Numbers.model_flops`.

    These are three times the products of the forwards, or once if there is nothing else. If the forward of a stage has
    no program of its own, these are the products of all tasks.
    """
    tasks = [task for calls in program.calls for each in calls for task in each.tasks]
    forwards = [each for each in programs if each.kind == "forward"]
    if {stage for each in forwards for stage in each.stages} >= {task.stage for task in tasks}:
        is_training = any(task.kind != "forward" for task in tasks)
        return (3 if is_training else 1) * sum(each.calls * each.products for each in forwards)
    return sum(each.calls * each.products for each in programs if each.kind not in AROUND)


def _cost_table(program: Program, events: Sequence[Event], network: Network) -> dict[str, object]:
    """Returns the costs of predicted events in ms, with a latency and a bandwidth for each pair of meshes."""
    costs = measured_costs(program, events, unit="ms")
    share, meshes = network.target.chip.efficiency.links, range(program.meshes)
    spread = _spread(program)
    links = [[network.across(source, target) for target in meshes] for source in meshes]
    made = dataclasses.replace(
        costs,
        hop=[[0.0 if i == j else 1e3 * links[i][j].latency for j in meshes] for i in meshes],
        bandwidth=[
            [math.inf if i == j else links[i][j].bandwidth * share * spread / 1e3 for j in meshes] for i in meshes
        ],
        copy_bandwidth=network.target.chip.host.bandwidth * max(program.partitions) / 1e3,
    )
    return made.table()


def _spread(program: Program) -> float:
    """Returns the number of links that carry the bytes of a message in parallel: the median over all messages."""
    found: list[float] = []
    for channel, hop in program.hops.items():
        spec = program.registers[hop.source][hop.operand]
        if any(spec.axes) or math.prod(spec.shape) > 1:
            found.append(spec.bytes / max(busiest_bytes(program, channel), 1))
    return statistics.median(found) if found else 1.0
