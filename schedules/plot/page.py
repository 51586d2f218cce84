"""A page of one file that shows steps: HTML with data as compressed JSON, which `SCRIPTS` draw on canvases.

The page needs no network. It has the tasks and the memory of one or several steps on one axis of time, simulated or
measured, tables, and texts of functions. The data are columns of whole numbers: a time is a multiple of `quantum`.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jaxpp._system import collector_paused
from jaxpp.schedules.engine.chrome_trace import Memory
from jaxpp.schedules.engine.spans import (
    CAUSES,
    COMPUTE,
    Bubble,
    Span,
    bubbles_of,
    critical_path,
    makespan_of,
    own_spans,
)
from jaxpp.schedules.plot.colours import colours_of

_STEPS: Final = 1_000_000
"""The number of quanta of time in the longest step: more than a screen can show at any zoom."""

SCRIPTS: Final = ("drawing.js", "pointer.js", "page.js")
"""The files of a page's script, in the order in which a browser runs them."""

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style></head>
<body><main id="page"></main><div id="tip" hidden></div><aside id="detail" hidden></aside>
<script type="application/octet-stream" id="data">{data}</script>
<script>
{script}</script></body></html>
"""


class PageTable(NamedTuple):
    """A table, with a note that explains its columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str


@dataclass(frozen=True)
class PageStep:
    """A simulated or measured step on a page.

    Attributes:
        title: the title.
        spans: its tasks and transfers.
        meshes: the number of its meshes.
        memory: the memory of each mesh over time, if it is known.
        note: a sentence about the step.
        memory_title: the title of the memory curves.
        limits: the limit of each mesh, in the unit of `memory`; None for a mesh without one.
        start: the start of the step on the axis of the page.
    """

    title: str
    spans: Sequence[Span]
    meshes: int
    memory: Memory | None = None
    note: str = ""
    memory_title: str = ""
    limits: Sequence[float | None] | None = None
    start: float = 0.0

    @cached_property
    def end(self) -> float:
        """The end of the last task or transfer."""
        return max((span.end for span in self.spans), default=0.0)

    @cached_property
    def makespan(self) -> float:
        """The end of the last task."""
        return makespan_of(self.spans)

    @cached_property
    def rows(self) -> list[list[int]]:
        """The indices of the own tasks of each mesh."""
        return own_spans(self.spans, self.meshes)

    @cached_property
    def bubbles(self) -> list[Bubble]:
        """The idle times of all meshes."""
        return bubbles_of(self.spans, self.meshes)

    @cached_property
    def path(self) -> list[int]:
        """The indices of the spans of a critical path."""
        return critical_path(self.spans)


