"""A program that runs on actors. Arguments go to the actors that use them, and results stay there."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxpp.backend import executable_options, key_bits, key_types
from jaxpp.ir.program import Argument, Constant, Result
from jaxpp.lowering import MpmdMesh
from jaxpp.lowering.lower import Lowered
from jaxpp.ray.actor import ProgramPart, StepCall
from jaxpp.ray.arrays import Buffers, Made, RemoteArray, parts
from jaxpp.ray.calls import ActorError
from jaxpp.ray.pool import Pool
from jaxpp.runtime import Event, Program
from jaxpp.runtime.execution.arguments import DONATED, Door, check_donated_once
from jaxpp.runtime.execution.compiling import Stats
from jaxpp.runtime.execution.frozen import current_frozen, frozen_tasks
from jaxpp.runtime.execution.options import Options
from jaxpp.runtime.execution.shardings import SubmeshShardings
from jaxpp.runtime.measuring.events import joined


class RemoteExecutable:
    """A `jaxpp.backend.CompiledProgram` on actors: takes the flat arguments, returns handles of the flat results.

    The driver checks the arguments before it calls any actor, with the messages of a step in one process. Each step is
    one call per actor.
    """

    def __init__(self, pool: Pool, lowered: Lowered, program: Program, options: Options | None) -> None:
        self.pool, self.program, self.names = pool, program, lowered.in_names
        mesh = lowered.mpmd_mesh
        self.owners = pool.owners([each.size for each in mesh.unstack])[: program.meshes]
        self.actors = sorted(set(self.owners))
        shardings = SubmeshShardings(program, mesh.unstack[: program.meshes], mesh.mpmd_axis_name)
        self._keys = key_types(lowered.in_avals)
        self._entrances = [
            _Entrance(pool, self.owners, shardings, number, self.names[number], argument)
            for number, argument in program.arguments.items()
            if argument.registers
        ]
        self._donated = [number for number, argument in program.arguments.items() if argument.donated]
        self._results = [
            (aval, result, shardings.place(result.spec, _meshes(result), result.stacked))
            for result, aval in zip(program.results, lowered.out_avals, strict=True)
        ]
        own = executable_options(lowered, options)
        parts = {actor: _part(mesh, program, own, self.owners, actor) for actor in self.actors}
        self._number = pool.load(parts)
        self._steps = 0

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Begins one step, and returns while it runs. Donated arguments are deleted.

        Raises TypeError, ValueError or RuntimeError for an argument, as in one process, and ActorError if an earlier
        step failed.
        """
        calls, results, what = self._begin("step", arguments)
        self.pool.calls.ahead(calls, what)
        return results

    def trace(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Event]]:
        """Runs one step task by task, and also returns its events. Each actor's clock starts at its own beginning."""
        calls, results, what = self._begin("trace", arguments)
        events = self.pool.calls.get(calls, what)
        return results, joined(events)

    @cached_property
    def stats(self) -> Stats:
        """The compiler's statistics of each function. The actors are asked once."""
        return {key: each for part in self._ask("stats", "memory_analysis") for key, each in part.items()}

    @cached_property
    def compile_seconds(self) -> dict[str, float]:
        """The seconds in which each function was compiled, on the slowest actor. The actors are asked once."""
        found: dict[str, float] = {}
        for part in self._ask("compile_seconds", "report"):
            for name, seconds in part.items():
                found[name] = max(seconds, found.get(name, 0.0))
        return found

    def _ask(self, method: str, what: str) -> list[Any]:
        """Returns the answers of the actors about this program; `what` names the user's call."""
        self.pool.ship(self._number)
        return self.pool.calls.get([self.pool.call(actor, method, self._number) for actor in self.actors], what)

    def _begin(self, method: str, arguments: Sequence[Any]) -> tuple[list[Any], list[Any], str]:
        """Returns the pending calls, the results, and the name of the step in messages."""
        self.pool.calls.check()
        arguments = key_bits(arguments, self._keys, self.names)
        self._check(arguments)
        left_out = current_frozen()
        frozen_tasks(self.program, left_out)  # raises here what the actors would raise
        held: dict[int, dict[int, int]] = {actor: {} for actor in self.actors}
        given: dict[int, dict[int, Any]] = {actor: {} for actor in self.actors}
        for entrance in self._entrances:
            entrance.enter(arguments[entrance.number], held, given)
        self.pool.ship(self._number)
        first = self.pool.reserve(len(self._results))
        self._steps += 1
        what = f"step {self._steps}"
        calls: list[Any] = []
        watched = jax.debug_nans.value, jax.debug_infs.value
        try:
            for actor in self.actors:
                step = StepCall(
                    self._number, held[actor], given[actor], self.pool.drain(actor), first, *watched, left_out
                )
                calls.append(self.pool.call(actor, method, step))
        except BaseException as error:  # also Ctrl-C: only some actors run this step, so later steps would not match
            self.pool.calls.failure = ActorError(f"{what} was not sent to all actors: {type(error).__name__}", None)
            raise
        made = Made(self.pool, self.actors, range(first, first + len(self._results)))
        results = [
            RemoteArray(aval, Buffers(self.pool, number, _meshes(result), self.owners, result.stacked, placed, made))
            for number, (aval, result, placed) in enumerate(self._results, first)
        ]
        for number in self._donated:
            value = arguments[number]
            if isinstance(value, jax.Array | RemoteArray) and not value.is_deleted():
                value.delete()
        return calls, results, what

    def _check(self, arguments: Sequence[Any]) -> None:
        """Raises TypeError for a wrong number of arguments, ValueError for a donated one that is given twice."""
        if len(arguments) != len(self.names):
            raise TypeError(f"expected {len(self.names)} arguments, found {len(arguments)}")
        check_donated_once(arguments, self._donated, self.names.__getitem__)


