"""`verify-program`: proves that the program can't deadlock and loses no value, and computes its peak memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.ir.byte_counts import UNITS, parse_bytes
from jaxpp.ir.errors import LimitError, ProgramError
from jaxpp.ir.liveness import peaks_of
from jaxpp.ir.mesh_lines import MeshLines
from jaxpp.ir.read_lines import mesh_lines
from jaxpp.ir.read_program import ProgramReader, ProvenLines
from jaxpp.ir.steps import leave
from jaxpp.ir.tensors import tensor_text
from jaxpp.ir.transports import rules_of


@dataclass(frozen=True)
class VerifyProgram(Pass):
    """Proves, before anything runs, the properties of the program that a runtime relies on. Changes only attributes.

    - Every receive has exactly one send, and every send one receive, with the same channel, meshes, type and sharding.
    - The sequences of all meshes together have no cycle: no mesh waits forever, whatever the timing. The proof follows
      the rules of a transport (`jaxpp.ir.transports`). Sends never wait under `pull`. Under `device_put` and `pair` a
      send waits for its receive, and values are matched by their order instead of a channel number.
    - No value is used after its last use, and no value leaks: each value has one last use or is returned.
    - Each task reads the same kind of values for every microbatch (`jaxpp.ir.origins`). Such a value is one result of
      one task for the same microbatch, a sum or another carried value, or a value from outside the loop. The proof
      finds a channel or an operand of a wrong microbatch even if its type fits. An error that is the same for all
      microbatches, or outside the loop, is left to `--validate`.
    - A value that an offload or an evict takes away comes back with the reload or load of the same microbatch, in the
      same position.
    - Every call fits its callee, and every attribute keeps the promises of `docs/ir.md` (section 6).

    The pass writes the `peak` of the live bytes on each device into `jaxpp.bytes` of each mesh function. It counts
    shards, and includes arguments, but no temporaries inside tasks. A result that reuses the buffer of a donated
    argument adds nothing. `host_peak` is the same peak for the memory of the host. A peak of 0 is not written. The
    proof takes time linear in the number of instructions.

    After `plan-buffers` the pass proves the program as that pass left it, and the runtime takes what was proven. A
    program that is loaded from a file is read and proven in full.

    Options:
        memory_limit: the most bytes that a device may need at its peak: a number for all meshes, or one for each,
            separated by blanks: `70GiB` or `500MB 4096`. A program that needs more is refused. If empty, there is no
            limit.
        host_memory_limit: the most bytes that the values of a device may take in the memory of its host, in the same
            format.
        transport: the transport that will carry the values: `pull`, `device_put` or `pair`.

    Preconditions: `plan-buffers` ran.

    ```mlir
    func.func public @mesh_0(...)   ==>   func.func public @mesh_0(...)
      attributes {jaxpp.mesh = 0}           attributes {jaxpp.mesh = 0, jaxpp.bytes = {peak = 8192}}
    ```
    """

    takes_lines = True

    memory_limit: str = ""
    host_memory_limit: str = ""
    transport: str = "pull"

    def __post_init__(self) -> None:
        rules_of(self.transport)  # raises for an unknown name
        for name, text in (("memory_limit", self.memory_limit), ("host_memory_limit", self.host_memory_limit)):
            if not all(map(parse_bytes, text.split())):
                raise ValueError(
                    f"{name} is '{text}', expected bytes: a number above 0, such as 4096 or 70GiB, or one for each "
                    f"mesh; units are {UNITS}"
                )

    def run(self, module: ir.Module) -> None:
        """Checks `module` and writes the peaks.

        Raises:
            ProgramError: if the program breaks a promise, at the location of the instruction, or if limits are missing.
            LimitError: if a mesh needs more bytes than its limit.
        """
        module.operation.verify()
        program = mesh_lines(module)
        reader = ProgramReader(module, program)
        if self.transport != "pull":
            reader.check_order(self.transport)
        for checked in reader.lines:
            unfreed = checked.unfreed()
            if unfreed is not None:
                value, where = unfreed
                message = f"a value is never freed: {tensor_text(value)}"
                raise ProgramError(message, location=where, hint="run plan-buffers")
        peaks = peaks_of(reader.program)
        for (here, host), line in zip(peaks, program.lines, strict=True):
            line.peak, line.host_peak = here, host
        if self.memory_limit:
            hint = f"keep less (recompute='inputs', schedules.offload), or {SMALLER}"
            _check(program, [here for here, _ in peaks], self.memory_limit, "on each device, its memory limit", hint)
        if self.host_memory_limit:
            hint = "offload fewer stages, or compute more again (recompute='inputs'): then less is offloaded"
            where = "of the memory of its host for each device, its host memory limit"
            _check(program, [host for _, host in peaks], self.host_memory_limit, where, hint)
        leave(module, ProvenLines(program.lines, reader))


def limits_of(text: str, meshes: int) -> list[int]:
    """Returns the limit of each mesh, in bytes. Raises ProgramError for several limits, but fewer than meshes."""
    limits = [parse_bytes(word) or 0 for word in text.split()]
    if 1 < len(limits) < meshes:
        raise ProgramError(f"{len(limits)} memory limits for {meshes} meshes, expected one, or one for each")
    return limits * meshes if len(limits) == 1 else limits[:meshes]  # the limits of idle meshes at the end are dropped


def worst(needs: Sequence[int], limits: Sequence[float]) -> tuple[float, int]:
    """Returns the most bytes by which a mesh exceeds its limit, and the index of this mesh."""
    return max((need - limit, mesh) for mesh, (need, limit) in enumerate(zip(needs, limits, strict=True)))


def _check(program: MeshLines, needs: Sequence[int], limit: str, where: str, hint: str) -> None:
    """Raises LimitError for the mesh that exceeds its limit most; `where` names the memory and the limit."""
    limits = limits_of(limit, len(needs))
    over, mesh = worst(needs, limits)
    if over > 0:
        message = f"mesh {mesh} needs {needs[mesh]:,} bytes {where} is {limits[mesh]:,}"
        raise LimitError(message, location=program.lines[mesh].location_of_tasks, hint=hint)


SMALLER = "give the step smaller microbatches, more devices per stage or more stages, or donate its state"
"""A hint for errors: changes that need less memory whichever residuals are kept."""
