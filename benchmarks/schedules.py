"""Measures how long schedules take to make, to simulate and to print: a row per schedule.

    python benchmarks/schedules.py [--meshes 64] [--microbatches 2048] [--repeat 3] [NAME ...]

Seconds, the minimum over the repetitions; "us/task" is the simulation alone, which should not grow with the schedule.
"""

import time
from itertools import pairwise

from shared import parser, show

from jaxpp import schedules as S


def run(name: str, meshes: int, microbatches: int) -> tuple[float, ...]:
    """Returns the tasks, and the seconds to make, simulate (with its graph), report on, and print a schedule."""
    clock = [time.perf_counter()]
    schedule = S.make(name, meshes=meshes, microbatches=microbatches)
    clock.append(time.perf_counter())
    report = S.simulate(schedule, S.Costs(hop=0.01))
    clock.append(time.perf_counter())
    _ = report.makespan, report.bubble, report.bubbles, report.peak_activations()
    clock.append(time.perf_counter())
    _ = str(schedule)
    clock.append(time.perf_counter())
    return (len(schedule.graph.tasks), *(end - start for start, end in pairwise(clock)))


def main() -> None:
    """Prints the table."""
    flags = parser(__doc__, meshes=64, microbatches=2048, repeat=3)
    flags.add_argument("names", nargs="*", default=["1f1b", "zb-h1", "interleaved-1f1b", "zb-v"], metavar="NAME")
    options = flags.parse_args()
    rows: list[list[object]] = []
    for name in options.names:
        tasks, *least = map(
            min, zip(*(run(name, options.meshes, options.microbatches) for _ in range(options.repeat)), strict=True)
        )
        rows.append([name, tasks, *(f"{each:.2f}" for each in least), f"{least[1] / tasks * 1e6:.2f}"])
    show(("schedule", "tasks", "make", "simulate", "report", "print", "us/task"), rows)


if __name__ == "__main__":
    main()
