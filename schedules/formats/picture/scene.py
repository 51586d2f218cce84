"""The content of a picture, which chart and page draw: boxes, colours and words.

Times are those of the report. A mesh has a row, in which 0 is the bottom and 1 the top.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxpp.schedules.errors import counted
from jaxpp.schedules.formats.chrome_trace import Memory
from jaxpp.schedules.graph import Graph
from jaxpp.schedules.report import Report
from jaxpp.schedules.task import Task

BUBBLE: Final = "#e9e9e9"
FRAME: Final = "#222222"
MEMORY_LINE: Final = "#4a5a6c"
_MEMORY: Final = ("#e4eaf1", "#c9d5e2", "#adbfd2", "#91a9c2", "#7693b2")
"""For little memory up to the highest peak."""

# The colours of forward and backward tasks differ for the colour-blind too, in all of their shades.
_COLOURS: Final = {
    "forward": "#0072b2",
    "backward": "#d55e00",
    "input_grad": "#d9b600",
    "weight_grad": "#009e73",
    "offload": "#cc79a7",
    "reload": "#8c4a9e",
    "recompute": "#aa3377",
}
_OTHERS: Final = ("#44546a", "#8c564b", "#56b4e9", "#999933", "#ee6677")
_SHADES: Final = (0.0, 0.36, 0.18, 0.5)
"""How much white each microbatch gets, in turn: the next one differs most."""

GAP: Final = 0.12
"""Between two rows, as a share of a row."""

_STRIP: Final = 0.22
"""The part of a row for what runs beside the mesh's own tasks, where there is any."""


class Box(NamedTuple):
    """Shows a task: where and when it ran, what it waited for last, and on which track ("" is the mesh itself)."""

    task: Task
    mesh: int
    start: float
    end: float
    bottom: float
    top: float
    waited: str
    track: str


class Frame(NamedTuple):
    """Encloses the boxes of fused tasks, of tasks without a bubble between them, or of a whole row."""

    mesh: int
    start: float
    end: float
    bottom: float
    top: float = 1.0


class Level(NamedTuple):
    """Says how much memory a mesh keeps from one time to another."""

    mesh: int
    start: float
    end: float
    amount: float


