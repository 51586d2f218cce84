"""Program module -> compiled -> executed: `Executable(load(module), submeshes)(arguments)`."""

from jaxpp.runtime.execute import Executable
from jaxpp.runtime.load import load
from jaxpp.runtime.program import Program
from jaxpp.runtime.trace import Event, trace_step, write_chrome_trace
from jaxpp.runtime.values import ProgramError

__all__ = ["Event", "Executable", "Program", "ProgramError", "load", "trace_step", "write_chrome_trace"]
