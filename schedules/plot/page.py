"""A picture on a screen: matplotlib's SVG in a page that zooms, and describes the task under the mouse."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxpp.schedules.plot.chart import POINTS, drawn, saved
from jaxpp.schedules.plot.scene import Box, Frame, Level, Scene, corners, number_of

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 14px sans-serif; margin: 1em }} div {{ overflow-x: auto }} svg {{ width: 100%; height: auto }}
rect {{ fill: none; pointer-events: all; vector-effect: non-scaling-stroke }} rect:hover {{ stroke: #000 }}
</style></head>
<body><label>zoom <input type="range" min="100" max="2000" value="100"
oninput="document.querySelector('svg').style.width = this.value + '%'"></label>
<div>{picture}</div></body></html>
"""


def page(scenes: Sequence[Scene]) -> bytes:
    """Returns an HTML page with the scenes one below the other; the page loads nothing from elsewhere."""
    figure = drawn(scenes)
    picture = saved(lambda: figure, "svg").decode()
    lines = [picture[picture.index("<svg") : picture.rindex("</svg>")]]
    for scene, tasks, memory in zip(scenes, figure.axes[::2], figure.axes[1::2], strict=True):
        lines += _titled(figure, tasks, scene.boxes, map(_about, scene.boxes))
        alive = [f"{_times(each)}\n{scene.amount(each.amount)} alive" for each in scene.levels]
        lines += _titled(figure, memory, scene.level_frames(scene.levels), alive)
    return _PAGE.format(title=html.escape(scenes[0].title), picture="\n".join([*lines, "</svg>"])).encode()


def _about(box: Box) -> str:
    kind = box.task.kind.replace("_", " ")
    task = f"{kind} of stage {box.task.stage}, microbatch {number_of(box.task)}"
    return f"{task}\n{_times(box)}\nwaited for {box.waited}"


def _times(shape: Box | Level) -> str:
    return f"mesh {shape.mesh}, {shape.start:.6g} to {shape.end:.6g}"


def _titled(figure: Figure, axes: Axes, shapes: Sequence[Box | Frame], titles: Iterable[str]) -> Iterator[str]:
    """Yields SVG that shows titles under the mouse: transparent rectangles over shapes, in the units of their axes."""
    (width, height), place = figure.get_size_inches() * POINTS, axes.get_position()
    (start, end), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    across, down = place.width * width / (end - start), place.height * height / (bottom - top)
    x, y = place.x0 * width - start * across, (1 - place.y1) * height - top * down
    yield f'<g transform="translate({x:.6g} {y:.6g}) scale({across:.6g} {down:.6g})">'
    for left, right, upper, lower, title in zip(*corners(shapes), titles, strict=True):
        sides = f'x="{left:.6g}" y="{upper:.6g}" width="{right - left:.6g}" height="{lower - upper:.6g}"'
        yield f"<rect {sides}><title>{html.escape(title)}</title></rect>"
    yield "</g>"
