"""The content of a picture, which `chart` draws: boxes, colours and words.

Times are in the unit of the report's costs. Each mesh has a row, in which height 0 is the bottom and 1 the top.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from jaxpp.schedules.engine.chrome_trace import Memory
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.errors import counted
from jaxpp.schedules.model.graph import Graph
from jaxpp.schedules.model.task import Task
from jaxpp.schedules.plot.colours import colours_of

BUBBLE: Final = "#e9e9e9"
FRAME: Final = "#222222"
MEMORY_LINE: Final = "#4a5a6c"
_MEMORY: Final = ("#e4eaf1", "#c9d5e2", "#adbfd2", "#91a9c2", "#7693b2")
"""Colours of memory levels, from little memory to the highest peak."""

_SHADES: Final = (0.0, 0.36, 0.18, 0.5)
"""The share of white in the colour of each microbatch, in turn; adjacent microbatches differ clearly."""

GAP: Final = 0.12
"""The gap between two rows, as a share of a row."""

_STRIP: Final = 0.22
"""The share of a row for tasks that run beside the mesh's own tasks, such as copies, if the schedule has any."""


class Box(NamedTuple):
    """A rectangle that shows one task, from its start to its end.

    `bottom` and `top` are heights in the row of the mesh. `track` is the result of `track_of`: "" for one of the mesh's
    own tasks.
    """

    task: Task
    mesh: int
    start: float
    end: float
    bottom: float
    top: float
    track: str


class Frame(NamedTuple):
    """A rectangle around fused tasks, tasks without a bubble between them, or a whole row; or a memory level."""

    mesh: int
    start: float
    end: float
    bottom: float
    top: float = 1.0


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
            for head in row:
                if not graph.spans[head]:
                    continue
                track = track_of(graph, head)
                height = _STRIP / len(tracks) if track else 1 - self.ground
                top = (1 + tracks.index(track)) * height if track else 1.0
                # Fused tasks run at the same time, so their boxes lie one above the other.
                height /= graph.spans[head]
                for number in range(head, head + graph.spans[head]):
                    times = run.starts[number], run.ends[number]
                    found.append(Box(graph.tasks[number], mesh, *times, top - height, top, track))
                    top -= height
        return found

    @cached_property
    def lengths(self) -> list[float]:
        """The times of all tasks that take time; a copy may take none."""
        return [box.end - box.start for box in self.boxes if box.end > box.start]

    @property
    def rows(self) -> list[Frame]:
        """The frame of each mesh's whole row; an interval that no task covers is a bubble."""
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
        """The intervals in which a mesh is never idle, each with the mean colour of its tasks.

        These frames lie below the tasks. Without them, the grey of bubbles would show through the edges of tasks that
        are only a pixel or two wide.
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
        """Returns the mean of the plain colours of boxes, weighted by area."""
        areas = [(box.end - box.start) * (box.top - box.bottom) for box in boxes]
        colours = [_channels(self.plain_colour(box)) for box in boxes]
        channels = zip(*colours, strict=True)
        return _colour(sum(map(operator.mul, areas, each)) / sum(areas) for each in channels)

    @property
    def ground(self) -> float:
        """The lower edge of a mesh's own tasks: the top of the strip of the other tracks, or 0 without such tracks."""
        return _STRIP if self._tracks else 0.0

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The colour of each kind of task that the schedule has."""
        return colours_of(self.report.schedule.graph.numbers)

    def colour(self, box: Box) -> str:
        """Returns the colour of the task's kind, in the shade of its microbatch."""
        return self.shades[box.task.kind][box.task.microbatch % len(_SHADES)]

    def plain_colour(self, box: Box) -> str:
        """Returns the colour of the task's kind without shades, which would blend to a pale colour on narrow tasks."""
        return self.kinds[box.task.kind]

    @cached_property
    def shades(self) -> dict[str, list[str]]:
        """The shades of each kind's colour; successive microbatches take them in turn."""
        return {kind: [_lighter(colour, white) for white in _SHADES] for kind, colour in self.kinds.items()}

    @cached_property
    def longest_number(self) -> int:
        """The length of the longest `number_of` a task, in characters."""
        return max(len(number_of(box.task)) for box in self.boxes)

    @cached_property
    def longest_word(self) -> int:
        """The length, in characters, of the longest number or stage name that a task shows."""
        stages = max(len(stage_of(box.task)) for box in self.boxes) if self.has_chunks else 0
        return max(self.longest_number, stages)

    @cached_property
    def has_chunks(self) -> bool:
        """Whether some mesh has several stages, so that the microbatch alone does not identify a task."""
        placement = self.report.schedule.placement
        return any(len(placement.stages_of(mesh)) > 1 for mesh in range(placement.meshes))

    @property
    def title(self) -> str:
        """The title: the name of the schedule, its size, its makespan and its bubble."""
        report, schedule = self.report, self.report.schedule
        size = f"{counted(schedule.meshes, 'mesh', 'es')}, {counted(schedule.microbatches, 'microbatch', 'es')}"
        if schedule.stages != schedule.meshes:
            size += f", {counted(schedule.stages, 'stage')}"
        times = f"makespan {report.makespan:.6g} {report.costs.unit}, bubble {100 * report.bubble:.1f} %"
        return f"{schedule.name}: {size}; {times}"

    def caption(self, numbered: bool) -> str:
        """Returns the explanation of frames and, if `numbered`, of the words on tasks."""
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
    def levels(self) -> list[Frame]:
        """The levels of memory of all meshes, mesh by mesh; the highest peak of all meshes is as high as a row."""
        return [
            Frame(mesh, start, end, 0.0, amount / self.highest)
            for mesh, (times, amounts) in enumerate(self.report.memory.curves)
            for start, end, amount in zip(times, [*times[1:], self.report.makespan], amounts, strict=False)
        ]

    @cached_property
    def highest(self) -> float:
        """The highest peak of memory on any mesh, or 1 if no mesh uses memory; it sets the scale of all curves."""
        return max((self.peak(mesh) for mesh in range(self.report.schedule.meshes)), default=0.0) or 1.0

    def peak(self, mesh: int) -> float:
        """Returns the highest amount of memory on a mesh."""
        return max(self.report.memory.curves[mesh][1], default=0.0)

    @cached_property
    def _tracks(self) -> list[str]:
        """The tracks of tasks that run beside their mesh, such as copies, sorted by name."""
        graph = self.report.schedule.graph
        return sorted({track_of(graph, number) for number in graph.asides})


