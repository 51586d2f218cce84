"""The page of `CompiledStep.report`: a measured step above the predicted one, with the reasons for its length."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from jaxpp import schedules
from jaxpp._compat import make_context
from jaxpp.balancing import balance
from jaxpp.ir.liveness import live_changes
from jaxpp.ir.program import Call, Constant, Program, Receive
from jaxpp.runtime import Event
from jaxpp.runtime.execution.compiling import Stats
from jaxpp.runtime.measuring.analysis import calls
from jaxpp.runtime.measuring.trace import spans_of
from jaxpp.schedules.costs import UNITS
from jaxpp.schedules.engine.chrome_trace import Memory, curve
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.engine.spans import Span
from jaxpp.schedules.plot.page import PageStep, PageTable, make_page
from jaxpp.schedules.plot.pages import simulated_step, step_facts, step_tables

_MOST_LINES = 5000
"""The most lines of the text of a function on a page."""

_MOST_ELEMENTS = 16
"""The most elements of a constant in such a text."""


@dataclass(frozen=True)
class ShownProgram:
    """A compiled step, as its page shows it.

    Attributes:
        title: the title of the page.
        program: the program.
        stats: the statistics of its functions, without those that only other processes run.
        schedule: the schedule as a grid. It is "" if it is not known.
        cuts: the number of marked layers of each stage. It is empty if it is not known.
        limits: the memory limit of each device of each mesh; None for a mesh without one.
        compile_seconds: the seconds in which each function was compiled. It is empty if they are not known.
        is_planned: whether the events are predicted.
    """

    title: str
    program: Program
    stats: Stats
    schedule: str
    cuts: Sequence[int]
    limits: Sequence[float | None]
    compile_seconds: Mapping[str, float]
    is_planned: bool = False


def page_of(shown: ShownProgram, events: Sequence[Event], costs: schedules.Costs) -> bytes:
    """Returns the page of a step.

    Args:
        shown: the step.
        events: the events of one traced or planned step. If there are none, the page has only the schedule.
        costs: the costs of the predicted step.
    """
    seconds = max((event.end for event in events), default=0.0)
    unit = "s" if seconds >= 5 else "us" if 0 < seconds < 1e-3 else "ms"
    predicted = _simulated(shown, costs, unit if events else None)
    unit = unit if events or predicted is None else predicted.costs.unit
    steps = [_measured(shown, events, unit)] if events else []
    if predicted is not None and not shown.is_planned:
        start = min((span.start for span in steps[0].spans if _is_task(span)), default=0.0) if steps else 0.0
        steps.append(simulated_step(predicted, _title(predicted), start))
    facts = step_facts(steps[0], unit) if steps else []
    if predicted is not None and events:
        facts.insert(1, ("the loop, predicted", f"{predicted.makespan:.4g} {unit}"))
    tables = step_tables(steps[0], unit) if steps else []
    notes: list[str] = []
    if predicted is not None:
        found = balance(predicted, shown.cuts)
        tables.insert(0, found.table)
        notes.append(found.advice)
    tables.append(_compiling(shown))
    texts = function_texts(shown.program, {event.function for event in events if event.function})
    return make_page(shown.title, steps, unit, notes=notes, facts=facts, tables=tables, texts=texts)


def _simulated(shown: ShownProgram, costs: schedules.Costs, unit: str | None) -> Report | None:
    if not shown.schedule:
        return None
    return schedules.simulate(schedules.parse(shown.schedule), costs if unit is None else costs.in_unit(unit))


def _title(report: Report) -> str:
    return f"predicted: {report.schedule.name}, {report.makespan:.4g} {report.costs.unit}, {report.bubble:.1%} idle"


def _is_task(span: Span) -> bool:
    return span.target is None and span.labels[0].stage is not None


def _measured(shown: ShownProgram, events: Sequence[Event], unit: str) -> PageStep:
    program, scale = shown.program, 1 / UNITS[unit]
    spans = [span._replace(start=span.start * scale, end=span.end * scale) for span in spans_of(events)]
    curves = [device_bytes(program, shown.stats, mesh, events) for mesh in range(program.meshes)]
    memory = Memory("bytes", [curve(sorted((at * scale, change) for at, change in each)) for each in curves])
    what = "planned" if shown.is_planned else "measured"
    note = (
        "The times are the compiler's estimates."
        if shown.is_planned
        else "Each task and transfer was measured while nothing else ran. Here each one runs as early as it can."
    )
    return PageStep(
        f"{what}: {max((span.end for span in spans), default=0.0):.4g} {unit}",
        spans,
        program.meshes,
        memory,
        note,
        "bytes on each device: arguments, values and temporaries; at the right the peak, and the limit",
        shown.limits,
    )


def device_bytes(program: Program, stats: Stats, mesh: int, events: Sequence[Event]) -> list[tuple[float, float]]:
    """Returns the changes of the live bytes on each device of a mesh, as (seconds, bytes), in no order.

    A task allocates its results and temporaries when it starts, and frees them when it ends. A value from another mesh
    counts from the start of its transfer. An instruction without an event was left out of the step.
    """
    temporaries = {name: stats[name, mesh].temp_size_in_bytes for name in calls(program, mesh) if (name, mesh) in stats}
    given, changes = live_changes(program, mesh, temporaries=temporaries)
    sends = {event.channel: event for event in events if event.channel is not None}
    own = iter([event for event in events if event.mesh == mesh])
    event, last = next(own, None), 0.0
    found = [(0.0, float(given))]
    for instruction, change in zip(program.sequences[mesh], changes, strict=True):
        if isinstance(instruction, Constant):
            found.append((0.0, float(change.made)))
        elif isinstance(instruction, Receive):
            sent = sends.get(instruction.channel)
            found.append((sent.start if sent else last, float(change.made)))
        elif event is not None and _runs(event, instruction):
            found.append((event.start, float(change.made + change.beside)))
            found.append((event.end, -float(change.freed + change.beside)))
            last, event = event.end, next(own, None)
    return found


def _runs(event: Event, instruction: object) -> bool:
    """Whether an event is the run of an instruction of its mesh."""
    if isinstance(instruction, Call):
        names = [label[1:] for label in event.labels if label.stage is not None]
        return event.function == instruction.function and names == [task[1:] for task in instruction.tasks]
    return event.channel is not None and event.channel == getattr(instruction, "channel", None)


def function_texts(program: Program, names: set[str]) -> dict[str, str]:
    """Returns the MLIR text of compiled functions; large constants and long texts are cut."""
    found: dict[str, str] = {}
    with make_context():
        for name in sorted(names):
            function = program.functions[name]
            if function.is_compiled:
                module = ir.Module.parse(function.bytecode)
                lines = str(module.operation.get_asm(large_elements_limit=_MOST_ELEMENTS)).splitlines()
                more = len(lines) - _MOST_LINES
                cut = [f"... {more} more lines; print(compiled.program().as_text()) has all"] if more > 0 else []
                found[name] = "\n".join([*lines[:_MOST_LINES], *cut])
    return found


def _compiling(shown: ShownProgram) -> PageTable:
    meshes: defaultdict[str, list[str]] = defaultdict(list)
    for mesh in range(shown.program.meshes):
        for name in calls(shown.program, mesh):
            meshes[name].append(str(mesh))
    times = sorted(shown.compile_seconds.items(), key=lambda each: -each[1])
    rows = [[name, ", ".join(meshes[name]), f"{seconds:.3g} s"] for name, seconds in times]
    note = "Functions are compiled in parallel; those of a cache are only loaded."
    return PageTable("Compile times", ["function", "meshes", "time"], rows, note)
