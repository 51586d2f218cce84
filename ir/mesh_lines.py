"""The program as data: the sequence of each mesh (docs/ir.md, section 6). MLIR is its text.

`insert-transfers` makes the lines; `plan-buffers`, `verify-program` and the runtime take them as they are.
`write_lines` writes the mesh functions when somebody looks at the module. `read_lines` reads these functions.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from jaxlib.mlir import ir

from jaxpp.ir import attributes as at
from jaxpp.ir.functions import name_of
from jaxpp.ir.program import Call, Receive, Send


class Border(NamedTuple):
    """An argument or result of a mesh function: argument or result `number` of the step, or a block of it.

    block: (index, count) of a block of a stack; None for a value that each of its meshes has whole.
    """

    number: int
    type: ir.Type
    donated: bool
    block: tuple[int, int] | None
    sharding: ir.Attribute | None
    memory: ir.Attribute | None

    @property
    def numbers(self) -> ir.Attribute:
        """The attribute `jaxpp.number`: the number, and for a block its index and the number of blocks."""
        return at.one_or_several([self.number, *(self.block or ())])


@dataclass(slots=True)
class Literal:
    """A constant: register `result` holds the value of `op`, a `stablehlo.constant` in no block."""

    result: int
    op: ir.Operation


Instruction: TypeAlias = Literal | Call | Send | Receive


@dataclass(slots=True, eq=False)
class MeshLine:
    """The sequence of one mesh. Its registers are its arguments, and then the results of its instructions, in order.

    Attributes:
        mesh: the number of the mesh.
        arguments: the arguments of its function.
        results: the results of its function.
        sequence: its instructions. A call names its function in the module, and frees operands only.
        returned: the registers that it returns.
        received: the type and the sharding of each register that a receive makes.
        locations: the location of each instruction, of the return (at -2), and of the function (at -1).
        registers: the number of its registers.
        peak: the most bytes that are alive at once on each device; 0 until `verify-program` has found it.
        host_peak: the same in the memory of the host.
        function: the function `@mesh_k`; None until it is written.
        is_changed: whether the body of `function` is an older one.
    """

    mesh: int
    arguments: list[Border] = field(default_factory=list[Border])
    results: list[Border] = field(default_factory=list[Border])
    sequence: list[Instruction] = field(default_factory=list[Any])
    returned: list[int] = field(default_factory=list[int])
    received: dict[int, tuple[ir.Type, ir.Attribute | None]] = field(default_factory=dict[int, Any])
    locations: list[ir.Location] = field(default_factory=list[ir.Location])
    registers: int = 0
    peak: int = 0
    host_peak: int = 0
    function: ir.Operation | None = None
    is_changed: bool = False

    @property
    def name(self) -> str:
        """The name of its function."""
        return f"mesh_{self.mesh}" if self.function is None else name_of(self.function)

    def location_of(self, register: int) -> ir.Location:
        """Returns the location of the instruction that makes a register, or of the function whose argument it is."""
        indices = (index for index, each in enumerate(self.sequence) if register in _made(each))
        return self.locations[next(indices, -1)]

    @property
    def location_of_tasks(self) -> ir.Location | None:
        """The location of the first task, which is in the user's loop; None where the mesh runs no task."""
        tasks = (index for index, each in enumerate(self.sequence) if isinstance(each, Call) and each.tasks)
        first = next(tasks, None)
        return None if first is None else self.locations[first]


def _made(each: Instruction) -> tuple[int, ...]:
    """Returns the registers that an instruction makes."""
    if isinstance(each, Call):
        return each.results
    return () if isinstance(each, Send) else (each.result,)


@dataclass(frozen=True, eq=False)
class MeshLines:
    """The lines of all meshes, in their order."""

    lines: list[MeshLine]

    @property
    def are_written(self) -> bool:
        """Whether the module has the mesh functions."""
        return all(line.function is not None for line in self.lines)

    @property
    def peaks(self) -> list[tuple[int, int]]:
        """For each mesh the most bytes that are alive at once: on each device, and in its host's memory for it."""
        return [(line.peak, line.host_peak) for line in self.lines]

    @property
    def stacked_arguments(self) -> set[int]:
        """The numbers of the step's arguments of which each mesh has one block."""
        return {border.number for line in self.lines for border in line.arguments if border.block is not None}
