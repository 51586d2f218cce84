"""`JAXPP_DUMP_DIR=DIR`: writes each step before and after the passes, as files to read or for `jaxpp-opt`.

    DIR/jit_train_step.0.lowered.mlir     the module that the user wrote, with its lines
    DIR/jit_train_step.0.schedule.txt     its schedule: a grid
    DIR/jit_train_step.0.program.mlir     the program: one function per mesh

The number counts the steps of this process. In a job of several processes `.process1` comes before it.
"""

import itertools
import os

import jax
from jaxlib.mlir import ir

from jaxpp._system import write_file
from jaxpp.hlo_passes.base import Observer, Pass
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.ir.loop import schedule_text

_numbers = itertools.count()


class Dump(Observer):
    """An observer of the passes that writes the files of one step, its schedule even if a pass fails.

    Raises (when it writes):
        OSError: the folder can't be written.
    """

    reads_program = False

    def __init__(self, folder: str, name: str) -> None:
        process = f".process{jax.process_index()}" if jax.process_count() > 1 else ""
        self._stem = os.path.join(folder, f"{name}{process}.{next(_numbers)}")
        os.makedirs(folder, exist_ok=True)

    def lowered(self, module: ir.Module) -> None:
        """Writes the module before all passes."""
        self._write("lowered.mlir", str(module.operation.get_asm(enable_debug_info=True)))

    def after(self, step: Pass, module: ir.Module) -> None:
        """Writes the schedule as soon as it is resolved: later passes may refuse the marks."""
        if isinstance(step, FindMicrobatchLoop):
            self._write("schedule.txt", schedule_text(module))

    def program(self, text: str) -> None:
        """Writes the text of the program."""
        self._write("program.mlir", text)

    def _write(self, kind: str, text: str) -> None:
        write_file(f"{self._stem}.{kind}", f"{text.rstrip()}\n".encode())


def dump_of(module: ir.Module) -> Dump | None:
    """Returns the dump of a step; None without the environment variable."""
    folder = os.environ.get("JAXPP_DUMP_DIR")
    return Dump(folder, ir.StringAttr(module.operation.attributes["sym_name"]).value) if folder else None
