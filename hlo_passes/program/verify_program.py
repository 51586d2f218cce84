"""`verify-program`: the program can't deadlock, loses nothing, and needs this much memory."""

from dataclasses import dataclass
from typing import ClassVar

from jaxlib.mlir import ir

from jaxpp.hlo_passes.base import Pass
from jaxpp.hlo_passes.program.liveness import peak_of
from jaxpp.ir import attributes as at
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.mesh_functions import mesh_functions
from jaxpp.ir.read_program import ProgramReader


@dataclass(frozen=True)
class VerifyProgram(Pass):
    """Proves of the program, before anything runs, what a runtime takes for granted. Changes only attributes.

    - Every recv has its one send, and the other way round: same channel, meshes, type and sharding.
    - The sequences together have no cycle: whatever the timing, no mesh waits forever.
    - Nothing is used after its last use, and nothing is forgotten: each value dies once or is returned.
    - Every call fits its callee, and every attribute says what `docs/ir.md` (section 6) promises.

    It writes on each mesh function `jaxpp.peak_bytes`, the largest sum of live bytes (of whole values, arguments
    included), and `jaxpp.peak_activations`, the largest number of microbatches whose residuals wait for a backward.
    All of it is linear in the number of instructions.

    Preconditions: `plan-buffers` ran.

    ```mlir
    func.func public @mesh_0(...)   ==>   func.func public @mesh_0(...)
      attributes {jaxpp.mesh = 0}           attributes {jaxpp.mesh = 0, jaxpp.peak_activations = 4,
                                                        jaxpp.peak_bytes = 8192}
    ```
    """

    name: ClassVar[str] = "verify-program"

    def run(self, module: ir.Module) -> None:
        """Check `module`. Raises ProgramError with the guilty instruction."""
        module.operation.verify()
        reader = ProgramReader(module)
        for line in reader.lines:
            value = line.unfreed()
            if value is not None:
                where = value.owner.owner if isinstance(value.owner, ir.Block) else value.owner
                raise ProgramError(
                    f"a value is never freed: {value.type}", location=where.location, hint="run plan-buffers"
                )
        for mesh, function in enumerate(mesh_functions(module)):
            peak = peak_of(reader.program, mesh)
            function.attributes[at.PEAK_BYTES] = at.i64(peak.bytes)
            function.attributes[at.PEAK_ACTIVATIONS] = at.i64(peak.activations)
            if peak.host_bytes:
                function.attributes[at.PEAK_HOST_BYTES] = at.i64(peak.host_bytes)
