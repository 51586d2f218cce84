"""Makes docs/images/schedules.svg and pipeline.svg: three schedules of a step, and one that moves (`make images`)."""

from pathlib import Path

from jaxpp import schedules as S
from jaxpp.schedules.engine.report import Report

FOLDER = Path(__file__).resolve().parent
MESHES, MICROBATCHES, SECONDS = 4, 8, 12
UNIT, ROW, LEFT = 26, 44, 64
COLOURS = {"forward": "#0072b2", "backward": "#d55e00"}
STYLE = f"""
text {{ font: 15px sans-serif; fill: #555 }}
.task text {{ fill: white; text-anchor: middle }}
@media (prefers-reduced-motion: no-preference) {{
  .task {{ animation: task {SECONDS}s linear infinite }}
  .now {{ animation: now {SECONDS}s linear infinite }}
}}
@keyframes task {{ 0%, 7% {{ opacity: 1 }} 14%, 100% {{ opacity: 0.45 }} }}
"""


def moving(report: Report) -> str:
    """Returns a picture in which each task lights up while it runs."""
    graph, run = report.schedule.graph, report.run
    width = report.makespan * UNIT
    shapes = [
        f'<rect x="{LEFT}" y="{mesh * ROW}" width="{width:g}" height="{ROW - 6}" fill="#e9e9e9"/>'
        f'<text x="0" y="{mesh * ROW + 24}">mesh {mesh}</text>'
        for mesh in range(MESHES)
    ]
    for mesh, number in ((mesh, number) for mesh, row in enumerate(graph.rows) for number in row):
        task, start, end = graph.tasks[number], run.starts[number], run.ends[number]
        x, y, wide = LEFT + start * UNIT, mesh * ROW, (end - start) * UNIT
        # A delay below zero starts the animation at that time of its cycle: here so that it lights up at `start`.
        delay = SECONDS * (start / report.makespan - 1)
        shapes.append(
            f'<g class="task" style="animation-delay:{delay:.2f}s"><rect x="{x + 1:g}" y="{y}" width="{wide - 2:g}" '
            f'height="{ROW - 6}" rx="3" fill="{COLOURS[task.kind]}"/>'
            f'<text x="{x + wide / 2:g}" y="{y + 24}">{task.microbatch}</text></g>'
        )
    height = MESHES * ROW
    style = f"{STYLE}@keyframes now {{ to {{ transform: translateX({width:g}px) }} }}\n"
    now = f'<path class="now" d="M{LEFT} 0V{height - 6}" stroke="#222" stroke-width="2"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + width:g} {height}">\n<style>{style}</style>\n'
        + "\n".join([*shapes, now, "</svg>\n"])
    )


if __name__ == "__main__":
    runs = [S.simulate(S.make(name, meshes=MESHES, microbatches=MICROBATCHES)) for name in ("gpipe", "1f1b", "zb-h1")]
    S.draw(runs, FOLDER / "schedules.svg", memory=False)
    (FOLDER / "pipeline.svg").write_text(moving(runs[1]), encoding="utf-8")