@dataclass(frozen=True)
class Scene:
    """The shapes, colours and words that show a report."""

    report: Report

    @cached_property
    def boxes(self) -> list[Box]:
        """The boxes of all tasks, mesh by mesh."""
        graph, run, tracks = self.report.schedule.graph, self.report.run, self._tracks
        found: list[Box] = []
        for mesh, row in enumerate(graph.rows):
            for head, waited in _waits(self.report, row):
                track = track_of(graph, head)
                height = _STRIP / len(tracks) if track else 1 - self.ground
                top = (1 + tracks.index(track)) * height if track else 1.0
                # Tasks that are fused lie one above the other: they run at the same time.
                height /= graph.spans[head]
                for number in range(head, head + graph.spans[head]):
                    times = run.starts[number], run.ends[number]
                    found.append(Box(graph.tasks[number], mesh, *times, top - height, top, waited, track))
                    top -= height
        return found

    @property
    def rows(self) -> list[Frame]:
        """The frame of each mesh's whole row: what no task covers is a bubble."""
        return [Frame(mesh, 0.0, self.report.makespan, self.ground) for mesh in range(self.report.schedule.meshes)]

    @cached_property
    def frames(self) -> list[Frame]:
        """The frame of each fused group."""
        graph, run = self.report.schedule.graph, self.report.run
        return [
            Frame(mesh, run.starts[number], run.ends[number], self.ground)
            for mesh, row in enumerate(graph.rows)
            for number in row
            if graph.spans[number] > 1
        ]

    @cached_property
    def runs(self) -> list[tuple[Frame, str]]:
        """The spans in which a mesh never waits, in the mean colour of their tasks.

        They lie below tasks as narrow as a pixel or two, where the grey of bubbles would show through the edges.
        """
        runs: list[list[Box]] = []
        mesh, end = -1, 0.0
        for box in self.boxes:
            if box.track:
                continue
            if box.mesh != mesh or box.start > end + 1e-9 * self.report.makespan:
                runs.append([])
                mesh, end = box.mesh, 0.0
            runs[-1].append(box)
            end = max(end, box.end)
        ends = (max(box.end for box in run) for run in runs)
        frames = [Frame(run[0].mesh, run[0].start, end, self.ground) for run, end in zip(runs, ends, strict=True)]
        return list(zip(frames, map(self._from_a_distance, runs), strict=True))

    def _from_a_distance(self, boxes: Sequence[Box]) -> str:
        """Return the mean colour of these boxes."""
        areas = [(box.end - box.start) * (box.top - box.bottom) for box in boxes]
        colours = [_channels(self.plain_colour(box)) for box in boxes]
        channels = zip(*colours, strict=True)
        return _colour(sum(map(operator.mul, areas, each)) / sum(areas) for each in channels)

    @property
    def ground(self) -> float:
        """The height at which the mesh's own tasks begin: above the strip of the other tracks, if there are any."""
        return _STRIP if self._tracks else 0.0

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The colour of each kind of task that the schedule has."""
        names = [*_COLOURS, *(kind for kind in self.report.schedule.graph.numbers if kind not in _COLOURS)]
        extra = iter(_OTHERS * len(names))
        colours = {name: _COLOURS.get(name) or next(extra) for name in names}
        return {name: colours[name] for name in names if name in self.report.schedule.graph.numbers}

    def colour(self, box: Box) -> str:
        """Return the colour of a task: that of its kind, in the shade of its microbatch."""
        return self.shades[box.task.kind][box.task.microbatch % len(_SHADES)]

    def plain_colour(self, box: Box) -> str:
        """Return the colour of a task's kind, for views from a distance: there the shades would blend to a pale one."""
        return self.kinds[box.task.kind]

    @cached_property
    def shades(self) -> dict[str, list[str]]:
        """The shades of each kind's colour, which microbatches take in turn."""
        return {kind: [_lighter(colour, white) for white in _SHADES] for kind, colour in self.kinds.items()}

    @cached_property
    def longest_number(self) -> int:
        """The length of the longest `number_of` a task, in characters."""
        return max(len(number_of(box.task)) for box in self.boxes)

    @cached_property
    def longest_word(self) -> int:
        """The length of the longest text that a task carries (a number, or the name of a stage), in characters."""
        stages = max(len(stage_of(box.task)) for box in self.boxes) if self.has_chunks else 0
        return max(self.longest_number, stages)

    @cached_property
    def has_chunks(self) -> bool:
        """Whether a mesh has several stages, so that a microbatch's number does not tell which task it is."""
        placement = self.report.schedule.placement
        return any(len(placement.stages_of(mesh)) > 1 for mesh in range(placement.meshes))

    @property
    def title(self) -> str:
        """The title: the schedule, its size, and its times."""
        report, schedule = self.report, self.report.schedule
        size = f"{counted(schedule.meshes, 'mesh', 'es')}, {counted(schedule.microbatches, 'microbatch', 'es')}"
        if schedule.stages != schedule.meshes:
            size += f", {counted(schedule.stages, 'stage')}"
        times = f"makespan {report.makespan:.6g} {report.costs.unit}, bubble {100 * report.bubble:.1f} %"
        return f"{schedule.name}: {size}; {times}"

    def caption(self, numbered: bool) -> str:
        """Say what the words on the tasks, if there was room to write any, and the frames around them mean."""
        words = ["numbers: microbatches"] if numbered else []
        if numbered and self.report.schedule.slices > 1:
            words.append("3.1: microbatch 3, slice 1")
        if numbered and self.has_chunks:
            words.append("s3: stage 3")
        if self.frames:
            words.append("framed: one fused task")
        return "; ".join(words)

    @property
    def memory_title(self) -> str:
        """The title of the memory curves."""
        in_bytes = self.report.memory.unit == "bytes"
        what = "bytes of activations" if in_bytes else "activations, in microbatches"
        return f"{what}; peaks at the right"

    @cached_property
    def levels(self) -> list[Level]:
        """The levels of memory of all meshes, mesh by mesh."""
        found: list[Level] = []
        for mesh, (times, amounts) in enumerate(self.report.memory.curves):
            ends = np.append(times[1:], self.report.makespan)
            found += map(Level, repeat(mesh), times.tolist(), ends.tolist(), amounts.tolist())
        return found

    def level_frames(self, levels: Iterable[Level]) -> list[Frame]:
        """The levels as rectangles; the highest peak of all meshes is as high as a row."""
        return [Frame(each.mesh, each.start, each.end, 0.0, each.amount / self.highest) for each in levels]

    def level_colour(self, level: Level) -> str:
        """Return the colour of a level: the more memory, the darker."""
        return _MEMORY[min(int(level.amount / self.highest * len(_MEMORY)), len(_MEMORY) - 1)]

    @cached_property
    def highest(self) -> float:
        """The highest peak of memory on any mesh, which sets the scale of all curves."""
        return max((self.peak(mesh) for mesh in range(self.report.schedule.meshes)), default=0.0) or 1.0

    def peak(self, mesh: int) -> float:
        """Return the highest amount of memory on a mesh."""
        return float(max(self.report.memory.curves[mesh][1], default=0.0))

    def amount(self, value: float) -> str:
        """Return an amount of memory in words."""
        return amount(value, self.report.memory)

    @cached_property
    def _tracks(self) -> list[str]:
        """The other tracks than the meshes' own, on which copies run."""
        graph = self.report.schedule.graph
        return sorted({track_of(graph, number) for number in graph.asides})


