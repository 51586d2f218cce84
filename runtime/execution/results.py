"""Takes the results of a step out of the registers. The caller owns each result, and may keep or donate it."""

import operator
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from jaxpp import _compat
from jaxpp.ir.program import Program, Result
from jaxpp.runtime.execution.registers import Registers, getter
from jaxpp.runtime.execution.shardings import SubmeshShardings
from jaxpp.runtime.processes.arrays import batch_copy


class Results:
    """Takes the results out of the registers at the end of a step.

    Constants, arguments that are not donated, and values that are returned twice are copied, as in `jax.jit`. A result
    on meshes of other processes has no shards here. It is None if this process doesn't know the devices.

    taken: further registers that must be copied, such as those of constants.
    """

    def __init__(
        self, program: Program, registers: Registers, shardings: SubmeshShardings, taken: Collection[int]
    ) -> None:
        self._registers, self._shardings = registers, shardings
        arguments = program.arguments.values()
        kept = [place for each in arguments if not each.donated for place in each.registers]
        self._taken = {registers.numbers[place] for place in kept if place in registers.numbers} | set(taken)
        self._sources: list[int] = []
        self._targets: list[Any] = []
        self._first_copy = registers.count
        self._readers = [self._reader(result) for result in program.results]
        self._copy: Any = None
        if self._sources:
            registers.reserve(len(self._sources))
            results = slice(self._first_copy, registers.count)
            self._copy = batch_copy(self._targets, always=True), getter(self._sources), results

    def take(self, registers: list[Any]) -> list[jax.Array]:
        """Returns the results."""
        if self._copy is not None:
            copy, operands, results = self._copy
            registers[results] = copy(operands(registers))
        return [read(registers) for read in self._readers]

    def _reader(self, result: Result) -> Callable[[list[Any]], Any]:
        """Returns a function that makes a result from the registers."""
        meshes = tuple(mesh for mesh, _ in result.registers)
        known = sum(map(self._shardings.knows, meshes))
        if not known:
            return lambda _: None
        placed = self._shardings.place(result.spec, meshes, result.stacked)
        if result.stacked and self._shardings.are_shared(meshes):
            blocks = [self._registers.number(*place) for place in result.registers]
            concatenate: Any = jax.jit(jnp.concatenate, out_shardings=placed.sharding)
            return lambda registers: concatenate([registers[register] for register in blocks])
        order: dict[int, tuple[int, int]] = {}
        for place, positions in zip(result.registers, self._shardings.shard_numbers(meshes), strict=True):
            if not order.keys().isdisjoint(positions):
                continue  # an earlier mesh has it on the same devices
            if positions:
                register = self._own(result, place)
                order |= {position: (register, shard) for shard, position in enumerate(positions)}
        if known == 1 and order:
            return operator.itemgetter(order[0][0])
        parts = [part for _, part in sorted(order.items())]
        return lambda registers: placed.join([_compat.shards(registers[register])[shard] for register, shard in parts])

    def _own(self, result: Result, place: tuple[int, int]) -> int:
        """Returns the register of a result on one mesh, or of a copy if the register's array is also used elsewhere."""
        number = self._registers.number(*place)
        if number in self._taken:
            self._sources.append(number)
            self._targets.append(self._shardings.place(result.spec, place[:1]).sharding)
            number = self._first_copy + len(self._sources) - 1
        self._taken.add(number)
        return number
