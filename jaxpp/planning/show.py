"""Shows plans as tables and as HTML pages."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

from jaxpp import schedules
from jaxpp.planning.numbers import Numbers
from jaxpp.runtime.measuring.units import bytes_text, bytes_texts, flops_text, table, time_text
from jaxpp.schedules.plot.page import PageStep, PageTable, make_page
from jaxpp.schedules.plot.pages import simulated_step

_MOST = 12
"""The most programs in a table in plain text."""

_SHORT = 1e-3
"""The share of the step below which a program has no row, unless all programs are below it."""


def as_text(plan: Numbers) -> str:
    """Returns the tables in plain text, with the programs that take most of the step."""
    lines = [title(plan), *_step_lines(plan)]
    for each in (_meshes(plan), _programs(plan, _MOST), _hops(plan)):
        if each.rows:
            lines += ["", f"{each.title}:", *table(each.columns, each.rows), each.note]
    return "\n".join(lines)


def as_page(plan: Numbers) -> bytes:
    """Returns the tables as an HTML page, with a timeline of the microbatch loop."""
    schedule = PageTable("Schedule", ["grid"], [[line] for line in plan.schedule.splitlines()], "")
    tables = [_meshes(plan), _programs(plan, len(plan.programs)), _hops(plan), schedule]
    notes = [*_step_lines(plan), f"Facts: {'; '.join(plan.facts.sources)}."]
    return make_page(title(plan), _timeline(plan), plan.costs().unit, notes=notes, tables=tables)


def _timeline(plan: Numbers) -> list[PageStep]:
    """Returns the simulated loop; empty if the plan has no schedule, as for a read module."""
    if not plan.schedule:
        return []
    schedule, costs = schedules.parse(plan.schedule), plan.costs()
    devices = [plan.meshes[schedule.placement[stage]].devices for stage in range(schedule.stages)]
    kept = [size / count for size, count in zip(costs.bytes("activation_bytes", schedule), devices, strict=True)]
    report = schedules.simulate(schedule, dataclasses.replace(costs, activation_bytes=kept))
    note = "The loop over microbatches alone."
    return [dataclasses.replace(simulated_step(report), note=note, memory_title="bytes of activations on each device")]


def title(plan: Numbers) -> str:
    """Returns one line: `train_step on v5p:4x4x4: 48 stages on 8 meshes, 64 devices, 64 microbatches`."""
    stages = 1 + max((stage for mesh in plan.meshes for stage in mesh.stages), default=-1)
    return (
        f"{plan.name} on {plan.target}: {stages} stages on {len(plan.meshes)} meshes, {plan.devices} devices, "
        f"{plan.microbatches} microbatches ({plan.compilers})"
    )


def _step_lines(plan: Numbers) -> list[str]:
    memory, peak = plan.facts.memory_bytes, max(plan.peak_bytes)
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    return [
        f"a step: {time_text(plan.step_seconds)}, {plan.bubble:.0%} of it idle; {flops_text(plan.model_flops)} of the "
        f"model, {plan.utilisation:.1%} of the peak",
        f"memory: {bytes_text(peak)} of {bytes_text(memory)}: {verdict}",
        *([] if plan.fits else _what_would_fit(plan)),
    ]


def _what_would_fit(plan: Numbers) -> list[str]:
    """Splits the largest peak into its parts, and suggests how to reduce the largest of them."""
    memory = plan.facts.memory_bytes
    number, mesh = max(enumerate(plan.meshes), key=lambda each: each[1].peak_bytes)
    parts = {"arguments": mesh.argument_bytes, "kept": mesh.kept_bytes, "temporaries": mesh.temp_bytes}
    arguments, kept, temporaries = bytes_texts(list(parts.values()))
    limit = f"{memory >> 20}MiB" if memory >> 20 else f"{memory}B"
    fixed = mesh.argument_bytes + mesh.temp_bytes
    lines = [
        f"mesh {number} needs most: {arguments} for arguments, {kept} for residuals and gradients within a step, "
        f"{temporaries} for temporaries of one program"
    ]
    if fixed < memory:
        lines.append(
            f'to try: memory_limit="{limit}" (--memory-limit {limit}), which recomputes or offloads residuals until '
            "the step fits, or says what the least is"
        )
    else:
        factor = -(-fixed // memory)
        lines.append(
            f"no recompute is enough: arguments and temporaries alone are {bytes_text(fixed)}; shard parameters and "
            f"optimizer state at least {factor} times as finely: over a data axis (FSDP, gather_weights=), an axis "
            "for tensor parallelism, or over more meshes"
        )
    if max(parts, key=lambda name: parts[name]) == "temporaries":
        lines.append("temporaries are the largest part: take smaller microbatches, or checkpoint within a stage")
    return lines


def _meshes(plan: Numbers) -> PageTable:
    sizes = [
        (mesh.argument_bytes, mesh.temp_bytes, mesh.peak_bytes, mesh.host_bytes, mesh.sent_bytes // mesh.devices)
        for mesh in plan.meshes
    ]
    rows = [
        (
            str(number),
            _ranges(mesh.stages),
            f"{mesh.devices} on {mesh.hosts}",
            *texts,
            flops_text(mesh.products),
            time_text(mesh.busy_seconds),
        )
        for number, (mesh, texts) in enumerate(zip(plan.meshes, _alike(sizes), strict=True))
    ]
    bytes_of = ("arguments", "temporaries", "peak", "host", "sends")
    columns = ("mesh", "stages", "devices on hosts", *bytes_of, "FLOPs", "busy")
    return PageTable(
        "meshes", columns, rows, "Bytes of each device, with what the compiler needs; FLOPs of all devices of a mesh."
    )


def _programs(plan: Numbers, most: int) -> PageTable:
    long = [each for each in plan.programs if each.calls * each.seconds >= _SHORT * plan.step_seconds]
    shown = (long or plan.programs)[:most]
    sizes = [(each.argument_bytes, each.output_bytes, each.alias_bytes, each.temp_bytes) for each in shown]
    rows = [
        (
            each.name,
            _ranges(each.stages),
            str(each.calls),
            time_text(each.seconds),
            each.timed_by,
            flops_text(each.products),
            *texts,
        )
        for each, texts in zip(shown, _alike(sizes), strict=True)
    ]
    columns = ("program", "stages", "calls", "time", "by", "FLOPs", "arguments", "results", "aliased", "temporaries")
    left = len(plan.programs) - len(rows)
    more = f" {left} more take the least of a step." if left else ""
    what = "Bytes by the compiler, of each device; FLOPs of all devices, once where several do the same."
    return PageTable("programs", columns, rows, what + more)


def _hops(plan: Numbers) -> PageTable:
    sizes = [(each.bytes // plan.meshes[each.source].devices,) for each in plan.hops]
    rows = [
        (f"{each.source} -> {each.target}", str(each.messages), *texts, time_text(each.seconds))
        for each, texts in zip(plan.hops, _alike(sizes), strict=True)
    ]
    return PageTable(
        "messages", ("hop", "messages", "bytes", "longest"), rows, "Of one step; bytes that each device sends."
    )


def _alike(rows: Sequence[Sequence[int]]) -> list[list[str]]:
    """Formats all byte counts of a table in the unit of the largest one."""
    texts = iter(bytes_texts([count for row in rows for count in row]))
    return [[next(texts) for _ in row] for row in rows]


def _ranges(numbers: Sequence[int]) -> str:
    """Returns numbers in a short form; a regular sequence becomes `0, 8, ..., 40`."""
    if not numbers:
        return "-"
    steps = {b - a for a, b in pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1:
        return f"{numbers[0]}, {numbers[1]}, ..., {numbers[-1]}"
    return ", ".join(map(str, numbers)) if len(numbers) <= 6 else f"{numbers[0]}, {numbers[1]}, ... ({len(numbers)})"
