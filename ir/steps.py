"""Straight lines of operations, read once: `@main` from `unroll-microbatches` on, then the functions of the meshes.

Reading an operation through the bindings takes longer than what a pass does with it. So a pass that knows what stands
in a straight line when it ends leaves that to the pass right behind it, in `run_passes`. A pass that runs alone, or
behind one that leaves nothing, reads the module; so do `verify-unrolled` and `verify-placed`.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from jaxlib.mlir import ir

from jaxpp.ir.functions import callee

_V = TypeVar("_V")


Channel: TypeAlias = tuple[int, int, int]
"""What a send and its receive have in common: the number of the channel, the sending mesh, the receiving mesh."""


@dataclass(slots=True, eq=False)
class Step(Generic[_V]):
    """An operation of a straight line as Python objects.

    Attributes:
        operands: values; in the function of a mesh their numbers, without tokens.
        results: likewise.
        callee: of a call, the name of what it calls.
        function: of a call in `@main`, what it calls.
        meshes: of a call in `@main`, where it runs.
        task: of a call that is one task, and no part of one that is fused, its stage, microbatch, slice and mesh, as
            its attributes say it, if that is known.
        channel: of a send or a receive, likewise.
        last_use: the numbers of the operands that die in the function of a mesh, likewise.
    """

    op: ir.Operation
    name: str
    operands: list[_V]
    results: Sequence[_V]
    callee: str = ""
    function: ir.Operation | None = None
    meshes: Sequence[int] = ()
    task: tuple[int, int, int, int] | None = None
    channel: Channel | None = None
    last_use: Sequence[int] | None = None

    @staticmethod
    def of(op: ir.Operation) -> "Step[ir.Value]":
        """Read `op`."""
        name = op.name
        return Step(op, name, list(op.operands), list(op.results), callee(op) if name == "func.call" else "")

    @property
    def attributes(self) -> ir.OpAttributeMap:
        """Those of the operation; `callee` and `last_use` say what two of them say."""
        return self.op.attributes

    def use(self: "Step[ir.Value]", number: int, value: ir.Value) -> None:
        """Let `value` be an operand of the operation."""
        self.op.operands[number] = value
        self.operands[number] = value


@dataclass(frozen=True)
class MainLine:
    """What `@main` does on so many meshes, but its return. placed: everything is on a mesh (docs/ir.md, section 5)."""

    meshes: int
    steps: list[Step[ir.Value]]
    placed: bool

    @property
    def lines(self) -> "list[MainLine]":
        """It is one line."""
        return [self]


@dataclass(frozen=True)
class MeshLine:
    """What a mesh does, its return last.

    values: by number, all but tokens: the arguments first, and then what each operation makes.
    """

    steps: list[Step[int]]
    values: list[ir.Value]


@dataclass(frozen=True)
class MeshLines:
    """What each mesh does."""

    lines: list[MeshLine]

    @property
    def calls(self) -> Iterator[Step[int]]:
        """All calls."""
        return (step for line in self.lines for step in line.steps if step.name == "func.call")


_Lines = TypeVar("_Lines", MainLine, MeshLines)


class Relay:
    """Hands what a pass leaves of `module` to the pass right behind it, of the passes that run one after the other."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module.operation
        self._lines: MainLine | MeshLines | None = None

    @contextmanager
    def lap(self) -> Generator[None]:
        """Let one pass run: it is handed what the one before it left, and may leave something itself."""
        self._handed, self._lines = self._lines, None
        token = _RELAY.set(self)
        try:
            yield
        finally:
            _RELAY.reset(token)

    def hand(self, module: ir.Module, kind: type[_Lines]) -> _Lines | None:
        """What the pass before has left of `module`, if it is of this kind."""
        return self._handed if isinstance(self._handed, kind) and module.operation == self._module else None

    def leave(self, module: ir.Module, lines: MainLine | MeshLines) -> None:
        """Leave `lines` to the next pass, if they are of the module that it takes."""
        if module.operation == self._module:
            self._lines = lines

    def check(self) -> None:
        """Raise RuntimeError where operations came or went since something was left: to compare them all takes long.

        An observer that puts one operation in the place of another is not noticed: those of the command line are ours.
        """
        for steps in [line.steps for line in self._lines.lines] if self._lines is not None else ():
            if steps and len(steps[0].op.block.operations) != len(steps) + (steps[-1].name != "func.return"):
                raise RuntimeError("an observer changed the module: it gained or lost operations between two passes")


_RELAY: ContextVar[Relay | None] = ContextVar("relay", default=None)

CHECKS: list[Callable[[ir.Module, MainLine | MeshLines], None]] = []
"""What looks at all lines that passes are handed: the tests compare them with the module."""


def handed(module: ir.Module, kind: type[_Lines]) -> _Lines | None:
    """What the pass before this one left of `module`; None if there was none, or it left nothing of this kind."""
    relay = _RELAY.get()
    lines = relay.hand(module, kind) if relay is not None else None
    if lines is not None:
        for check in CHECKS:
            check(module, lines)
    return lines


def leave(module: ir.Module, lines: MainLine | MeshLines) -> None:
    """Leave what stands in `module` now to the pass right behind this one."""
    relay = _RELAY.get()
    if relay is not None:
        relay.leave(module, lines)
