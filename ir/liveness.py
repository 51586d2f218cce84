"""Computes the peak of live bytes along the sequence of a mesh."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jaxpp.ir.program import Call, Instruction, Program, Send


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
    sequence = program.sequences[mesh][:count]
    specs = program.registers[mesh]
    keys = list(map(id, specs))  # the reader shares one object among equal specs; hashing a spec takes long
    sizes = {key: program.shard_bytes(mesh, spec) for key, spec in dict(zip(keys, specs, strict=True)).items()}
    given = [register for each in program.arguments.values() for at, register in each.registers if at == mesh]
    called = {each.function: each.results for each in program.calls[mesh]}  # results of any of its calls
    return [
        _peak_bytes(program, sequence, [sizes[key][pool] for key in keys], given, called, taken)
        if any(size[pool] for size in sizes.values())
        else 0
        for pool, taken in enumerate((temporaries, {}))
    ]


def _peak_bytes(
    program: Program,
    sequence: Sequence[Instruction],
    sizes: Sequence[int],
    given: Sequence[int],
    called: Mapping[str, Sequence[int]],
    temporaries: Mapping[str, int],
) -> int:
    """Returns the peak of live bytes along `sequence`.

    Args:
        program: the program.
        sequence: instructions of one mesh.
        sizes: the bytes of each register.
        given: the registers that hold arguments.
        called: for each function that the mesh calls, the registers of the results of one call.
        temporaries: as in `peaks_on`.
    """
    size = sizes.__getitem__
    made = {name: sum(map(size, results)) for name, results in called.items()}
    beside = {
        name: temporaries.get(name, 0)
        - sum(size(results[n]) for n, donor in enumerate(program.functions[name].donors) if donor is not None)
        for name, results in called.items()
    }
    alive = peak = sum(map(size, given))
    for each in sequence:
        if isinstance(each, Call):
            alive += made[each.function]
            peak = max(peak, alive + beside[each.function])
        elif not isinstance(each, Send):
            alive += sizes[each.result]
            peak = max(peak, alive)
            continue
        alive -= sum(map(size, each.frees))
    return peak
