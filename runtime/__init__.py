"""Loads, compiles and executes a program module: `Executable(load(module), submeshes)(arguments)`."""

from jaxpp._versions import warn_of_newer_jax
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call, Program, Receive, Send, TaskName
from jaxpp.runtime.execution.execute import Executable
from jaxpp.runtime.execution.load import load
from jaxpp.runtime.measuring.bubbles import BubbleUse, bubble_use
from jaxpp.runtime.measuring.costs import kept_places, measured_costs, slice_shares
from jaxpp.runtime.measuring.events import Event
from jaxpp.runtime.measuring.speeds import mesh_speeds
from jaxpp.runtime.measuring.trace import trace_step, write_chrome_trace

warn_of_newer_jax()

__all__ = [
    "BubbleUse",
    "Call",
    "Event",
    "Executable",
    "Program",
    "ProgramError",
    "Receive",
    "Send",
    "TaskName",
    "bubble_use",
    "kept_places",
    "load",
    "measured_costs",
    "mesh_speeds",
    "slice_shares",
    "trace_step",
    "write_chrome_trace",
]
