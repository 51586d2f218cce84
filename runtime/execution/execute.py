"""Runs a program: one thread issues the instructions of all submeshes of this process in one merged order."""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import Mesh

from jaxpp import _compat
from jaxpp.ir.program import Call, Constant, Program
from jaxpp.runtime.execution.arguments import Door, check_donated_once
from jaxpp.runtime.execution.compiling import Stats, compile_program, serialized, statistics
from jaxpp.runtime.execution.frozen import Tasks, current_frozen, frozen_tasks, without
from jaxpp.runtime.execution.invalid_values import InvalidValues
from jaxpp.runtime.execution.links import Links
from jaxpp.runtime.execution.operations import Operations, check_operations
from jaxpp.runtime.execution.options import Options
from jaxpp.runtime.execution.order import merged_order
from jaxpp.runtime.execution.registers import NOTHING, Registers
from jaxpp.runtime.execution.results import Results
from jaxpp.runtime.execution.shardings import SubmeshShardings
from jaxpp.runtime.execution.steps import FlatStep, StepLabel, flatten
from jaxpp.runtime.processes.arrays import batch_copy, put
from jaxpp.runtime.processes.transfer import Peers
from jaxpp.runtime.processes.waiting import WaitFor

ONE_THREAD = "call a step by one thread"

Observe = Callable[[StepLabel, Sequence[Any], Sequence[Any]], None]
"""Called as (label, made, registers) after a step, with the arrays that the step made, perhaps not computed yet, and
all registers. Operands whose last use is this step are still there, deleted if they were donated to it."""


