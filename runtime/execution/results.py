"""Takes the results of a step out of the registers. The caller owns each result, and may keep or donate it."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpp import _compat
from jaxpp.ir.program import Program, Result
from jaxpp.runtime.execution.shardings import Placed, SubmeshShardings
from jaxpp.runtime.execution.steps import Flat, getter
from jaxpp.runtime.processes.arrays import batch_copy


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """The source of a result: one register, the shards of several, or blocks to concatenate.

    register: the register with the result, if it is a single one.
    shards: the (register, shard) pairs from which `joined` makes the result.
    blocks: the registers from which `concatenate` makes stacked layers on meshes that share devices.
    """

    register: int
    shards: tuple[tuple[int, int], ...] = ()
    joined: Placed | None = None
    blocks: tuple[int, ...] = ()
    concatenate: Callable[[Sequence[Any]], Any] | None = None


class Results:
    """Takes the results out of the registers at the end of a step.

    Constants, arguments that are not donated, and values that are returned twice are copied, as in `jax.jit`. A result
    on meshes of other processes has no shards here. It is None if this process doesn't know the devices.

    taken: further registers that must be copied, such as those of constants.
    """

    def __init__(self, program: Program, flat: Flat, shardings: SubmeshShardings, taken: Collection[int]) -> None:
        self._flat, self._shardings = flat, shardings
        arguments = program.arguments.values()
        self._taken = {flat.numbers[place] for each in arguments if not each.donated for place in each.registers
                       if place in flat.numbers} | set(taken)  # fmt: skip
        self._sources: list[int] = []
        self._targets: list[Any] = []
        self._first_copy = flat.count
        self._results = [self._source(result) for result in program.results]
        self._copy: Any = None
        if self._sources:
            flat.count += len(self._sources)
            results = slice(self._first_copy, flat.count)
            self._copy = batch_copy(self._targets, always=True), getter(self._sources), results

    def take(self, registers: list[Any]) -> list[jax.Array]:
        """Returns the results."""
        if self._copy is not None:
            copy, operands, results = self._copy
            registers[results] = copy(operands(registers))
        found: list[Any] = []
        for source in self._results:
            if source is None:
                found.append(None)
            elif source.concatenate is not None:
                found.append(source.concatenate([registers[register] for register in source.blocks]))
            elif source.joined is None:
                found.append(registers[source.register])
            else:
                shards = [_compat.shards(registers[register])[shard] for register, shard in source.shards]
                found.append(source.joined.join(shards))
        return found

    def _source(self, result: Result) -> _Source | None:
        meshes = tuple(mesh for mesh, _ in result.registers)
        known = sum(map(self._shardings.knows, meshes))
        if not known:
            return None
        placed = self._shardings.place(result.spec, meshes, result.stacked)
        if result.stacked and self._shardings.are_shared(meshes):
            blocks = tuple(self._flat.number(*place) for place in result.registers)
            return _Source(0, blocks=blocks, concatenate=jax.jit(jnp.concatenate, out_shardings=placed.sharding))
        order: dict[int, tuple[int, int]] = {}
        for place, positions in zip(result.registers, self._shardings.shard_numbers(meshes), strict=True):
            if not order.keys().isdisjoint(positions):
                continue  # an earlier mesh has it on the same devices
            if positions:
                register = self._own(result, place)
                order |= {position: (register, shard) for shard, position in enumerate(positions)}
        if known == 1 and order:
            return _Source(order[0][0])
        return _Source(0, tuple(each for _, each in sorted(order.items())), placed)

    def _own(self, result: Result, place: tuple[int, int]) -> int:
        """Returns the register of a result on one mesh, or of a copy if the register's array is also used elsewhere."""
        number = self._flat.number(*place)
        if number in self._taken:
            self._sources.append(number)
            self._targets.append(self._shardings.place(result.spec, place[:1]).sharding)
            number = self._first_copy + len(self._sources) - 1
        self._taken.add(number)
        return number
