"""What a process waits for from another one, and the error when that will not come."""

import dataclasses
from collections.abc import Sequence

from jaxpp.runtime.program import Call, Instruction, Receive


class TransferError(RuntimeError):
    """What another process was to send will not come, or is not what was expected."""


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """What a process waits for.

    peer: the process that it comes from; of a mesh that several processes share, one of the others.
    mesh: the mesh that waits; None between steps.
    instruction: what waits there: a Receive, or the last Call of a shared mesh; None likewise.
    task: the call that makes what is received, if one does.
    owners: as of Peers; empty where no program is run.
    is_message: whether it comes at the beginning of the peer's next call, whatever that is.
    patience: how many seconds it waits at most; None: for as long as the peer lives.
    """

    peer: int
    mesh: int | None = None
    instruction: Instruction | None = None
    task: Call | None = None
    owners: Sequence[Sequence[int]] = ()
    is_message: bool = False
    patience: float | None = None

    def __str__(self) -> str:
        if self.mesh is None:
            return f"waiting for process {self.peer}"
        return f"mesh {self.mesh}: {self.what}"

    @property
    def what(self) -> str:
        """What the mesh waits for, and for whom."""
        if self.instruction is None:
            return f"process {self.peer}"
        task = f" ({self.task})" if self.task else ""
        preposition = "from" if isinstance(self.instruction, Receive) else "with"
        return f"{self.instruction}{task} {preposition} process {self.peer}"
