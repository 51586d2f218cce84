"""Computes the peak of live bytes along the sequence of a mesh."""

from collections.abc import Mapping, Sequence

from jaxpp.ir.program import Call, Instruction, Program, Send


def peaks_of(program: Program) -> list[list[int]]:
    """Returns for each mesh the peak of live bytes on each device, and the peak in the memory of its host.

    Both include arguments and constants.
    """
    return [_bytes_on(program, mesh) for mesh in range(program.meshes)]


def loop_peaks(program: Program) -> list[int]:
    """Returns for each mesh the peak of live bytes on each device, up to the mesh's last task."""
    lasts = [
        max((at for at, each in enumerate(line) if isinstance(each, Call) and each.tasks), default=-1)
        for line in program.sequences
    ]
    return [_bytes_on(program, mesh, last + 1)[0] for mesh, last in enumerate(lasts)]


def _bytes_on(program: Program, mesh: int, count: int | None = None) -> list[int]:
    """Returns the peaks of a mesh in device and in host memory, over its first `count` instructions if given."""
    sequence = program.sequences[mesh][:count]
    specs = program.registers[mesh]
    keys = list(map(id, specs))  # the reader shares one object among equal specs; hashing a spec takes long
    sizes = {key: program.shard_bytes(mesh, spec) for key, spec in dict(zip(keys, specs, strict=True)).items()}
    given = [register for each in program.arguments.values() for at, register in each.registers if at == mesh]
    called = {each.function: each.results for each in program.calls[mesh]}  # results of any of its calls
    return [
        _peak_bytes(program, sequence, [sizes[key][pool] for key in keys], given, called)
        if any(size[pool] for size in sizes.values())
        else 0
        for pool in (0, 1)
    ]


def _peak_bytes(
    program: Program,
    sequence: Sequence[Instruction],
    sizes: Sequence[int],
    given: Sequence[int],
    called: Mapping[str, Sequence[int]],
) -> int:
    """Returns the peak of live bytes along `sequence`.

    Args:
        program: the program.
        sequence: instructions of one mesh.
        sizes: the bytes of each register.
        given: the registers that hold arguments.
        called: for each function that the mesh calls, the registers of the results of one call.
    """
    size = sizes.__getitem__
    made = {name: sum(map(size, results)) for name, results in called.items()}
    reused = {
        name: sum(size(results[n]) for n, donor in enumerate(program.functions[name].donors) if donor is not None)
        for name, results in called.items()
    }
    alive = peak = sum(map(size, given))
    for each in sequence:
        if isinstance(each, Call):
            alive += made[each.function]
            peak = max(peak, alive - reused[each.function])
        elif not isinstance(each, Send):
            alive += sizes[each.result]
            peak = max(peak, alive)
            continue
        alive -= sum(map(size, each.frees))
    return peak