def make_page(
    title: str,
    steps: Sequence[PageStep],
    unit: str,
    *,
    notes: Sequence[str] = (),
    facts: Sequence[tuple[str, str]] = (),
    tables: Iterable[PageTable] = (),
    texts: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Returns the page as UTF-8.

    Args:
        title: the title of the page.
        steps: the steps, one below the other.
        unit: the unit of all times.
        notes: paragraphs below the title.
        facts: the most important numbers, as (name, value).
        tables: the tables at the end of the page; those without rows are left out.
        texts: the text of each function, which the page shows for a task that calls it.
    """
    quantum = max((step.start + step.end for step in steps), default=0.0) / _STEPS or 1.0
    kinds = {label.kind for step in steps for span in step.spans if span.target is None for label in span.labels}
    with collector_paused():
        data = {
            "title": title,
            "notes": notes,
            "facts": facts,
            "unit": unit,
            "quantum": quantum,
            "kinds": colours_of(kinds),
            "causes": [*CAUSES],
            "waits": CAUSES,
            "steps": [_step(step, quantum) for step in steps],
            "tables": [table._asdict() for table in tables if table.rows],
            "texts": dict(texts),
        }
        packed = gzip.compress(json.dumps(data, separators=(",", ":"), allow_nan=False).encode(), 6, mtime=0)
    folder = Path(__file__).parent
    style, *scripts = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", *SCRIPTS))
    text = base64.b64encode(packed).decode()
    return _PAGE.format(title=html.escape(title), style=style, script="\n".join(scripts), data=text).encode()


def _step(step: PageStep, quantum: float) -> dict[str, Any]:
    """Returns the data of a step."""
    spans, place = _in_order(step.spans)
    tracks = [COMPUTE, *sorted({span.track for span in spans if span.target is None} - {COMPUTE})]
    functions = list(dict.fromkeys(span.function for span in spans))
    shapes: dict[tuple[Any, ...], int] = {}
    bases = [_base(span) for span in spans]
    start, end = ([round(each / quantum) for each in times] for times in _times(spans))
    of_track, of_function = ({name: number for number, name in enumerate(names)} for names in (tracks, functions))
    bubbles = step.bubbles
    found = {
        "title": step.title,
        "note": step.note,
        "meshes": step.meshes,
        "start": round(step.start / quantum),
        "end": round(step.makespan / quantum),
        "chunks": _has_chunks(spans),
        "tracks": tracks,
        "functions": functions,
        "spans": {
            "mesh": [span.mesh for span in spans],
            "target": [-1 if span.target is None else span.target for span in spans],
            "track": [of_track.get(span.track, 0) for span in spans],
            "function": [of_function[span.function] for span in spans],
            "microbatch": bases,
            "shape": [
                shapes.setdefault(_shape(span, base), len(shapes)) for span, base in zip(spans, bases, strict=True)
            ],
            "start": _differences(start),
            "length": list(map(operator.sub, end, start)),
            "after": [-1 if span.after is None else place[span.after] for span in spans],
            "bytes": [_whole(span.bytes) for span in spans],
        },
        "path": [place[number] for number in step.path],
        "bubbles": {
            "mesh": [each.mesh for each in bubbles],
            "start": [round(each.start / quantum) for each in bubbles],
            "length": [round(each.length / quantum) for each in bubbles],
            "cause": [list(CAUSES).index(each.cause) for each in bubbles],
            "after": [-1 if each.after is None else place[each.after] for each in bubbles],
        },
    }
    return found | {"shapes": [*shapes], "memory": step.memory and _memory(step, step.memory, quantum)}


def _in_order(spans: Sequence[Span]) -> tuple[list[Span], dict[int, int]]:
    """Returns the spans by mesh and start, and the new index of each; equal numbers in a row compress well."""
    order = sorted(range(len(spans)), key=lambda each: (spans[each].mesh, spans[each].start, each))
    return [spans[number] for number in order], {number: place for place, number in enumerate(order)}


def _times(spans: Sequence[Span]) -> tuple[list[float], list[float]]:
    return [span.start for span in spans], [span.end for span in spans]


def _base(span: Span) -> int:
    """Returns the first microbatch of a span; 0 if it has none."""
    return next((label.microbatch for label in span.labels if label.microbatch is not None), 0)


def _shape(span: Span, base: int) -> tuple[tuple[str, int | None, int | None, int], ...]:
    """Returns the names of the tasks of a span, with microbatches relative to the first; most spans share a few."""
    return tuple(
        [
            (label.kind, label.stage, None if label.microbatch is None else label.microbatch - base, label.slice)
            for label in span.labels
        ]
    )


def _has_chunks(spans: Iterable[Span]) -> bool:
    """Whether a mesh has several stages, so that the microbatch alone does not name a task."""
    pairs = {(span.mesh, label.stage) for span in spans if span.target is None for label in span.labels}
    known = [mesh for mesh, stage in pairs if stage is not None]
    return len(known) > len(set(known))


def _memory(step: PageStep, memory: Memory, quantum: float) -> dict[str, Any]:
    curves = [
        {
            "times": _differences([round(each / quantum) for each in times]),
            "amounts": [_whole(each) for each in _differences(amounts)],
        }
        for times, amounts in memory.curves
    ]
    return {"unit": memory.unit, "title": step.memory_title, "curves": curves, "limits": step.limits}


def _differences(numbers: Iterable[float]) -> list[float]:
    return [after - before for before, after in pairwise([0, *numbers])]


def _whole(value: float) -> float:
    """Returns a whole number as an `int`, which is shorter in JSON; others with few digits."""
    return int(value) if value == int(value) else round(value, 9)
