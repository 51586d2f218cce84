"""A picture on a screen, drawn by Bokeh: a page in one file that zooms, pans, and tells of the task under the mouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from bokeh.embed import file_html
from bokeh.layouts import gridplot
from bokeh.models import ColumnDataSource, CustomJS, FixedTicker, GlyphRenderer, HoverTool, Legend, LegendItem, Range1d
from bokeh.plotting import figure
from bokeh.resources import INLINE

from jaxpp.schedules.formats.picture.scene import (
    BUBBLE,
    FRAME,
    GAP,
    MEMORY,
    Box,
    Frame,
    Scene,
    number_of,
    text_colour,
)

_TIMES: Final = [("mesh", "@mesh"), ("from", "@left{0.[000]}"), ("to", "@right{0.[000]}")]

_ZOOMED: Final = """
    const alpha = Number(plot.inner_width * shortest > pixels * (time.end - time.start))
    if (numbers[0].glyph.text_alpha.value == alpha) return
    for (const each of tasks) each.glyph.line_alpha = {value: alpha}
    for (const each of numbers) each.glyph.text_alpha = {value: alpha}
"""
"""In the browser: numbers and white edges are there while the shortest task is wide enough for its number."""


def page(scene: Scene) -> bytes:
    """The page; it loads nothing from elsewhere."""
    makespan, meshes = scene.report.makespan, scene.report.schedule.meshes
    shortest = min(box.end - box.start for box in scene.boxes)
    bounds = (-0.02 * makespan, 1.02 * makespan)
    time = Range1d(start=0, end=makespan, bounds=bounds, min_interval=min(4 * shortest, makespan))
    tasks = _rows(meshes, time, scene.title, min(max(560 / meshes, 18), 56))
    memory = _rows(
        meshes,
        time,
        f"{scene.memory_title}; the highest peak is {scene.amount(scene.highest)}",
        min(max(300 / meshes, 10), 30),
    )
    memory.xaxis.axis_label = f"time in {scene.report.costs.unit}"
    _draw_tasks(scene, tasks)
    _draw_memory(scene, memory)
    layout = gridplot([[tasks], [memory]], sizing_mode="stretch_width", merge_tools=True)
    return file_html(layout, INLINE, title=scene.title).encode()


def _rows(meshes: int, time: Range1d, title: str, row: float) -> figure:
    """A plot with a row of so many pixels for each mesh, the first at the top."""
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
        min_border_right=20,
    )
    shown: dict[float | str, Any] = {
        mesh + (1 - GAP) / 2: str(mesh) for mesh in range(0, meshes, max(1, round(16 / row)))
    }
    plot.yaxis[0].ticker = FixedTicker(ticks=[float(at) for at in shown])
    plot.yaxis[0].major_label_overrides = shown
    plot.yaxis[0].major_tick_line_color = plot.yaxis[0].axis_line_color = None
    plot.grid.grid_line_color = None
    return plot


def _draw_tasks(scene: Scene, plot: figure) -> None:
    """The tasks, kind by kind: a click on its name in the legend hides a kind."""
    makespan, meshes = scene.report.makespan, scene.report.schedule.meshes
    whole = [Frame(mesh, 0.0, makespan, scene.ground) for mesh in range(meshes)]
    bubbles = plot.quad(source=ColumnDataSource(_corners(whole)), fill_color=BUBBLE, line_color=None)
    tasks: list[GlyphRenderer[Any]] = []
    numbers: list[GlyphRenderer[Any]] = []
    items: list[LegendItem] = []
    for kind in scene.kinds:
        # The legend shows the colour of the first.
        boxes = sorted((box for box in scene.boxes if box.task.kind == kind), key=lambda box: box.task.microbatch)
        data, name = _corners(boxes), kind.replace("_", " ")
        data["stage"] = np.array([box.task.stage for box in boxes], np.int32)
        data["microbatch"] = [number_of(box.task) for box in boxes]
        data["waited"] = [box.waited for box in boxes]
        data["colour"] = [scene.colour(box) for box in boxes]
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


def _draw_numbers(scene: Scene, plot: figure, boxes: Sequence[Box]) -> GlyphRenderer[Any]:
    written = [box for box in boxes if not box.track]
    data: dict[str, Any] = {
        "x": np.array([(box.start + box.end) / 2 for box in written]),
        "y": np.array([box.mesh + (1 - GAP) * (1 - (box.bottom + box.top) / 2) for box in written]),
        "text": [_label(scene, box) for box in written],
        "colour": [text_colour(scene.colour(box)) for box in written],
    }
    return plot.text(
        source=ColumnDataSource(data),
        text_color="colour",
        text_alpha=0,
        text_font_size="11px",
        text_line_height=1.1,
        text_align="center",
        text_baseline="middle",
    )


def _watch_zoom(scene: Scene, plot: figure, tasks: list[GlyphRenderer[Any]], numbers: list[GlyphRenderer[Any]]) -> None:
    boxes = [box for box in scene.boxes if not box.track]
    letters = max(len(line) for box in boxes for line in _label(scene, box).split("\n"))
    known = {"plot": plot, "time": plot.x_range, "tasks": tasks, "numbers": numbers, "pixels": 6.5 * letters + 3}
    shortest = min(box.end - box.start for box in boxes)
    change = CustomJS(args={**known, "shortest": shortest}, code=_ZOOMED)
    plot.x_range.js_on_change("start", change)
    plot.x_range.js_on_change("end", change)
    plot.js_on_change("inner_width", change)


def _label(scene: Scene, box: Box) -> str:
    """The microbatch; and the stage where a mesh has several, below it, or beside it in half a row."""
    number = number_of(box.task)
    if not scene.has_chunks:
        return number
    return f"{number}\ns{box.task.stage}" if box.top - box.bottom > 0.7 else f"{number} s{box.task.stage}"


def _draw_memory(scene: Scene, plot: figure) -> None:
    data: dict[str, list[Any]] = {name: [] for name in ("left", "right", "top", "bottom", "mesh", "amount")}
    for mesh, (times, amounts) in enumerate(scene.report.memory.curves):
        base = mesh + 1 - GAP
        heights = amounts * (1 - GAP) / scene.highest
        ends = np.append(times, scene.report.makespan)
        data["left"].append(ends[:-1])
        data["right"].append(ends[1:])
        data["top"].append(base - heights)
        data["bottom"].append(np.full(len(times), base))
        data["mesh"].append(np.full(len(times), mesh, np.int32))
        data["amount"] += [scene.amount(amount) for amount in amounts]
    columns: dict[str, Any] = {name: each if name == "amount" else np.concatenate(each) for name, each in data.items()}
    drawn = plot.quad(source=ColumnDataSource(columns), fill_color=MEMORY, line_color=MEMORY)
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=[*_TIMES, ("alive", "@amount")]))


def _corners(shapes: Sequence[Box | Frame]) -> dict[str, Any]:
    """Columns for the rectangles of `shapes`."""
    return {
        "left": np.array([each.start for each in shapes]),
        "right": np.array([each.end for each in shapes]),
        "top": np.array([each.mesh + (1 - GAP) * (1 - each.top) for each in shapes]),
        "bottom": np.array([each.mesh + (1 - GAP) * (1 - each.bottom) for each in shapes]),
        "mesh": np.array([each.mesh for each in shapes], np.int32),
    }
