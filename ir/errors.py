"""Errors about a module, in words for its user."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.locations import source_of


class PassError(Exception):
    """A pass refused a module: the user's mistake, in one short message.

    `location` is the location of the faulty op, with the user's file and line from JAX. `message` names what was found
    and expected, `hint` what to do.
    """

    def __init__(self, message: str, *, location: ir.Location | None = None, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        self.source = source_of(location) if location is not None else None
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}error: {self.message}" + (f"\n  {self.hint}" if self.hint else "")

    @classmethod
    def because(cls, what: str, error: "PassError") -> Self:
        """Returns an error whose message is `what` and that of `error`, with the source and the hint of `error`."""
        raised = cls(f"{what}: {error.message}", hint=error.hint)
        raised.source = error.source
        return raised


class ProgramError(PassError, ValueError):
    """The module is no program (docs/ir.md, section 6), or the program can't run on the given meshes."""

    def __str__(self) -> str:
        return super().__str__() if self.source else super().__str__().removeprefix("error: ")


class LimitError(ProgramError):
    """A mesh needs more memory than the limit of its devices or its host.

    Attributes:
        least: the bytes that each mesh needs on each device, without temporaries, by the choice that comes nearest to
            the limits; empty where `memory_limit` chooses nothing.
    """

    def __init__(
        self, message: str, *, location: ir.Location | None = None, hint: str = "", least: Sequence[int] = ()
    ) -> None:
        self.least = least
        super().__init__(message, location=location, hint=hint)


def described_value(value: Any) -> str:
    """Describes a value that JAX does not take as an array, and for a numpy array what to do."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.names:
        return f"of type {type(value).__name__}, not an array"
    dtype: np.dtype[Any] = value.dtype
    if dtype.isnative:
        return f"a numpy array of {dtype}, which JAX does not have: convert it to a dtype of jax.numpy"
    native = dtype.newbyteorder("=")
    return f"a numpy array of '{dtype.str}', in another byte order than this machine's: give x.astype('{native}')"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; its type if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def one_line(message: str, length: int = 300) -> str:
    """Shortens a message of MLIR to one line: some contain a whole type or operation."""
    text = " ".join(message.split())
    return text if len(text) <= length else text[: length - 3] + "..."
