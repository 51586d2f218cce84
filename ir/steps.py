"""Straight lines of operations, each read once: `@main` from `unroll-microbatches` on, then the mesh functions.

Reading an operation through the bindings takes longer than the work that a pass does with it. So a pass that knows the
operations of a straight line when it ends leaves them to the next pass of the same `run_passes`. A pass that runs
alone, or after a pass that leaves nothing, reads the module. `verify-main` always reads it.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from jaxlib.mlir import ir

from jaxpp.ir.functions import callee

_V = TypeVar("_V")


Channel: TypeAlias = tuple[int, int, int]
"""The channel number, the sending mesh and the receiving mesh, which a send shares with its receive."""


@dataclass(slots=True, eq=False)
class Step(Generic[_V]):
    """An operation of a straight line as Python objects.

    Attributes:
        operands: the values that it uses. In a mesh function these are numbers, and tokens are left out.
        results: the values that it makes, or their numbers, as in `operands`.
        callee: the name of the function that a call calls; empty for other operations.
        function: the function that a call in `@main` calls.
        kind: the kind of that function; empty if it has none.
        meshes: the meshes that run a call in `@main`.
        task: the stage, microbatch, slice and mesh of a call that is one task and not fused with another one. None
            where nobody has noted them yet; they then stand in the attributes alone.
        channel: the channel of a send or a receive; None until it is read from the attributes.
        last_use: the positions of the operands that a mesh function uses here for the last time; None until read.
    """

    op: ir.Operation
    name: str
    operands: list[_V]
    results: Sequence[_V]
    callee: str = ""
    function: ir.Operation | None = None
    kind: str = ""
    meshes: Sequence[int] = ()
    task: tuple[int, int, int, int] | None = None
    channel: Channel | None = None
    last_use: Sequence[int] | None = None

    @staticmethod
    def of(op: ir.Operation) -> "Step[ir.Value]":
        """Reads `op`."""
        name = op.name
        return Step(op, name, list(op.operands), list(op.results), callee(op) if name == "func.call" else "")

    @property
    def attributes(self) -> ir.OpAttributeMap:
        """The attributes of the operation. `callee` and `last_use` hold two of them, already read."""
        return self.op.attributes

    def use(self: "Step[ir.Value]", number: int, value: ir.Value) -> None:
        """Makes `value` the operand at position `number` of the operation."""
        self.op.operands[number] = value
        self.operands[number] = value


@dataclass(frozen=True)
class MainLine:
    """The operations of `@main` but its return, in a module with `meshes` meshes.

    placed: whether everything is on a mesh (docs/ir.md, section 5).
    """

    meshes: int
    steps: list[Step[ir.Value]]
    placed: bool

    @property
    def lines(self) -> "list[MainLine]":
        """A list of this one line, as `MeshLines.lines` has one for each mesh."""
        return [self]


@dataclass(frozen=True)
class MeshLine:
    """The operations of one mesh function, its return last.

    values: the values by their numbers: first the arguments, then the results of each operation, without tokens.
    """

    steps: list[Step[int]]
    values: list[ir.Value]


@dataclass(frozen=True)
class MeshLines:
    """The operations of every mesh function, in the order of the meshes."""

    lines: list[MeshLine]


_Lines = TypeVar("_Lines", MainLine, MeshLines)


class Relay:
    """Hands the lines that a pass leaves to the next pass, among passes that run one after the other on `module`."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module.operation
        self._lines: MainLine | MeshLines | None = None

    @contextmanager
    def lap(self) -> Generator[None]:
        """Runs one pass: it may take the lines that the pass before it left, and may leave lines itself."""
        self._handed, self._lines = self._lines, None
        token = _RELAY.set(self)
        try:
            yield
        finally:
            _RELAY.reset(token)

    def hand(self, module: ir.Module, kind: type[_Lines]) -> _Lines | None:
        """Returns the lines that the pass before has left, if they are of `module` and of this kind."""
        return self._handed if isinstance(self._handed, kind) and module.operation == self._module else None

    def leave(self, module: ir.Module, lines: MainLine | MeshLines) -> None:
        """Leaves `lines` to the next pass, if `module` is the module of this relay."""
        if module.operation == self._module:
            self._lines = lines

    def check(self) -> None:
        """Raises RuntimeError where operations were added or removed after a pass left its lines.

        It compares the numbers of operations only, as comparing the operations takes long. So it misses an observer
        that replaces one operation by another. The observers of the command line belong to jaxpp and do not do that.
        """
        for steps in [line.steps for line in self._lines.lines] if self._lines is not None else ():
            if steps and len(steps[0].op.block.operations) != len(steps) + (steps[-1].name != "func.return"):
                raise RuntimeError("an observer changed the module: it gained or lost operations between two passes")


_RELAY: ContextVar[Relay | None] = ContextVar("relay", default=None)

CHECKS: list[Callable[[ir.Module, MainLine | MeshLines], None]] = []
"""Checks that run on all lines that `handed` returns: the tests compare the lines with the module."""


def handed(module: ir.Module, kind: type[_Lines]) -> _Lines | None:
    """Returns the lines that the pass before this one left of `module`; None if it left no lines of this kind."""
    relay = _RELAY.get()
    lines = relay.hand(module, kind) if relay is not None else None
    if lines is not None:
        for check in CHECKS:
            check(module, lines)
    return lines


def leave(module: ir.Module, lines: MainLine | MeshLines) -> None:
    """Leaves `lines`, which are the operations that `module` has now, to the next pass."""
    relay = _RELAY.get()
    if relay is not None:
        relay.leave(module, lines)
