"""Program module -> compiled -> executed: `Executable(load(module), submeshes)(arguments)`."""

from jaxpp._versions import warn_of_newer_jax
from jaxpp.runtime.costs import measured_costs
from jaxpp.runtime.execute import Executable
from jaxpp.runtime.load import load
from jaxpp.runtime.program import Call, Program, Receive, Send, TaskName
from jaxpp.runtime.trace import Event, trace_step, write_chrome_trace
from jaxpp.runtime.values import ProgramError

warn_of_newer_jax()

__all__ = [
    "Call",
    "Event",
    "Executable",
    "Program",
    "ProgramError",
    "Receive",
    "Send",
    "TaskName",
    "load",
    "measured_costs",
    "trace_step",
    "write_chrome_trace",
]
