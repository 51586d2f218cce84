"""A picture on a screen, drawn by Bokeh: a page in one file that zooms, pans and describes the task under the mouse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from bokeh.embed import file_html
from bokeh.layouts import gridplot
from bokeh.models import (
    Axis,
    ColumnDataSource,
    CustomJS,
    FixedTicker,
    GlyphRenderer,
    HoverTool,
    Legend,
    LegendItem,
    LinearAxis,
    Range1d,
)
from bokeh.plotting import figure
from bokeh.resources import INLINE

from jaxpp.schedules.formats.picture.scene import (
    BUBBLE,
    FRAME,
    GAP,
    MEMORY_LINE,
    Box,
    Frame,
    Scene,
    corners,
    from_top,
    number_of,
    stage_of,
    text_colour,
)

_TIMES: Final = [("mesh", "@mesh"), ("from", "@left{0.[000]}"), ("to", "@right{0.[000]}")]

_ZOOMED: Final = """
    const scale = plot.inner_width / (time.end - time.start)
    const colour = scale * shortest < 4 ? "plain" : "colour"
    const edges = Number(scale * shortest > 8)
    for (const {glyph} of tasks) {
        if (glyph.fill_color.field != colour) glyph.fill_color = {field: colour}
        if (glyph.line_alpha.value != edges) glyph.line_alpha = {value: edges}
    }
    for (const {data_source: source} of numbers) {
        const alpha = source.data.width.map((width, i) => Number(scale * width > source.data.pixels[i]))
        if (alpha.every((each, i) => each == source.data.alpha[i])) continue
        source.data.alpha = alpha
        source.change.emit()
    }
"""
"""JavaScript that runs when the zoom changes.

