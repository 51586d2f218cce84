"""`memory_limit` on a target: a program that stays within it by the numbers of the compiler, temporaries included."""

from collections.abc import Callable, Sequence

from jaxpp.ir.errors import ProgramError
from jaxpp.planning.backend import PlannedProgram
from jaxpp.program import ProgramModule
from jaxpp.runtime.measuring.units import bytes_text

_TRIES = 8
"""How many programs are compiled at most; each is given less by what the compiler needed beyond the one before."""


def compile_within(
    limits: Sequence[int],
    meshes: int,
    rewrite: Callable[[str], ProgramModule],
    compile_: Callable[[ProgramModule], PlannedProgram],
) -> tuple[ProgramModule, PlannedProgram]:
    """Find a program of which each mesh stays within its limit, compiled.

    Args:
        limits: bytes of each device: one number for all meshes, or one for each.
        meshes: how many there are.
        rewrite: makes the program that stays within limits by its own account, which knows no temporaries.
        compile_: compiles it.

    Raises:
        ProgramError: there is none; it names the mesh, and says what the compiler needs beyond the account.
    """
    each = list(limits) * (meshes if len(limits) == 1 else 1)
    given, needed = list(each), ""
    for _ in range(_TRIES):
        try:
            program = rewrite(" ".join(map(str, given)))
        except ProgramError as error:
            if given != each:
                beyond = bytes_text(max(limit - account for limit, account in zip(each, given, strict=True)))
                error.add_note(f"jaxpp: the limits are less by up to {beyond} for temporaries, code and padding")
            raise
        made = compile_(program)
        peaks = made.plan.peak_bytes  # the last meshes may be idle
        over = [mesh for mesh, peak in enumerate(peaks) if peak > each[mesh]]
        if not over:
            return program, made
        for mesh in over:
            beyond = peaks[mesh] - program.peak_bytes[mesh]
            given[mesh] = max(1, min(each[mesh] - beyond, program.peak_bytes[mesh] - 1, given[mesh] - 1))
            needed = f"mesh {mesh} needs {peaks[mesh]:,} bytes on each device, its memory limit is {each[mesh]:,}"
    raise ProgramError(f"{needed}, temporaries included: none of {_TRIES} programs was below it")
