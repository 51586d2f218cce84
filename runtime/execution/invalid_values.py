"""For `jax_debug_nans` and `jax_debug_infs`: finds the task that made the first NaN, or the first infinity."""

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpp import _compat
from jaxpp.ir.program import Instruction, Program, Receive
from jaxpp.runtime.execution.links import makers_of
from jaxpp.runtime.execution.steps import StepLabel

_FINDERS: Mapping[str, Callable[[Any], Any]] = {"nan": np.isnan, "inf": np.isinf}


class InvalidValues:
    """Checks every array of one step as soon as it is made. The step then runs one task at a time.

    As with `jax.jit`, a NaN or an infinity in a result of the step is an error. The error names the first task that
    made such a value, even if a later task masks it. JAX does the same when it runs a function again, operation by
    operation.
    """

    def __init__(self, program: Program, kinds: Sequence[str]) -> None:
        self._program = program
        self._first: dict[str, str | None] = dict.fromkeys(kinds)

    @classmethod
    def wanted(cls, program: Program) -> "InvalidValues | None":
        """Makes an instance if `jax_debug_nans` or `jax_debug_infs` is set in this thread; otherwise returns None."""
        nans, infs = jax.debug_nans.value, jax.debug_infs.value  # the configuration is read once a step
        return cls(program, ["nan"] * nans + ["inf"] * infs) if nans or infs else None

    @contextlib.contextmanager
    def unchecked(self) -> Generator[None]:
        """Turns JAX's own checks off. JAX would raise while it moves an argument, without naming argument or task."""
        with jax.debug_nans(False), jax.debug_infs(False):
            yield

    def look(self, label: StepLabel, made: Iterable[Any], _: object = None) -> None:
        """Checks the arrays that an instruction made."""
        self._note(made, lambda: "; ".join(self._where(each, mesh) for mesh, each in label))

    def look_at_argument(self, array: Any, name: str) -> None:
        """Checks an argument of the step."""
        self._note([array], lambda: f"argument `{name}`")

    def check(self, results: Iterable[Any]) -> None:
        """Raises FloatingPointError, which names the first place of such a value, if a result has one."""
        kind = next((kind for result in results for kind in self._kinds(result, self._first)), None)
        if kind is not None:
            raise FloatingPointError(f"invalid value ({kind}) encountered in {self._first[kind]}")

    def _note(self, arrays: Iterable[Any], where: Callable[[], str]) -> None:
        missing = [kind for kind, first in self._first.items() if first is None]
        if not missing:
            return
        for kind in {kind for array in arrays for kind in self._kinds(array, missing)}:
            self._first[kind] = where()

    def _kinds(self, array: Any, kinds: Iterable[str]) -> list[str]:
        """Returns which of these kinds of values are in this process's shards."""
        if not isinstance(array, jax.Array) or not jnp.issubdtype(array.dtype, jnp.inexact):
            return []
        shards = [_compat.to_host(shard) for shard in _compat.shards(array)]
        return [kind for kind in kinds if any(_FINDERS[kind](shard).any() for shard in shards)]

    def _where(self, instruction: Instruction, mesh: int) -> str:
        if not isinstance(instruction, Receive):
            return f"{instruction} on mesh {mesh}"
        maker = makers_of(self._program).get(instruction.channel, "an argument")
        return f"{maker} on mesh {instruction.source}, received by mesh {mesh}"
