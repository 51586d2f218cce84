"""`verify-program`: the program can't deadlock, loses nothing, and needs this much memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.liveness import peaks_of
from jaxpp.ir import attributes as at
from jaxpp.ir.byte_counts import UNITS, parse_bytes
from jaxpp.ir.errors import LimitError, ProgramError
from jaxpp.ir.mesh_functions import location_of_tasks, mesh_functions
from jaxpp.ir.read_program import ProgramReader
from jaxpp.ir.transports import check_transport


@dataclass(frozen=True)
class VerifyProgram(Pass):
    """Proves of the program, before anything runs, what a runtime takes for granted. Changes only attributes.

    - Every recv has its one send, and the other way round: same channel, meshes, type and sharding.
    - The sequences together have no cycle: whatever the timing, no mesh waits forever. That holds by the
      rules of a transport (`jaxpp.ir.transports`): of `pull`, whose sends never wait, or of `nccl`, `device_put` and
      `pair`, where a send waits for its receive, and values are known by their order, not by a number.
    - Nothing is used after its last use, and nothing is forgotten: each value dies once or is returned.
    - Each task reads, for each microbatch, what it reads for the others (`jaxpp.ir.origins`): the same result of the
      same task of its own microbatch, sums and what is carried, or what comes from outside of the loop. A channel or
      an operand of another microbatch is found though its type fits. What is wrong in the same way for all
      microbatches is not, nor what is wrong outside of the loop: `--validate` finds that.
    - What an offload or an evict takes away comes back as what it was: with the reload or load of the same microbatch,
      each value in its place.
    - Every call fits its callee, and every attribute says what `docs/ir.md` (section 6) promises.

    It writes on each mesh function `jaxpp.peak_bytes`, the largest sum of live bytes on each device (of shards, with
    the arguments, without the temporaries of tasks; a result that takes the buffer of an argument takes no more), and
    `jaxpp.peak_host_bytes`, likewise in the memory of the host. All of it is linear in the number of instructions.

    Right behind a pass that leaves what it knows of the mesh functions, it takes their operations from there, and
    what the passes before wrote on these: to read them again takes almost as long as the rest of the proof. What is
    loaded is read, and proved, anew.

    Options:
        memory_limit: the most bytes that a device may need at its peak: a number for all meshes, or one for each,
            separated by blanks: `70GiB` or `500MB 4096`. A program that needs more is refused. If empty, there is no
            limit.
        host_memory_limit: likewise the most bytes that the values of a device may take in the memory of its host.
        transport: what the values are to go by: `pull`, `nccl`, `device_put` or `pair`.

    Preconditions: `plan-buffers` ran.

    ```mlir
    func.func public @mesh_0(...)   ==>   func.func public @mesh_0(...)
      attributes {jaxpp.mesh = 0}           attributes {jaxpp.mesh = 0, jaxpp.peak_bytes = 8192}
    ```
    """

    name: ClassVar[str] = "verify-program"
    memory_limit: str = ""
    host_memory_limit: str = ""
    transport: str = "pull"

    def __post_init__(self) -> None:
        check_transport(self.transport)
        for name, text in (("memory_limit", self.memory_limit), ("host_memory_limit", self.host_memory_limit)):
            if not all(map(parse_bytes, text.split())):
                raise ValueError(
                    f"{name} is '{text}', expected bytes: a number above 0, such as 4096 or 70GiB, or one for each "
                    f"mesh; units are {UNITS}"
                )

    def run(self, module: ir.Module) -> None:
        """Check `module`. Raises ProgramError with the guilty instruction."""
        module.operation.verify()
        reader = ProgramReader(module)
        if self.transport != "pull":
            reader.check_order(self.transport)
        for line in reader.lines:
            value = line.unfreed()
            if value is not None:
                where = value.owner.owner if isinstance(value.owner, ir.Block) else value.owner
                raise ProgramError(
                    f"a value is never freed: {value.type}", location=where.location, hint="run plan-buffers"
                )
        peaks = peaks_of(reader.program)
        for (here, host), function in zip(peaks, mesh_functions(module), strict=True):
            function.attributes[at.PEAK_BYTES] = at.i64(here)
            if host:
                function.attributes[at.PEAK_HOST_BYTES] = at.i64(host)
        if self.memory_limit:
            _check_devices(module, [here for here, _ in peaks], limits_of(self.memory_limit, len(peaks)))
        if self.host_memory_limit:
            _check_hosts(module, [host for _, host in peaks], limits_of(self.host_memory_limit, len(peaks)))


def limits_of(text: str, meshes: int) -> list[int]:
    """The limit of each mesh. Raises ProgramError where there are fewer, and not one for all."""
    limits = [parse_bytes(word) or 0 for word in text.split()]
    if 1 < len(limits) < meshes:
        raise ProgramError(f"{len(limits)} memory limits for {meshes} meshes, expected one, or one for each")
    return limits * meshes if len(limits) == 1 else limits[:meshes]  # the last meshes may be idle


def _check_devices(module: ir.Module, peaks: Sequence[int], each: Sequence[int]) -> None:
    over, mesh = _worst(peaks, each)
    if over > 0:
        raise LimitError(
            f"mesh {mesh} needs {peaks[mesh]:,} bytes on each device, its memory limit is {each[mesh]:,}",
            location=location_of_tasks(module, mesh),
            hint=f"keep less (recompute='inputs', schedules.offload), or {SMALLER}",
        )


def _check_hosts(module: ir.Module, peaks: Sequence[int], each: Sequence[int]) -> None:
    over, mesh = _worst(peaks, each)
    if over > 0:
        raise LimitError(
            f"mesh {mesh} needs {peaks[mesh]:,} bytes of the memory of its host for each device, its host memory limit "
            f"is {each[mesh]:,}",
            location=location_of_tasks(module, mesh),
            hint="offload fewer stages, or compute more again (recompute='inputs'): then less is offloaded",
        )


def _worst(peaks: Sequence[int], each: Sequence[int]) -> tuple[int, int]:
    return max((peak - limit, mesh) for mesh, (peak, limit) in enumerate(zip(peaks, each, strict=True)))


SMALLER = "give the step smaller microbatches, more devices per stage or more stages, or donate its state"
"""What to do about a program that needs too much, whatever is kept."""