class _Entrance:
    """Takes in one argument of a step: checks it, and finds what to send to each actor that uses it."""

    def __init__(
        self,
        pool: Pool,
        owners: Sequence[int],
        shardings: SubmeshShardings,
        number: int,
        name: str,
        argument: Argument,
    ) -> None:
        self.number, self._pool, self._argument = number, pool, argument
        self._door = Door(number, name, argument, shardings)
        self._meshes = _meshes(argument)
        self._parts = parts(self._meshes, owners)

    def enter(self, value: Any, held: Mapping[int, dict[int, int]], given: Mapping[int, dict[int, Any]]) -> None:
        """Adds the argument to `held` for actors that have it, or to `given` for actors that must be sent it."""
        door = self._door
        if isinstance(value, RemoteArray):
            numbers = self._find(value)
            if numbers is not None:
                for actor in self._parts:
                    held[actor][self.number] = numbers
                return
            value = value.buffers.read()
        elif isinstance(value, jax.Array) and value.is_deleted():
            raise RuntimeError(f"argument `{door.name}` {DONATED}")
        door.check(value)
        value = np.asarray(value, door.spec.dtype)
        blocks = np.split(value, len(self._meshes)) if self._argument.stacked else []
        for actor, positions in self._parts.items():
            part = np.concatenate([blocks[position] for position in positions]) if blocks else value
            given[actor][self.number] = part

    def _find(self, value: RemoteArray) -> int | None:
        """Returns the value's number if all actors that use the argument have the value, otherwise None."""
        door, buffers = self._door, value.buffers
        if buffers.pool is not self._pool:
            return None
        buffers.check(f"argument `{door.name}`")
        if (buffers.shape, buffers.dtype) != (door.shape, door.spec.dtype):
            door.check(jax.ShapeDtypeStruct(buffers.shape, buffers.dtype))
        if self._argument.stacked or buffers.stacked:
            same = (self._argument.stacked, self._meshes) == (buffers.stacked, buffers.meshes)
            return buffers.number if same else None
        return buffers.number if self._parts.keys() <= buffers.parts.keys() else None


def _meshes(value: Argument | Result) -> tuple[int, ...]:
    return tuple(mesh for mesh, _ in value.registers)


def _part(
    mesh: MpmdMesh, program: Program, options: Mapping[str, Any], owners: Sequence[int], actor: int
) -> ProgramPart:
    """Returns the part of a program that one actor needs."""
    mine = [number for number, owner in enumerate(owners) if owner == actor]
    devices: dict[int, np.ndarray[Any, Any]] = {}
    first = 0
    for number in mine:
        shape = mesh.unstack[number].devices.shape
        devices[number] = np.arange(first, first + math.prod(shape)).reshape(shape)
        first += math.prod(shape)
    return ProgramPart(
        program=_without_others(program, mine),
        owners=owners,
        devices=devices,
        axis_names=mesh.jax_mesh.axis_names,
        axis_types=mesh.jax_mesh.axis_types,
        options=options,
    )


def _without_others(program: Program, meshes: Collection[int]) -> Program:
    """Returns `program` without the code and the constants of other meshes."""
    called = {each.function for mesh in meshes for each in program.calls[mesh]}
    functions = {
        name: function if name in called else dataclasses.replace(function, bytecode=b"")
        for name, function in program.functions.items()
    }
    sequences = tuple(
        sequence if mesh in meshes else tuple(each for each in sequence if not isinstance(each, Constant))
        for mesh, sequence in enumerate(program.sequences)
    )
    return dataclasses.replace(program, functions=functions, sequences=sequences)
