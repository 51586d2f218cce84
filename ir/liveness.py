"""Computes the peak of live bytes along the sequence of a mesh."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from jaxpp.ir.program import Call, Program, Send


def peaks_of(program: Program) -> list[list[int]]:
    """Returns for each mesh the peak of live bytes on each device, and the peak in the memory of its host.

    Both include arguments and constants.
    """
    return [peaks_on(program, mesh) for mesh in range(program.meshes)]


def loop_peaks(program: Program) -> list[int]:
    """Returns for each mesh the peak of live bytes on each device, up to the mesh's last task."""
    lasts = [
        max((at for at, each in enumerate(line) if isinstance(each, Call) and each.tasks), default=-1)
        for line in program.sequences
    ]
    return [peaks_on(program, mesh, count=last + 1)[0] for mesh, last in enumerate(lasts)]


def peaks_on(
    program: Program, mesh: int, temporaries: Mapping[str, int] = MappingProxyType({}), count: int | None = None
) -> list[int]:
    """Returns the peaks of live bytes of a mesh on each device, and in the memory of its host.

    Args:
        program: the program.
        mesh: the mesh.
        temporaries: the bytes that some functions take on each device while they run.
        count: if given, only this many instructions of the mesh count.
    """
    on_host = any(spec.memory for spec in program.registers[mesh])
    pools = range(2 if on_host else 1)
    peaks = [_peak(*live_changes(program, mesh, pool, temporaries, count)) for pool in pools]
    return peaks if on_host else [*peaks, 0]


class LiveChange(NamedTuple):
    """The change of the live bytes of a mesh by one instruction.

    Attributes:
        made: the bytes of its results.
        beside: the bytes that it takes only while it runs: temporaries, less the results that take operands' buffers.
        freed: the bytes of the values that nobody reads afterwards.
    """

    made: int
    beside: int
    freed: int


def live_changes(
    program: Program,
    mesh: int,
    pool: int = 0,
    temporaries: Mapping[str, int] = MappingProxyType({}),
    count: int | None = None,
) -> tuple[int, list[LiveChange]]:
    """Returns the live bytes of a mesh at the start of a step, and the change by each of its instructions.

    Args:
        program: the program.
        mesh: the mesh.
        pool: 0 for the memory of a device, 1 for the memory of its host.
        temporaries: as in `peaks_on`; they are in the memory of the device.
        count: as in `peaks_on`.
    """
    sequence = program.sequences[mesh][:count]
    specs = program.registers[mesh]
    keys = list(map(id, specs))  # the reader shares one object among equal specs; hashing a spec takes long
    by_key = {key: program.shard_bytes(mesh, spec)[pool] for key, spec in dict(zip(keys, specs, strict=True)).items()}
    sizes = [by_key[key] for key in keys]
    size = sizes.__getitem__
    given = sum(sizes[register] for each in program.arguments.values() for at, register in each.registers if at == mesh)
    called = {each.function: each.results for each in program.calls[mesh]}  # results of any of its calls
    made = {name: sum(map(size, results)) for name, results in called.items()}
    beside = {
        name: (0 if pool else temporaries.get(name, 0))
        - sum(size(results[n]) for n, donor in enumerate(program.functions[name].donors) if donor is not None)
        for name, results in called.items()
    }
    found: list[LiveChange] = []
    for each in sequence:
        if isinstance(each, Call):
            found.append(LiveChange(made[each.function], beside[each.function], sum(map(size, each.frees))))
        elif isinstance(each, Send):
            found.append(LiveChange(0, 0, sum(map(size, each.frees))))
        else:
            found.append(LiveChange(sizes[each.result], 0, 0))
    return given, found


def _peak(given: int, changes: Sequence[LiveChange]) -> int:
    """Returns the peak of the live bytes, from the bytes at the start and the changes."""
    alive = peak = given
    for made, beside, freed in changes:
        alive += made
        peak = max(peak, alive + beside)
        alive -= freed
    return peak
