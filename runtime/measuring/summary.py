"""`summary`: a table about a program for people, with one row per mesh."""

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from itertools import chain

from jaxpp.ir.flops import matrix_flops
from jaxpp.ir.program import Program
from jaxpp.runtime.measuring.analysis import (
    MemoryStats,
    Stats,
    calls,
    memory_analysis,
    microbatches,
    parameters,
    sent_bytes,
    stages,
)
from jaxpp.runtime.measuring.units import bytes_text, count_text, flops_text, table
from jaxpp.schedules.errors import counted

_COLUMNS = ("mesh", "stages", "parameters", "FLOPs", "sends", "arguments", "temporaries", "peak")
_NOTE = (
    "FLOPs: of the matrix products and convolutions of one call, counted once where several devices repeat it.",
    "What is sent: by one call, all devices of a mesh together.",
    "Arguments, temporaries of the largest task and peak memory: of each device; the last row has the largest.",
)


def title(program: Program, name: str) -> str:
    """Returns a line, `train_step: 4 stages on 4 meshes of 2 devices, 8 microbatches, 9 programs`."""
    count = 1 + max((stage for mesh in range(program.meshes) for stage in stages(program, mesh)), default=-1)
    sizes = program.partitions
    devices = f"{', '.join(map(str, sizes))} devices" if len(set(sizes)) > 1 else counted(sizes[0], "device")
    programs = {name for mesh in range(program.meshes) for name in calls(program, mesh)}
    return (
        f"{name}: {counted(count, 'stage')} on {counted(program.meshes, 'mesh', 'es')} of {devices}, "
        f"{counted(microbatches(program), 'microbatch', 'es')}, {counted(len(programs), 'program')}"
    )


def summary(
    program: Program,
    stats: Stats,
    *,
    name: str,
    device: str,
    state: Collection[int],
    rows_sent: int = 0,
    rows_padded: int = 0,
) -> str:
    """Returns a plain-text table of the parameters, FLOPs, sent bytes and memory of each mesh in one step.

    stats: the statistics of the functions that this process has compiled.
    device: the name of the kind of device.
    state: the arguments that the step returns updated.
    rows_sent: the bytes of stacked layers that a step sends to the meshes of their stages.
    rows_padded: the bytes of stacked layers that no stage reads.
    """

    @cache
    def flops(function: str) -> int:
        return matrix_flops(program.functions[function].bytecode)

    memory = memory_analysis(program, stats)
    elements = parameters(program, state)
    per_mesh: Counter[int] = Counter()
    for number, count in elements.items():
        per_mesh.update({mesh: count for mesh, _ in program.arguments[number].registers})
    work = [
        sum(count * flops(function) for function, count in calls(program, mesh).items())
        for mesh in range(program.meshes)
    ]
    sent = [sent_bytes(program, mesh) for mesh in range(program.meshes)]
    rows = [
        (
            str(mesh),
            ", ".join(map(str, stages(program, mesh))) or "-",
            count_text(per_mesh[mesh]) if elements else "-",
            flops_text(work[mesh]),
            bytes_text(sent[mesh]),
            *_memory_texts([memory[mesh]]),
        )
        for mesh in range(program.meshes)
    ]
    arguments = {number: program.arguments[number] for number in elements}
    distinct = sum(
        count * (len(arguments[number].registers) if arguments[number].stacked else 1)
        for number, count in elements.items()
    )
    total = ("all", "", count_text(distinct) if elements else "-", flops_text(sum(work)), bytes_text(sum(sent)))
    rows.append((*total, *_memory_texts(memory)))
    notes = [*_NOTE]
    if idle := [mesh for mesh, count in enumerate(work) if not count and any(work) and not per_mesh[mesh]]:
        notes.append(
            f"Without parameters and products: mesh {', '.join(map(str, idle))}. Is a stage mark missing, or before a "
            "layer in place of after it?"
        )
    if rows_sent:
        notes += [
            f"Of what is sent: {bytes_text(rows_sent)} of stacked layers go to the meshes of their stages, "
            "their gradients back.",
            "With the layers stored in the order of `jaxpp.models.rows_of_layers` none would be sent.",
        ]
    if rows_padded:
        notes.append(f"Of the memory: {bytes_text(rows_padded)} are padding of stacked layers (`rows_of_layers`).")
    every = chain.from_iterable(program.calls)
    own = Counter(each.kind for each in every if program.functions[each.function].is_operation)
    if own:
        counts = ", ".join(f"{kind} {counted(count, 'time')}" for kind, count in sorted(own.items()))
        notes.append(f"Functions of your own, called by one step: {counts}.")
    return "\n".join([f"{title(program, name)} ({device})", "", *table(_COLUMNS, rows, total=True), "", *notes])


def _memory_texts(found: Iterable[MemoryStats | None]) -> tuple[str, ...]:
    """Returns texts for arguments, temporaries and peak: the largest of each over the meshes that are known."""
    known = [each for each in found if each is not None]
    columns = (
        [each.argument_size_in_bytes for each in known],
        [each.temp_size_in_bytes for each in known],
        [each.peak_memory_in_bytes for each in known],
    )
    return tuple(bytes_text(max(column)) if column else "-" for column in columns)