A task shows its number while it is wide enough. Tasks have shades while the shortest of the meshes' own
tasks is at least 4 pixels wide, and white edges while that task is wider than 8 pixels.
"""

_HIDDEN: Final = "runs.visible = tasks.every((each) => each.visible)"
"""JavaScript that hides the rectangles of `Scene.runs` while the user hides any kind of task in the legend."""

_PIXELS: Final = 6.5
"""The width of a character, in pixels."""


def page(scenes: Sequence[Scene]) -> bytes:
    """Returns an HTML page with the scenes one below the other; the page loads nothing from elsewhere."""
    makespan = max(scene.report.makespan for scene in scenes)
    shortest = min(box.end - box.start for scene in scenes for box in scene.boxes)
    bounds = (-0.02 * makespan, 1.02 * makespan)
    time = Range1d(start=0, end=makespan, bounds=bounds, min_interval=min(4 * shortest, makespan))
    rows: list[list[Any]] = []
    for scene in scenes:
        meshes = scene.report.schedule.meshes
        tasks = _rows(meshes, time, scene.title, min(max(460 / meshes, 14), 56))
        memory = _rows(meshes, time, scene.memory_title, min(max(220 / meshes, 6), 28))
        memory.xaxis.axis_label = f"time in {scene.report.costs.unit}"
        _draw_tasks(scene, tasks)
        _draw_memory(scene, memory)
        rows += [[tasks], [memory]]
    layout = gridplot(rows, sizing_mode="stretch_width", merge_tools=True)
    return file_html(layout, INLINE, title=scenes[0].title).encode()


def _rows(meshes: int, time: Range1d, title: str, row: float) -> figure:
    """Returns an empty plot with one row for each mesh, `row` pixels high; mesh 0 is at the top."""
    plot = figure(
        x_range=time,
        y_range=Range1d(start=meshes - GAP / 2, end=-GAP / 2),
        title=title,
        height=round(row * meshes) + 80,
        tools="xpan,xwheel_zoom,box_zoom,reset,save",
        active_scroll="xwheel_zoom",
        y_axis_label="mesh",
        outline_line_color=None,
        min_border_left=70,
        min_border_right=70,
    )
    _name_rows(plot.yaxis[0], [str(mesh) for mesh in range(meshes)], row)
    plot.grid.grid_line_color = None
    return plot


def _name_rows(axis: Axis, names: Sequence[str], row: float) -> None:
    """Labels the rows with their names; in rows lower than 12 pixels only every nth row has a label."""
    shown: dict[float | str, Any] = {
        from_top(mesh, 0.5): names[mesh] for mesh in range(0, len(names), math.ceil(12 / row))
    }
    axis.ticker = FixedTicker(ticks=[float(at) for at in shown])
    axis.major_label_overrides = shown
    axis.major_label_standoff = 2
    axis.major_tick_line_color = axis.axis_line_color = None


def _draw_tasks(scene: Scene, plot: figure) -> None:
    """Draws the tasks, kind by kind; a click on a kind in the legend hides or shows its tasks."""
    bubbles = plot.quad(source=ColumnDataSource(_corners(scene.rows)), fill_color=BUBBLE, line_color=None)
    below = _corners([frame for frame, _ in scene.runs]) | {"colour": [colour for _, colour in scene.runs]}
    runs = plot.quad(source=ColumnDataSource(below), fill_color="colour", line_color=None)
    tasks: list[GlyphRenderer[Any]] = []
    numbers: list[GlyphRenderer[Any]] = []
    items: list[LegendItem] = []
    for kind in scene.kinds:
        # The legend shows the colour of the first task; microbatches are sorted so that this is the first shade.
        boxes = sorted((box for box in scene.boxes if box.task.kind == kind), key=lambda box: box.task.microbatch)
        data, name = _corners(boxes), kind.replace("_", " ")
        data["stage"] = np.array([box.task.stage for box in boxes], np.int32)
        data["microbatch"] = [number_of(box.task) for box in boxes]
        data["waited"] = [box.waited for box in boxes]
        data["colour"] = [scene.colour(box) for box in boxes]
        data["plain"] = [scene.plain_colour(box) for box in boxes]
        source = ColumnDataSource(data)
        tasks.append(plot.quad(source=source, name=name, fill_color="colour", line_color="white", line_alpha=0))
        numbers.append(_draw_numbers(scene, plot, boxes))
        items.append(LegendItem(label=name, renderers=[tasks[-1], numbers[-1]], index=0))
    plot.quad(source=ColumnDataSource(_corners(scene.frames)), fill_color=None, line_color=FRAME, line_width=1.5)
    about = [("task", "$name of stage @stage, microbatch @microbatch"), *_TIMES, ("waited for", "@waited")]
    plot.add_tools(HoverTool(renderers=[*tasks], tooltips=about))
    items.append(LegendItem(label="bubble", renderers=list[Any]([bubbles])))
    legend = Legend(items=items, click_policy="hide", orientation="horizontal", location="left")
    legend.border_line_color = None
    legend.margin = 0
    plot.add_layout(legend, "above")
    _watch_zoom(scene, plot, tasks, numbers)
    for each in tasks:
        each.js_on_change("visible", CustomJS(args={"runs": runs, "tasks": tasks}, code=_HIDDEN))


def _draw_numbers(scene: Scene, plot: figure, boxes: Sequence[Box]) -> GlyphRenderer[Any]:
    written = [box for box in boxes if not box.track]
    letters = [max(map(len, _label(scene, box).split("\n"))) for box in written]
    data: dict[str, Any] = {
        "width": [box.end - box.start for box in written],
        "pixels": [_PIXELS * each + 3 for each in letters],
        "alpha": [0] * len(written),
        "x": np.array([(box.start + box.end) / 2 for box in written]),
        "y": np.array([from_top(box.mesh, (box.bottom + box.top) / 2) for box in written]),
        "text": [_label(scene, box) for box in written],
        "colour": [text_colour(scene.colour(box)) for box in written],
    }
    return plot.text(
        source=ColumnDataSource(data),
        text_color="colour",
        text_alpha="alpha",
        text_font_size="11px",
        text_line_height=1.1,
        text_align="center",
        text_baseline="middle",
    )


def _watch_zoom(scene: Scene, plot: figure, tasks: list[GlyphRenderer[Any]], numbers: list[GlyphRenderer[Any]]) -> None:
    shortest = min(box.end - box.start for box in scene.boxes if not box.track)
    known = {"plot": plot, "time": plot.x_range, "tasks": tasks, "numbers": numbers, "shortest": shortest}
    change = CustomJS(args=known, code=_ZOOMED)
    plot.x_range.js_on_change("start", change)
    plot.x_range.js_on_change("end", change)
    plot.js_on_change("inner_width", change)


def _label(scene: Scene, box: Box) -> str:
    """Returns the microbatch of a task, and its stage if some mesh has several stages.

    The stage is on a second line if the box is high enough, otherwise on the same line.
    """
    number = number_of(box.task)
    if not scene.has_chunks:
        return number
    between = "\n" if box.top - box.bottom > 0.7 else " "
    return f"{number}{between}{stage_of(box.task)}"


def _draw_memory(scene: Scene, plot: figure) -> None:
    """Draws the memory of each mesh over time, with an outline, and the peak at the right."""
    levels, meshes = scene.levels, scene.report.schedule.meshes
    columns = _corners(scene.level_frames(levels))
    columns["colour"] = [scene.level_colour(each) for each in levels]
    columns["amount"] = [scene.amount(each.amount) for each in levels]
    drawn = plot.quad(source=ColumnDataSource(columns), fill_color="colour", line_color="colour")
    edges = np.array([columns["left"], columns["right"]]).T, np.repeat(columns["top"], 2).reshape(-1, 2)
    ends = np.flatnonzero(np.diff(columns["mesh"])) + 1
    xs, ys = ([part.ravel() for part in np.split(each, ends)] for each in edges)
    plot.multi_line("x", "y", source=ColumnDataSource({"x": xs, "y": ys}), line_color=MEMORY_LINE)
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=[*_TIMES, ("alive", "@amount")]))
    peaks = LinearAxis()
    _name_rows(peaks, [scene.amount(scene.peak(mesh)) for mesh in range(meshes)], (plot.height or 0) / meshes)
    plot.add_layout(peaks, "right")


def _corners(shapes: Sequence[Box | Frame]) -> dict[str, Any]:
    """Returns the columns of a data source: the four sides of each rectangle, and its mesh."""
    sides = dict(zip(("left", "right", "top", "bottom"), corners(shapes), strict=True))
    return {**sides, "mesh": np.array([each.mesh for each in shapes], np.int32)}
