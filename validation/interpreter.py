"""A reference interpreter of programs (docs/ir.md, section 6): slow and simple.

Each mesh runs its sequence until it waits for a value that was not sent yet; then another mesh runs. XLA runs the task
functions. `ProgramReader` has already refused programs that break a rule, with a deadlock for example.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from jaxpp.ir.functions import name_of
from jaxpp.ir.program import Call, Constant, Send
from jaxpp.ir.read_program import ProgramReader
from jaxpp.validation.cpu import Array, Runner
from jaxpp.validation.runnable import RunError

NamedResults = dict[int, list[tuple[str, Array]]]
"""The results of a step by number: on each mesh that has one, a phrase that names the mesh, and the value."""
TaskFunction = Callable[[Sequence[Array]], list[Array]]
Watch = Callable[[int, Call, Sequence[Array], Sequence[Array]], None]
"""A function that sees each call: its mesh, the call, its operands and its results."""


class Interpreter:
    """Compiles the program of a module, and runs it any number of times.

    Attributes:
        program: the program.
        bodies: the func.func of each function that is compiled, by its name in the program. On meshes of several sizes
            a func.func may be several functions.

    Raises:
        ProgramError: the module is no program, or breaks a rule for programs.
        RunError: XLA refuses one of its functions.
    """

    def __init__(self, module: ir.Module, runner: Runner) -> None:
        reader = ProgramReader(module)
        self.program = reader.program
        self._runner = runner
        compiled = {
            name: op if self.program.functions[name].is_compiled else None for name, (op, _) in reader.sources.items()
        }
        self.bodies = {name: op for name, op in compiled.items() if op is not None}
        self._tasks = {name: _compile(module, op, runner) for name, op in compiled.items()}

    def run(self, arguments: Mapping[int, Array], watch: Watch | None = None) -> NamedResults:
        """Runs the step, and returns its results; a stack is one value, on mesh 0.

        Args:
            arguments: the arguments of the step by their numbers. Arguments that no mesh uses may be missing.
            watch: a function that sees each call after it ran.
        """
        values: list[dict[int, Array]] = [{} for _ in self.program.sequences]
        for number, argument in self.program.arguments.items():
            whole = arguments[number]
            parts = np.split(np.asarray(whole), len(argument.registers)) if argument.stacked else []
            for place, (mesh, register) in enumerate(argument.registers):
                values[mesh][register] = self._runner.put(parts[place]) if parts else whole
        sent: dict[int, Array] = {}
        for mesh, each in self.program.run_order():
            own = values[mesh]
            if isinstance(each, Call):
                operands = [own[register] for register in each.operands]
                made = self._tasks[each.function](operands)
                if watch is not None:
                    watch(mesh, each, operands, made)
                own.update(zip(each.results, made if each.results else (), strict=True))
            elif isinstance(each, Send):
                sent[each.channel] = own[each.operand]
            elif isinstance(each, Constant):
                own[each.result] = self._runner.put(each.value)
            else:
                own[each.result] = sent.pop(each.channel)
            for register in each.frees if isinstance(each, Call | Send) else ():
                del own[register]
        results: NamedResults = {}
        for number, result in enumerate(self.program.results):
            places = [(f" on mesh {mesh}", values[mesh][register]) for mesh, register in result.registers]
            if result.stacked:
                places = [(" on mesh 0", np.concatenate([np.asarray(value) for _, value in places]))]
            results[number] = places
        return results


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