class Executable:
    """A compiled program: takes the flat arguments, returns the flat results, all of them `jax.Array`s.

    submeshes: one per mesh of the program, each with the axis `mpmd_axis` of size 1. None for a mesh of other processes
        whose devices JAX doesn't know here: its arguments are ignored, its results are None.
    peers: the processes that run the program together. Each of them makes an Executable and calls it once per step.
        None if this process runs all meshes. With peers a call returns when the values from them have arrived.
    names: the names of the arguments in messages, as `state['w']`.
    operations: the user's functions that the program calls as tasks.
    compiled: the result of `serialize` in a process that ran the same meshes of the same program on such devices. It is
        loaded instead of compiling.
    compiler_options: passed to XLA, as `jax.jit(...).lower(...).compile(compiler_options)` does; under the index of a
        mesh, the options of only its programs.
    Raises ProgramError if the submeshes don't fit the program, or a kind of the program's tasks lacks its function.
    """

    def __init__(
        self,
        program: Program,
        submeshes: Sequence[Mesh | None],
        *,
        peers: Peers | None = None,
        names: Sequence[str] = (),
        mpmd_axis: str = "mpmd",
        compiler_options: Options | None = None,
        host_callbacks: Sequence[Any] = (),
        operations: Operations = MappingProxyType({}),
        compiled: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        check_operations(program, operations)
        self.program, self.names = program, tuple(names)
        self._lock = threading.Lock()
        self.has_run = False
        """Whether a whole step has run."""
        self._runner: int | None = None
        """The thread that runs a step now."""
        self._without: tuple[tuple[Tasks, bool], list[FlatStep]] | None = None
        """The tasks that the last run left out, and the steps without them."""
        self._shardings = shardings = SubmeshShardings(program, submeshes, mpmd_axis)
        here = {mesh: each for mesh, each in enumerate(submeshes) if each is not None and shardings.is_here(mesh)}
        self._links = Links(program, peers, shardings, self._name) if peers else None
        self.gather, self.exchange = (peers.gather, peers.exchange) if peers else (None, None)
        self._compiled, self._compiler_options, self._here = compiled, compiler_options or {}, here
        self._executables, seconds = compile_program(program, here, compiler_options, host_callbacks, compiled)
        self.compile_seconds = seconds
        """The seconds in which each function was compiled, or loaded from a cache."""
        runs = {
            key: _compat.execute_noting_effects(each) if host_callbacks else each.execute_sharded
            for key, each in self._executables.items()
        }
        self._registers = registers = Registers()
        order = merged_order(program)
        self._flatten = partial(flatten, program, order, runs, shardings, registers, self._links, operations)
        self._steps = self._flatten(is_batched=True)
        doors = [
            Door(number, self._name(number), argument, shardings)
            for number, argument in program.arguments.items()
            if any(shardings.knows(mesh) for mesh, _ in argument.registers)
        ]
        if self._links:
            for door in doors:
                door.note = self._links.note
        self._doors = [(door, [registers.number(*place) for place in door.places]) for door in doors]
        self.argument_count = len(self.names) or max(program.arguments, default=-1) + 1
        self._donated = self._find_donated()
        constants = self._make_constants(here)
        self._results = Results(program, registers, shardings, constants.keys())
        self._template: list[Any] = [constants.get(register) for register in range(registers.count)]

    def __repr__(self) -> str:
        return f"Executable({self.program})"

    @cached_property
    def stats(self) -> Stats:
        """The compiler's statistics of each function that this process runs."""
        return statistics(self.program, self._executables, self._compiler_options)

    def serialize(self) -> Mapping[str, bytes]:
        """Returns the compiled functions that this process runs, by name. Raises XLA's error if it can't serialize."""
        return self._compiled or serialized(self.program, self._executables, self._here, self._compiler_options)

    def __call__(self, arguments: Sequence[Any]) -> list[jax.Array]:
        """Dispatches one step, and returns before it is computed. Donated arguments are deleted.

        Raises TypeError, ValueError or RuntimeError for an argument (see `Door.enter`), and XLA's errors, with the task
        and its mesh as a note. Arguments that the failed step has already donated are lost. Under `jax_debug_nans` or
        `jax_debug_infs` raises FloatingPointError, see `InvalidValues.check`.
        """
        return self._run(arguments, self._steps)

    def run(
        self,
        arguments: Sequence[Any],
        observe: Observe,
        on_start: Callable[[Sequence[Any]], None] | None = None,
    ) -> list[jax.Array]:
        """Runs one step slowly, calling `observe` after each instruction: for traces and tests.

        on_start: called with the registers before the first instruction; arguments may still be on their way.
        """
        return self._run(arguments, self._one_by_one, observe, on_start)

    def warm_up(self, arguments: Sequence[Any]) -> None:
        """Runs one step whose results are dropped, and waits for its end. All processes of the program call it.

        Copies of the donated arguments are donated. The user's functions are not called, but callbacks inside of tasks
        are.
        """
        self._run(arguments, self._without_operations, is_kept=True)

    def crosses(self, channel: int) -> bool:
        """Whether other processes take part in a transfer."""
        return self._links is not None and self._links.exchange.crosses(channel)

    @cached_property
    def _one_by_one(self) -> list[FlatStep]:
        return self._flatten(is_batched=False)

    @property
    def _without_operations(self) -> list[FlatStep]:
        """The steps of the program without those that call the user's functions."""
        functions = self.program.functions

        def is_operation(label: StepLabel) -> bool:
            return any(isinstance(each, Call) and functions[each.function].is_operation for _, each in label)

        return [step for step in self._steps if not is_operation(step[-1])]

    def _run(
        self,
        arguments: Sequence[Any],
        steps: list[FlatStep],
        observe: Observe | None = None,
        on_start: Callable[[Sequence[Any]], None] | None = None,
        *,
        is_kept: bool = False,
    ) -> list[jax.Array]:
        """Runs one step. If `is_kept`, the arguments stay, there are no results, and no value is looked at."""
        if self._runner == threading.get_ident():
            raise RuntimeError("a step was called by one of its own operations; it would wait for itself")
        if self._lock.locked():
            with WaitFor("the same step in another thread", None, ONE_THREAD), self._lock:
                pass
        with self._lock, self._running():
            left_out = frozen_tasks(self.program, current_frozen())
            steps = self._left_out(steps, left_out) if left_out else steps
            invalid = None if is_kept else InvalidValues.wanted(self.program)
            with contextlib.nullcontext() if invalid is None else invalid.unchecked():
                registers = self._enter(arguments, left_out)
                if is_kept:
                    self._copy_donated(registers)
            registers.extend([None] * (self._registers.count - len(registers)))
            with _compat.OwnTransfers():
                if invalid is not None:
                    self._look_at_arguments(invalid, registers)
                    observe = _both(invalid.look, observe) if observe else invalid.look
                if on_start is not None:
                    on_start(registers)
                self._dispatch(steps, registers, observe)
                if is_kept:
                    jax.block_until_ready([each for each in registers if each is not None])
                    return []
                results = self._leave(registers, arguments)
                self.has_run = True
                if invalid is not None:
                    invalid.check(results)
                return results

    def _left_out(self, steps: list[FlatStep], left_out: Tasks) -> list[FlatStep]:
        """Returns the steps of a program without the weight gradients that this run leaves out."""
        key = left_out, steps is self._steps
        if self._without is None or self._without[0] != key:
            self._without = key, without(left_out, steps, self._registers, self.program, self._shardings)
        return self._without[1]

    @contextlib.contextmanager
    def _running(self) -> Generator[None]:
        """Notes the thread that runs a step."""
        self._runner = threading.get_ident()
        try:
            yield
        finally:
            self._runner = None

    def _dispatch(self, steps: Sequence[FlatStep], registers: list[Any], observe: Observe | None) -> None:
        label: StepLabel = ()
        try:
            for function, operands, results, frees, handlers, label in steps:
                if handlers is None:
                    registers[results] = function(operands(registers))
                else:
                    registers[results] = function(operands(registers)).consume_with_handlers(handlers)
                if observe is not None and operands is not NOTHING:
                    observe(label, registers[results], registers)
                for register in frees:
                    registers[register] = None
        except BaseException as error:
            self._fail(error, label)
            raise
        if self._links:
            self._links.end()

    def _fail(self, error: BaseException, label: StepLabel) -> None:
        """Adds the task and mesh to the error as a note, and tells the other processes."""
        if label:
            error.add_note(_where(label))
        if "previously donated" in str(error) or "donate the same buffer" in str(error):
            error.add_note("jaxpp: two arguments share one memory, and are donated: make one of them a copy (jnp.copy)")
        if self._links:
            self._links.fail(error)

    def _enter(self, arguments: Sequence[Any], left_out: Tasks) -> list[Any]:
        """Returns the registers at the start of a step, with constants and arguments."""
        if len(arguments) != self.argument_count:
            raise TypeError(f"expected {self.argument_count} arguments, found {len(arguments)}")
        if self._donated and len({*map(id, arguments)}) != len(arguments):
            check_donated_once(arguments, self._donated, self._name)
        registers = self._template.copy()
        if self._links:
            self._links.enter(left_out)
        for door, numbers in self._doors:
            value = door.enter(arguments[door.number])
            if door.is_whole:
                registers[numbers[0]] = value
            elif numbers:
                for number, piece in zip(numbers, door.split(value), strict=True):
                    registers[number] = piece
        return registers

    def _copy_donated(self, registers: list[Any]) -> None:
        """Puts copies into the registers of donated arguments."""
        numbers = [number for door, each in self._doors if door.number in self._donated for number in each]
        arrays = [registers[number] for number in numbers]
        copy = batch_copy([each.sharding for each in arrays], always=True)
        for number, copied in zip(numbers, copy(arrays), strict=True):
            registers[number] = copied

    def _look_at_arguments(self, invalid: InvalidValues, registers: Sequence[Any]) -> None:
        for door, numbers in self._doors:
            for number in numbers:
                invalid.look_at_argument(registers[number], door.name)

    def _leave(self, registers: list[Any], arguments: Sequence[Any]) -> list[jax.Array]:
        """Returns the results, and deletes the arrays of donated arguments."""
        results = self._results.take(registers)
        for number, delete in self._donated.items():
            value = arguments[number]
            if delete and isinstance(value, jax.Array) and not value.is_deleted():
                value.delete()
        return results

    def _find_donated(self) -> dict[int, bool]:
        """Returns the donated arguments, and whether to delete each: one that is also a result is kept."""
        leaving = {place for result in self.program.results for place in result.registers}
        return {
            number: leaving.isdisjoint(argument.registers)
            for number, argument in self.program.arguments.items()
            if argument.donated
        }

    def _make_constants(self, meshes: Iterable[int]) -> dict[int, jax.Array]:
        """Makes an array for every constant, by register; equal constants of a mesh share one array."""
        made: dict[tuple[int, Any, bytes], jax.Array] = {}
        constants: dict[int, jax.Array] = {}
        with jax.enable_x64(True), _compat.OwnTransfers():  # threefry shifts 64 bits, whatever the user has set
            for mesh in meshes:
                for each in self.program.sequences[mesh]:
                    if isinstance(each, Constant):
                        key = (mesh, each.spec, each.value.tobytes())
                        if key not in made:
                            made[key] = put(each.value, self._shardings.place(each.spec, (mesh,)).sharding)
                        constants[self._registers.number(mesh, each.result)] = made[key]
        return constants

    def _name(self, number: int) -> str:
        return self.names[number] if number < len(self.names) else str(number)


def _both(one: Observe, other: Observe) -> Observe:
    def observe(*what: Any) -> None:
        one(*what)
        other(*what)

    return observe


def _where(label: StepLabel) -> str:
    """Returns the note on an exception that names the tasks and their meshes."""
    return "jaxpp: in " + "; ".join(f"{instruction} on mesh {mesh}" for mesh, instruction in label)
