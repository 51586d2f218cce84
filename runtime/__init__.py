"""Program module -> compiled -> executed: `Executable(load(module), submeshes)(arguments)`."""

from jaxpp.runtime.execute import Executable
from jaxpp.runtime.load import load
from jaxpp.runtime.program import Program
from jaxpp.runtime.values import ProgramError

__all__ = ["Executable", "Program", "ProgramError", "load"]
