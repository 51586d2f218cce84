"""Reads the traces that `print_chrome_trace` writes."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from jaxpp._system import collector_paused
from jaxpp.schedules.engine.chrome_trace import COUNTERS, Memory
from jaxpp.schedules.engine.spans import Label, Span, named
from jaxpp.schedules.errors import ScheduleError

_Bar: TypeAlias = Mapping[str, Any]

_SLACK: Final = 1e-3
"""Microseconds by which the end of a bar may seem later than the start of the bar that waited for it."""


@dataclass(frozen=True)
class ReadTrace:
    """A trace that was read; times are in milliseconds.

    Attributes:
        spans: the tasks and transfers.
        memory: the memory of each mesh.
    """

    spans: list[Span]
    memory: Memory


def read_chrome_trace(text: str) -> ReadTrace:
    """Reads a trace that jaxpp wrote, of a simulated or a measured step.

    Raises:
        ScheduleError: the text is no such trace.
    """
    try:
        with collector_paused():
            found = json.loads(text)["traceEvents"]
            return ReadTrace(_spans(found), _memory(found))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ScheduleError(
            f"it is no trace of jaxpp ({type(error).__name__}: {error}): expected a file of "
            "jaxpp.runtime.write_chrome_trace, Report.to_chrome_trace or jaxpp-schedule convert --to trace"
        ) from None


def is_trace(text: str) -> bool:
    """Whether the text is a trace in Chrome's format."""
    return text.lstrip().startswith("{") and '"traceEvents"' in text


def _spans(events: Sequence[_Bar]) -> list[Span]:
    tracks = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    bars = [each for each in events if each["ph"] == "X" and "from" not in each["args"]]  # a send has all of a receive
    spans = [
        Span(
            bar["pid"],
            "" if "to" in bar["args"] else tracks[bar["pid"], bar["tid"]],
            _labels(bar),
            bar["ts"] / 1e3,
            (bar["ts"] + bar["dur"]) / 1e3,
            target=bar["args"].get("to"),
            bytes=bar["args"].get("bytes", 0),
            function=bar["args"].get("function", ""),
        )
        for bar in bars
    ]
    return _with_waits(spans, [bar["args"].get("waited for", "") for bar in bars])


def _with_waits(spans: Sequence[Span], waited: Sequence[str]) -> list[Span]:
    """Adds what each span waited for: the last span of that name that ends before it starts."""
    ends: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for number, span in enumerate(spans):
        ends[named(span)].append((span.end, number))
    for each in ends.values():
        each.sort()
    found: list[Span] = []
    for span, name in zip(spans, waited, strict=True):
        same = ends[name] if name else []
        last = bisect_right(same, (span.start + _SLACK, len(spans))) - 1
        found.append(span._replace(after=same[last][1] if last >= 0 else None))
    return found


def _labels(bar: _Bar) -> tuple[Label, ...]:
    args = bar["args"]
    kinds = str(bar["cat"]).split("+")
    columns = [
        _listed(args.get(name, default), len(kinds)) for name, default in (("stage", None), ("microbatch", None))
    ]
    slices = _listed(args.get("slice", 0), len(kinds))
    return tuple([Label(*each) for each in zip(kinds, *columns, slices, strict=True)])


def _listed(value: object, count: int) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value] * count


def _memory(events: Sequence[_Bar]) -> Memory:
    meshes = 1 + max((int(each["pid"]) for each in events), default=-1)
    units = {name: unit for unit, name in COUNTERS.items()}
    counters = [each for each in events if each["ph"] == "C"]
    unit = next((units[each["name"]] for each in counters), "bytes")
    lines: list[tuple[list[float], list[float]]] = [([], []) for _ in range(meshes)]
    for each in counters:
        times, amounts = lines[each["pid"]]
        times.append(each["ts"] / 1e3)
        amounts.append(each["args"][unit])
    return Memory(unit, lines)