def track_of(graph: Graph, number: int) -> str:
    """Returns the resources that a task beside its mesh uses, by name; "" for a task that takes the mesh's turn."""
    return " ".join(graph.tracks[number]) if number in graph.asides else ""


def level_colour(level: Frame) -> str:
    """Returns the colour of a level of memory; more memory has a darker colour."""
    return _MEMORY[min(int(level.top * len(_MEMORY)), len(_MEMORY) - 1)]


def from_top(mesh: float, height: float) -> float:
    """Maps a height in the row of a mesh to an axis that counts rows from the top, with a gap below each row."""
    return mesh + (1 - GAP) * (1 - height)


def number_of(task: Task) -> str:
    """Returns the microbatch of a task as `3`, or with a slice other than 0 as `3.1`."""
    return f"{task.microbatch}.{task.slice}" if task.slice else str(task.microbatch)


def stage_of(task: Task) -> str:
    """Returns the name of the stage of a task, such as `s3`."""
    return f"s{task.stage}"


def text_colour(ground: str) -> str:
    """Returns black or white, whichever is easier to read on the colour `ground`."""
    red, green, blue = ((channel / 255) ** 2.2 for channel in _channels(ground))
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "#ffffff"


def amount(value: float, memory: Memory) -> str:
    """Returns an amount of memory in words: `3.5` in microbatches, or `1.2 GB` in bytes."""
    if memory.unit != "bytes":
        return f"{value:.4g}"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _lighter(colour: str, white: float) -> str:
    return _colour(each + (255 - each) * white for each in _channels(colour))


def _colour(channels: Iterable[float]) -> str:
    red, green, blue = map(round, channels)
    return f"#{red:02x}{green:02x}{blue:02x}"
