"""`@main` as a straight line of operations that is read once, and the way in which passes hand on their knowledge.

Reading an operation through the bindings takes longer than the work that a pass does with it. So a pass that knows
the operations of `@main` when it ends leaves them to the next pass of the same `run_passes`. Any other pass reads the
module. `verify-main` always reads it.

From `insert-transfers` on a pass leaves the lines of the meshes (`jaxpp.ir.mesh_lines`). They are the program, and the
module has no text of it, until an observer or a pass that does not know the lines looks at the module.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from jaxlib.mlir import ir

from jaxpp._system import setting
from jaxpp.ir.functions import callee
from jaxpp.ir.mesh_lines import MeshLines
from jaxpp.ir.write_lines import write_lines


@dataclass(slots=True, eq=False)
class Step:
    """An operation of `@main` as Python objects.

    Attributes:
        operands: the values that it uses.
        results: the values that it makes.
        callee: the name of the function that a call calls; empty for other operations.
        function: the function that a call in `@main` calls.
        kind: the kind of that function; empty if it has none.
        meshes: the meshes that run a call in `@main`.
        task: the stage, microbatch, slice and mesh of a call that is one task and not fused with another one. None
            where nobody has noted them yet; they then stand in the attributes alone.
    """

    op: ir.Operation
    name: str
    operands: list[ir.Value]
    results: Sequence[ir.Value]
    callee: str = ""
    function: ir.Operation | None = None
    kind: str = ""
    meshes: Sequence[int] = ()
    task: tuple[int, int, int, int] | None = None

    @staticmethod
    def of(op: ir.Operation) -> "Step":
        """Reads `op`."""
        name = op.name
        return Step(op, name, list(op.operands), list(op.results), callee(op) if name == "func.call" else "")

    @property
    def attributes(self) -> ir.OpAttributeMap:
        """The attributes of the operation. `callee` holds one of them, already read."""
        return self.op.attributes

    def use(self, number: int, value: ir.Value) -> None:
        """Makes `value` the operand at position `number` of the operation."""
        self.op.operands[number] = value
        self.operands[number] = value


@dataclass(frozen=True)
class MainLine:
    """The operations of `@main` but its return, in a module with `meshes` meshes.

    placed: whether everything is on a mesh (docs/ir.md, section 5).
    """

    meshes: int
    steps: list[Step]
    placed: bool


_Lines = TypeVar("_Lines", MainLine, MeshLines)


class Relay:
    """Hands the lines that a pass leaves to the next pass, among passes that run one after the other on `module`."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.handed: MainLine | MeshLines | None = None
        """The lines that the running pass may take."""
        self.lines: MainLine | MeshLines | None = None
        """The lines that the last pass has left."""

    @contextmanager
    def lap(self) -> Generator[None]:
        """Runs one pass: it may take the lines that the pass before it left, and may leave lines itself."""
        self.handed, self.lines = self.lines, None
        with setting(_RELAY, self):
            yield

    def write(self) -> None:
        """Writes the lines of the meshes into the module, where only the relay has them, and forgets them."""
        if isinstance(self.lines, MeshLines):
            write_lines(self.module, self.lines)
            self.lines = None

    def check(self) -> None:
        """Raises RuntimeError where operations were added or removed after a pass left the line of `@main`.

        It compares the numbers of operations only, as comparing the operations takes long. So it misses an observer
        that replaces one operation by another. The observers of the command line belong to jaxpp and do not do that.
        """
        steps = self.lines.steps if isinstance(self.lines, MainLine) else []
        if steps and len(steps[0].op.block.operations) != len(steps) + 1:
            raise RuntimeError("an observer changed the module: it gained or lost operations between two passes")


_RELAY: ContextVar[Relay | None] = ContextVar("relay", default=None)

CHECKS: list[Callable[[ir.Module, MainLine], None]] = []
"""Checks that run on all lines of `@main` that `handed` returns: the tests compare the lines with the module."""


def _relay_of(module: ir.Module) -> Relay | None:
    relay = _RELAY.get()
    return relay if relay is not None and module.operation == relay.module.operation else None


def handed(module: ir.Module, kind: type[_Lines]) -> _Lines | None:
    """Returns the lines that the pass before this one left of `module`; None if it left no lines of this kind."""
    relay = _relay_of(module)
    lines = relay.handed if relay is not None else None
    if not isinstance(lines, kind):
        return None
    if isinstance(lines, MainLine):
        for check in CHECKS:
            check(module, lines)
    return lines


def leave(module: ir.Module, lines: MainLine | MeshLines) -> None:
    """Leaves `lines` to the next pass.

    Lines of meshes are written into `module` at once if they were read from it, or where no pass follows.
    """
    relay = _relay_of(module)
    if isinstance(lines, MeshLines) and (relay is None or lines.are_written):
        write_lines(module, lines)
    elif relay is not None:
        relay.lines = lines
