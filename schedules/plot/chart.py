"""A picture on paper, drawn by matplotlib: SVG or PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from jaxpp.schedules.plot.scene import (
    BUBBLE,
    FRAME,
    GAP,
    MEMORY_LINE,
    Box,
    Frame,
    Scene,
    amount,
    from_top,
    level_colour,
    number_of,
    stage_of,
    text_colour,
)

# Sizes in inches: the margins around and between the two plots. Each triple has the height of all rows together, and
# the least and greatest height of one row.
_LEFT, _RIGHT, _TOP, _BOTTOM, _BETWEEN = 0.6, 0.75, 0.75, 0.5, 0.4
_TASKS: Final = (6.5, 0.2, 0.5)
_CURVES: Final = (4.2, 0.1, 0.28)
POINTS: Final = 72  # points per inch


def chart(scenes: Sequence[Scene], suffix: str, memory: bool) -> bytes:
    """Returns the bytes of a picture of the scenes, one below the other; `suffix` is "svg" or "png"."""
    return saved(lambda: drawn(scenes, memory), suffix)


def saved(draw: Callable[[], Figure], suffix: str) -> bytes:
    """Returns the bytes of the figure that `draw` makes; `suffix` is "svg" or "png"."""
    file = io.BytesIO()
    # SVG keeps text as text. The fixed salt and the missing date make the bytes of the same run equal.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxpp"}):
        draw().savefig(file, format=suffix, dpi=150, metadata={"Date": None} if suffix == "svg" else {})
    data = file.getvalue()
    # Coordinates to a hundredth of a point are precise enough, and halve the size of the file.
    return re.sub(rb"(\d\.\d\d)\d+", rb"\1", data) if suffix == "svg" else data


def drawn(scenes: Sequence[Scene], memory: bool) -> Figure:
    width = min(max(8, *map(_width, scenes)), 20)
    heights = [_TOP + rows + memory * (_BETWEEN + curves) + _BOTTOM for rows, curves in map(_heights, scenes)]
    figure = Figure(figsize=(_LEFT + width + _RIGHT, sum(heights)))
    makespan = max(scene.report.makespan for scene in scenes)
    above = 0.0
    for scene, height in zip(scenes, heights, strict=True):
        _draw(scene, figure, width, makespan, above, memory)
        above += height
    return figure


def _width(scene: Scene) -> float:
    """Returns the width, in inches, at which the longest text fits on all tasks but the shortest 5 %."""
    columns = scene.report.makespan / float(np.quantile(scene.lengths, 0.05))
    return columns * (0.65 * 8 * scene.longest_word + 5) / POINTS


def _heights(scene: Scene) -> tuple[float, float]:
    """Returns the height of all rows of tasks, and the height of all memory curves, in inches."""
    meshes = scene.report.schedule.meshes
    rows, curves = (min(max(inches / meshes, least), most) for inches, least, most in (_TASKS, _CURVES))
    return rows * meshes, curves * meshes


def _draw(scene: Scene, figure: Figure, width: float, makespan: float, above: float, memory: bool) -> None:
    """Draws one scene `above` inches below the top of the figure; `width` inches show a time of `makespan`."""
    meshes = scene.report.schedule.meshes
    total_width, total_height = figure.get_size_inches()
    across, upward = 1 / total_width, 1 / total_height
    rows, curves = _heights(scene)
    top = total_height - above
    left, bottom = _LEFT * across, (top - _TOP - rows) * upward
    tasks = lowest = figure.add_axes((left, bottom, width * across, rows * upward))
    _prepare(tasks, meshes, rows / meshes * POINTS)
    _draw_tasks(scene, tasks, width * POINTS / makespan, rows / meshes * POINTS)
    if memory:
        bottom -= (_BETWEEN + curves) * upward
        lowest = figure.add_axes((left, bottom, width * across, curves * upward), sharex=tasks)
        _prepare(lowest, meshes, curves / meshes * POINTS)
        _draw_memory(scene, lowest, curves / meshes * POINTS)
        tasks.tick_params(labelbottom=False)
    lowest.set_xlabel(f"time in {scene.report.costs.unit}")
    lowest.set_xlim(0, makespan)
    figure.text(left, (top - 0.28) * upward, scene.title, size=11, weight="bold", va="center")
    figure.text(left, bottom - 0.36 * upward, scene.caption(bool(tasks.texts)), size=8, va="center")


def _prepare(axes: Axes, meshes: int, down: float) -> None:
    """Sets up the axes of a plot with one row for each mesh, `down` points high; mesh 0 is at the top."""
    axes.set_ylim(meshes - GAP / 2, -GAP / 2)
    shown = _labelled(meshes, down)
    axes.set_yticks([from_top(mesh, 0.5) for mesh in shown], [str(mesh) for mesh in shown], size=_size(down))
    axes.set_ylabel("mesh", labelpad=6)
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)


def _labelled(meshes: int, down: float) -> range:
    """Returns the meshes that get a label, so that labels do not overlap in rows `down` points high."""
    return range(0, meshes, max(1, round(8 / down + 0.4)))


def _size(down: float) -> float:
    return min(9.0, max(6.0, 0.6 * down))


def _draw_tasks(scene: Scene, axes: Axes, across: float, down: float) -> None:
    """Draws the tasks, bubbles, frames and the legend; `across` is points per unit of time, `down` points per row."""
    # The limits of the axes are known; `add_patch` would compute them again from every corner.
    axes.add_artist(PathPatch(_outlines(scene.rows), facecolor=BUBBLE, linewidth=0))
    apart = across * min(scene.lengths) > 4
    if not apart:
        for frame, colour in scene.runs:
            axes.add_artist(PathPatch(_outlines([frame]), facecolor=colour, linewidth=0))
    shade = scene.colour if apart else scene.plain_colour
    for colour, boxes in groupby(sorted(scene.boxes, key=shade), key=shade):
        edge = {"edgecolor": "white", "linewidth": 0.6} if apart else {"linewidth": 0.0}
        axes.add_artist(PathPatch(_outlines(boxes), facecolor=colour, **edge))
    line = 1.0 if apart else 0.3
    axes.add_artist(PathPatch(_outlines(scene.frames), fill=False, edgecolor=FRAME, linewidth=line))
    for box in scene.boxes:
        _write(scene, axes, box, across * (box.end - box.start), down * (1 - GAP) * (box.top - box.bottom))
    handles = [Patch(facecolor=colour, label=kind.replace("_", " ")) for kind, colour in scene.kinds.items()]
    handles.append(Patch(facecolor=BUBBLE, label="bubble"))
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        frameon=False,
        borderpad=0,
        borderaxespad=0.6,
        fontsize=9,
    )


def _write(scene: Scene, axes: Axes, box: Box, width: float, height: float) -> None:
    """Writes the microbatch on a task if it fits, and the stage if it also fits and some mesh has several stages."""
    number, stage = number_of(box.task), stage_of(box.task) if scene.has_chunks else ""
    # All tasks need the width of the longest number; otherwise some tasks would show only the short numbers.
    longest = "0" * scene.longest_number
    size = 8.0 if _fits(longest, 8.0, width) else 6.0
    if not _fits(longest, size, width) or height < size + 1:
        return
    colour, middle = text_colour(scene.colour(box)), (box.start + box.end) / 2

    def write(words: str, size: float, above: float) -> None:
        at = from_top(box.mesh, box.bottom + above * (box.top - box.bottom))
        axes.text(middle, at, words, size=size, color=colour, ha="center", va="center_baseline", clip_on=True)

    if stage and height > 2 * size + 4 and _fits(stage, 6.0, width):
        write(number, size, 0.64)
        write(stage, 6.0, 0.28)
    elif stage and _fits(f"{number} {stage}", size, width):
        write(f"{number} {stage}", size, 0.5)
    else:
        write(number, size, 0.5)


def _fits(words: str, size: float, width: float) -> bool:
    return 0.65 * size * len(words) + 2 <= width


def _draw_memory(scene: Scene, axes: Axes, down: float) -> None:
    """Draws a memory curve for each mesh, in rows `down` points high, and its peak at the right."""
    makespan, meshes = scene.report.makespan, scene.report.schedule.meshes
    for colour, levels in groupby(sorted(scene.levels, key=level_colour), key=level_colour):
        axes.add_artist(PathPatch(_outlines(levels), facecolor=colour, linewidth=0))
    for mesh, (times, amounts) in enumerate(scene.report.memory.curves):
        base, edges = from_top(mesh, 0.0), np.append(times, makespan)
        top = base - np.array(amounts) * (1 - GAP) / scene.highest
        axes.hlines(base, 0, makespan, color=MEMORY_LINE, linewidth=0.4)
        axes.stairs(top, edges, baseline=None, edgecolor=MEMORY_LINE, linewidth=0.6)
    for mesh in _labelled(meshes, down):
        axes.annotate(
            amount(scene.peak(mesh), scene.report.memory),
            (makespan, from_top(mesh, 0.5)),
            (6, 0),
            textcoords="offset points",
            annotation_clip=False,
            size=_size(down),
            va="center_baseline",
        )
    axes.set_title(scene.memory_title, size=9, loc="left", pad=4)


def _outlines(shapes: Iterable[Box | Frame]) -> Path:
    """Returns many rectangles as one path, so that the picture of a long run has a few shapes, not thousands."""
    sides = [(each.start, each.end, from_top(each.mesh, each.top), from_top(each.mesh, each.bottom)) for each in shapes]
    left, right, top, bottom = np.array(sides).reshape(-1, 4).T
    vertices = np.stack([left, bottom, right, bottom, right, top, left, top], axis=1).reshape(-1, 4, 2)
    return Path.make_compound_path_from_polys(vertices)