def track_of(graph: Graph, number: int) -> str:
    """Return what a task uses that runs beside its mesh; "" for those that take the turn of it."""
    return " ".join(graph.tracks[number]) if number in graph.asides else ""


def from_top(mesh: float, height: float) -> float:
    """Map a height in the row of a mesh to an axis that counts rows from the top, with a gap below each."""
    return mesh + (1 - GAP) * (1 - height)


def corners(shapes: Iterable[Box | Frame]) -> NDArray[np.float64]:
    """Return the left, right, top and bottom sides of rectangles, as rows of an array, on the axes of `from_top`."""
    sides = [(each.start, each.end, from_top(each.mesh, each.top), from_top(each.mesh, each.bottom)) for each in shapes]
    return np.array(sides).reshape(-1, 4).T


def number_of(task: Task) -> str:
    """Return the microbatch and slice of a task in words: `3`, or `3.1`."""
    return f"{task.microbatch}.{task.slice}" if task.slice else str(task.microbatch)


def stage_of(task: Task) -> str:
    """Return the name of the stage of a task."""
    return f"s{task.stage}"


def text_colour(ground: str) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    red, green, blue = ((channel / 255) ** 2.2 for channel in _channels(ground))
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "#ffffff"


def amount(value: float, memory: Memory) -> str:
    """Return an amount of memory in words: `3.5`, or `1.2 GB`."""
    if memory.unit != "bytes":
        return f"{value:.4g}"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _waits(report: Report, row: range) -> Iterator[tuple[int, str]]:
    """Yield the first task of each cell of a mesh, and what it waited for last."""
    graph, run = report.schedule.graph, report.run
    ends = [*run.ends, *run.received]
    before: dict[str, int] = {}
    for head in row:
        if not graph.spans[head]:
            continue
        track = track_of(graph, head)
        mine = [before[name] for name in dict.fromkeys(("", track)) if name in before]
        reasons = [(ends[number], f"{graph.tasks[number]} before it") for number in mine]
        reasons += [(ends[slot], _source(graph, slot)) for slot in graph.waits[head]]
        end, reason = max(reasons, key=lambda each: each[0], default=(0.0, "nothing"))
        yield head, reason if run.starts[head] <= end else "the other meshes of its stage"
        before[track] = head


def _source(graph: Graph, slot: int) -> str:
    """Say in words what a cell waits for: a task of its own mesh, or a value that arrives from another."""
    tasks = graph.tasks
    if slot < len(tasks):
        return str(tasks[slot])
    number, _ = graph.transfers[slot - len(tasks)]
    home = next(mesh for mesh, row in enumerate(graph.rows) if number in row)
    return f"{tasks[number]} of mesh {home}"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _lighter(colour: str, white: float) -> str:
    return _colour(each + (255 - each) * white for each in _channels(colour))


def _colour(channels: Iterable[float]) -> str:
    red, green, blue = map(round, channels)
    return f"#{red:02x}{green:02x}{blue:02x}"
