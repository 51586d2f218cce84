"""A reference interpreter of programs (docs/ir.md, section 6): slow and simple.

Each mesh runs its sequence until it waits for a value that was not sent yet; then the next mesh runs. XLA runs the task
functions. `ProgramReader` has already refused programs that break a rule, with a deadlock for example.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from jaxpp._compat import own_copy
from jaxpp.ir import attributes as at
from jaxpp.ir.functions import functions, name_of
from jaxpp.ir.program import Call, Constant, Instruction, Send
from jaxpp.ir.read_program import ProgramReader
from jaxpp.validation.cpu import Array, Runner
from jaxpp.validation.runnable import RunError

TaskFunction = Callable[[Sequence[Array]], list[Array]]


@dataclass
class _Mesh:
    """The state of one mesh while its sequence runs."""

    sequence: Sequence[Instruction]
    position: int = 0
    values: dict[int, Array] = field(default_factory=dict[int, Any])


class Interpreter:
    """Compiles the program of a module, and runs it any number of times.

    Raises:
        ProgramError: the module is no program, or breaks a rule for programs.
        RunError: XLA refuses one of its functions.
    """

    def __init__(self, module: ir.Module, runner: Runner) -> None:
        module = _in_one_memory(module)
        reader = ProgramReader(module)
        self._program = reader.program
        self._runner = runner
        self._tasks = {
            name: _compile(module, op if self._program.functions[name].is_compiled else None, runner)
            for name, (op, _) in reader.sources.items()
        }

    def run(self, arguments: Mapping[int, Array]) -> dict[int, list[tuple[int, Array]]]:
        """Runs the step. Returns (mesh, value) for each result, by number, on each mesh; (0, whole value) for a stack.

        Args:
            arguments: the arguments of the step by their numbers. Arguments that no mesh uses may be missing.
        """
        meshes = [_Mesh(sequence) for sequence in self._program.sequences]
        for number, argument in self._program.arguments.items():
            whole = arguments[number]
            parts = np.split(np.asarray(whole), len(argument.registers)) if argument.stacked else []
            for place, (mesh, register) in enumerate(argument.registers):
                meshes[mesh].values[register] = self._runner.put(parts[place]) if parts else whole
        sent: dict[int, Array] = {}
        while any(mesh.position < len(mesh.sequence) for mesh in meshes):
            for mesh in meshes:
                self._advance(mesh, sent)
        results: dict[int, list[tuple[int, Array]]] = {}
        for number, result in enumerate(self._program.results):
            places = [(mesh, meshes[mesh].values[register]) for mesh, register in result.registers]
            whole = [(0, np.concatenate([np.asarray(value) for _, value in places]))] if result.stacked else places
            results[number] = whole
        return results

    def _advance(self, mesh: _Mesh, sent: dict[int, Array]) -> None:
        """Runs the sequence of a mesh until it is done or waits."""
        while mesh.position < len(mesh.sequence):
            each = mesh.sequence[mesh.position]
            if isinstance(each, Call):
                made = self._tasks[each.function]([mesh.values[register] for register in each.operands])
                mesh.values.update(zip(each.results, made if each.results else (), strict=True))
            elif isinstance(each, Send):
                sent[each.channel] = mesh.values[each.operand]
            elif isinstance(each, Constant):
                mesh.values[each.result] = self._runner.put(each.value)
            elif each.channel in sent:
                mesh.values[each.result] = sent.pop(each.channel)
            else:
                return
            for register in each.frees if isinstance(each, Call | Send) else ():
                del mesh.values[register]
            mesh.position += 1


def _in_one_memory(module: ir.Module) -> ir.Module:
    """Returns a copy of `module` that names no memory: `copy-host-state`, which adds the copies, may not have run."""
    module = own_copy(module)
    with module.context:
        for function in functions(module).values():
            tables = at.argument_attributes(function), at.result_attributes(function)
            for entry in chain(*tables):
                entry.pop(at.MEMORY, None)
            at.set_tables(function, *tables)
    return module


def _compile(module: ir.Module, op: ir.Operation | None, runner: Runner) -> TaskFunction:
    """Compiles a function of the program; `op` is None for a function that is not compiled.

    Values here are not sharded, and all are in one memory. So a reshard or a copy returns its arguments. A function
    that stands for a user's function returns them too, but has no results that anything reads.
    """
    if op is None:
        return list
    try:
        return runner.compile(module, name_of(op))
    except RunError as error:
        raise RunError.because(f"in @{name_of(op)}", error) from None
