"""The pages of simulated schedules and of traces, and the tables and facts that all pages have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from jaxpp.schedules.engine.chrome_trace import Memory
from jaxpp.schedules.engine.read_trace import ReadTrace
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.engine.spans import CAUSES, hops_of, parts
from jaxpp.schedules.errors import counted
from jaxpp.schedules.plot.page import PageStep, PageTable, make_page
from jaxpp.schedules.plot.scene import Scene, amount


def report_page(reports: Sequence[Report], memory: bool = True) -> bytes:
    """Returns the page of simulated runs, one below the other, on one scale of time, with or without memory curves."""
    units = list(dict.fromkeys(report.costs.unit for report in reports))
    steps = [replace(step, memory=step.memory if memory else None) for step in map(simulated_step, reports)]
    tables: list[PageTable] = []
    for step, report in zip(steps, reports, strict=True):
        tables += step_tables(step, report.costs.unit, report.schedule.name if len(reports) > 1 else "")
    title = reports[0].schedule.name if len(reports) == 1 else "schedules"
    facts: list[tuple[str, str]] = []
    if len(steps) == 1:
        facts = step_facts(steps[0], units[0])
        if steps[0].memory:
            facts.insert(2, ("memory, at most", _most(steps[0].memory)))
    return make_page(title, steps, " or ".join(units), facts=facts, tables=tables)


def _most(memory: Memory) -> str:
    """Returns the most memory that a mesh has in use, with its unit."""
    most = max((peak for _, amounts in memory.curves for peak in amounts), default=0.0)
    return amount(most, memory) if memory.unit == "bytes" else counted(float(amount(most, memory)), "microbatch", "es")


def simulated_step(report: Report, title: str = "", start: float = 0.0) -> PageStep:
    """Returns a simulated run as a step of a page."""
    meshes = report.schedule.meshes
    in_bytes = report.memory.unit == "bytes"
    what = "bytes of activations, on all devices of a mesh" if in_bytes else "activations, in microbatches"
    return PageStep(title or Scene(report).title, report.spans, meshes, report.memory, memory_title=what, start=start)


def trace_page(trace: ReadTrace, name: str) -> bytes:
    """Returns the page of a trace that was read."""
    meshes = len(trace.memory.curves)
    title = (
        "bytes of the values that the step makes" if trace.memory.unit == "bytes" else "activations, in microbatches"
    )
    step = PageStep(name, trace.spans, meshes, trace.memory, memory_title=title)
    return make_page(name, [step], "ms", facts=step_facts(step, "ms"), tables=step_tables(step, "ms"))


def step_facts(step: PageStep, unit: str) -> list[tuple[str, str]]:
    """Returns the length of a step, its share of idle time, and what its critical path consists of."""
    makespan = step.makespan
    busy = sum(step.spans[each].end - step.spans[each].start for row in step.rows for each in row)
    on_path: Counter[str] = Counter()
    for kind, time in parts(step.spans, step.path):
        on_path[kind] += time  # pyright: ignore[reportArgumentType] # Counter is typed for whole numbers
    shares = [f"{kind.replace('_', ' ')} {time / makespan:.0%}" for kind, time in on_path.most_common(4) if makespan]
    return [
        ("a step", f"{makespan:.4g} {unit}"),
        ("idle, on average", f"{1 - busy / (makespan * step.meshes):.1%}" if makespan else "0 %"),
        ("critical path", ", ".join(shares) or "empty"),
    ]


def step_tables(step: PageStep, unit: str, of: str = "") -> list[PageTable]:
    """Returns the tables of a step: why each mesh is idle, and the bytes between each pair of meshes."""
    suffix = f" of {of}" if of else ""
    return [_idle(step, unit, suffix), _hops(step, unit, suffix)]


def _idle(step: PageStep, unit: str, suffix: str) -> PageTable:
    idle = {(mesh, cause): 0.0 for mesh in range(step.meshes) for cause in CAUSES}
    for each in step.bubbles:
        idle[each.mesh, each.cause] += each.length
    causes = [cause for cause in CAUSES if any(idle[mesh, cause] for mesh in range(step.meshes))]
    makespan = step.makespan
    rows: list[list[str]] = []
    for mesh, row in enumerate(step.rows):
        busy = sum(step.spans[each].end - step.spans[each].start for each in row)
        times = [busy, *(idle[mesh, cause] for cause in causes)]
        rows.append([str(mesh), *(f"{time:.4g}" for time in times), f"{1 - busy / makespan:.1%}" if makespan else "-"])
    names = {"task": "task of another mesh", "transfer": "transfer", "host": "host", "weights": "weights", "end": "end"}
    return PageTable(
        f"Idle times{suffix}",
        ["mesh", "busy", *(names[cause] for cause in causes), "idle"],
        rows if causes else [],
        f"Times in {unit}, by what the mesh waits for; after its last task it waits for the end of the step.",
    )


def _hops(step: PageStep, unit: str, suffix: str) -> PageTable:
    hops = hops_of(step.spans)
    in_bytes = any(hop.bytes for hop in hops)
    rows = [
        [
            f"{hop.source} → {hop.target}",
            str(hop.transfers),
            *([amount(hop.bytes, Memory("bytes", []))] if in_bytes else []),
            f"{hop.longest:.4g} {unit}",
        ]
        for hop in hops
    ]
    columns = ["meshes", "transfers", *(["bytes"] if in_bytes else []), "longest"]
    return PageTable(f"Transfers{suffix}", columns, rows, "Of one step, all devices of a mesh together.")
