"""Where the time of a step goes: every task and copy of one step, measured alone."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxpp.runtime.execute import Executable
from jaxpp.runtime.program import Call, Receive, Send


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A task, or a copy to another mesh (kind "send"), of one step.

    seconds: how long it took with nothing else running.
    start, end: where it stands, in seconds, when each mesh runs its tasks in order, each as soon as its operands are
    there, and copies take no time of a mesh.
    """

    mesh: int
    kind: str
    stage: int | None
    microbatch: int | None
    start: float
    end: float
    seconds: float

    def __str__(self) -> str:
        numbers = [str(number) for number in (self.stage, self.microbatch) if number is not None]
        return f"{self.kind} {', '.join(numbers)}".strip()


def trace_step(executable: Executable, arguments: Sequence[Any]) -> tuple[list[jax.Array], list[Event]]:
    """Run one step, waiting for each instruction; returns its results and its events, in the order of dispatch.

    The results are the step's own, and donated arguments are gone: this is a step of the training, only slower.
    """
    events: list[Event] = []
    clocks = [0.0] * executable.program.meshes
    ready: dict[tuple[int, int], float] = {}
    makers: dict[tuple[int, int], Call] = {}
    arrivals: dict[int, float] = {}
    last = time.perf_counter()

    def on_instruction(mesh: int, instruction: Call | Send | Receive, made: Sequence[jax.Array], _: object) -> None:
        nonlocal last
        jax.block_until_ready(made)
        seconds = time.perf_counter() - last
        if isinstance(instruction, Receive):
            ready[mesh, instruction.result] = arrivals[instruction.channel]
        elif isinstance(instruction, Send):
            place = (mesh, instruction.operand)
            start = ready.get(place, 0.0)
            arrivals[instruction.channel] = start + seconds
            task = makers.get(place)
            stage, microbatch = (task.stage, task.microbatch) if task else (None, None)
            events.append(Event(mesh, "send", stage, microbatch, start, start + seconds, seconds))
        else:
            start = max([clocks[mesh], *(ready.get((mesh, register), 0.0) for register in instruction.operands)])
            clocks[mesh] = start + seconds
            for register in instruction.results:
                ready[mesh, register], makers[mesh, register] = clocks[mesh], instruction
            stage, microbatch = instruction.stage, instruction.microbatch
            events.append(Event(mesh, instruction.kind, stage, microbatch, start, clocks[mesh], seconds))
        last = time.perf_counter()

    return executable.run(arguments, on_instruction), events


def write_chrome_trace(events: Sequence[Event], path: str | Path) -> None:
    """Write the events for chrome://tracing or Perfetto: two rows per mesh (tasks, sends), microseconds."""
    rows = [
        {
            "name": str(event),
            "cat": event.kind,
            "ph": "X",
            "pid": 0,
            "tid": 2 * event.mesh + (event.kind == "send"),
            "ts": event.start * 1e6,
            "dur": (event.end - event.start) * 1e6,
            "args": {"stage": event.stage, "microbatch": event.microbatch, "seconds": event.seconds},
        }
        for event in events
    ]
    names = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 2 * mesh + sends, "args": {"name": f"mesh {mesh}{row}"}}
        for mesh in sorted({event.mesh for event in events})
        for sends, row in enumerate(("", ", sends"))
    ]
    Path(path).write_text(json.dumps({"traceEvents": names + rows, "displayTimeUnit": "ms"}))
