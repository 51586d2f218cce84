"""How long schedules take to make, to simulate and to print: a row per schedule.

    python benchmarks/schedules.py [--meshes 64] [--microbatches 2048] [--repeat 3] [NAME ...]

Seconds, the minimum over the repetitions; "us/task" is the simulation alone, which should not grow with the schedule.
"""

import argparse
import time
from itertools import pairwise

from jaxpp import schedules as S


def run(name: str, meshes: int, microbatches: int) -> tuple[float, ...]:
    """Tasks, and the seconds to make, simulate (the graph of numbers included), report on, and print a schedule."""
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
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["1f1b", "zb-h1", "interleaved-1f1b", "zb-v"], metavar="NAME")
    parser.add_argument("--meshes", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"{'schedule':18} {'tasks':>9} {'make':>7} {'simulate':>9} {'us/task':>8} {'report':>7} {'print':>7}")
    for name in options.names:
        times = [run(name, options.meshes, options.microbatches) for _ in range(options.repeat)]
        made, simulated, reported, printed = map(min, zip(*(row[1:] for row in times), strict=True))
        tasks = int(times[0][0])
        each = simulated / tasks * 1e6
        print(f"{name:18} {tasks:9} {made:7.2f} {simulated:9.2f} {each:8.2f} {reported:7.2f} {printed:7.2f}")


if __name__ == "__main__":
    main()
