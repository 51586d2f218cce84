"""Kills processes of examples/healing.py, and measures how long a spare process needs to take the place of one.

    python benchmarks/spares.py [--kills 20] [--steps 500] [--processes 4] [--spares 1] [--pause 100]

The slots of the killed processes take turns, so the first process of the job is among them. A time counts from the kill
until a process has the loss of the next step. The losses have to be those of a run without kills, bit for bit, and each
kill may repeat one step. `--pause` is the number of milliseconds between two steps: in that time spares start.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from shared import example, parser

import jaxpp

STEP = re.compile(r"step (\d+) of process (\d+), pid (\d+): (\S+)")


def main() -> int:
    """Runs the job twice, with and without kills; returns the exit code."""
    flags = parser(__doc__, kills=20, steps=500, processes=4, spares=1, pause=100)
    flags.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.train:
        train(options.steps, options.pause / 1000)
        return 0
    size = ["--processes", str(options.processes)]
    expected, _ = losses([*size], options.steps, 0, 0)
    found, seconds = losses([*size, "--spares", str(options.spares)], options.steps, options.pause, options.kills)
    repeated = sum(len({place for place, _ in each}) < len(each) for each in found.values())
    same = values(found) == values(expected)
    print(f"{len(seconds)} kills in {options.steps} steps, {repeated} steps made again, losses equal: {same}")
    if seconds:
        row = f"{min(seconds):.2f}, {statistics.median(seconds):.2f} and {max(seconds):.2f} s"
        print(f"from a kill to the next loss: least, median and greatest {row}; load {os.getloadavg()[0]:.1f}")
    return int(not same or len(found) != options.steps or repeated > len(seconds) or len(seconds) != options.kills)


def values(found: dict[int, list[Any]]) -> dict[int, set[str]]:
    """Returns the different losses of each step."""
    return {step: {loss for _, loss in each} for step, each in found.items()}


def train(steps: int, pause: float) -> None:
    """Trains the example, in a process of `jaxpp-run`."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    module = example("healing")

    def show(number: int, output: Any) -> None:
        loss = float(jaxpp.fetch(output)).hex()
        text = f"step {number} of process {jax.process_index()}, pid {os.getpid()}: {loss}\n"
        os.write(1, text.encode())  # a line as a whole: all processes write to the same pipe
        time.sleep(pause)

    jaxpp.healing.train(module.make_step, module.first_state, module.batch, steps, on_step=show)


def losses(options: Sequence[str], steps: int, pause: int, kills: int) -> tuple[dict[int, list[Any]], list[float]]:
    """Runs a job with so many kills.

    Returns by step the (process number, loss) that processes printed, and the seconds that followed each kill.
    """
    script = [str(Path(__file__)), "--train", "--steps", str(steps), "--pause", str(pause)]
    command = [sys.executable, "-m", "jaxpp.tools.run", *options, *script]
    found: dict[int, list[Any]] = {}
    seconds: list[float] = []
    pids: dict[int, int] = {}
    begun = threading.Event()
    killed: float | None = None
    at = [steps * (each + 1) // (kills + 1) for each in range(kills)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        threading.Thread(target=copy, args=[job.stderr, begun], daemon=True).start()
        for row in job.stdout:
            if (read := STEP.match(row)) is None:
                print(row, end="")
                continue
            number, place, pid = map(int, read.groups()[:3])
            pids[place] = pid
            found.setdefault(number, []).append((place, read[4]))
            if killed is not None and begun.is_set():
                seconds.append(time.monotonic() - killed)
                killed = None
            if at and killed is None and number >= at[0] and place == 0:
                victim = (kills - len(at)) % len(pids)
                at.pop(0)
                begun.clear()
                os.kill(pids[victim], signal.SIGKILL)
                killed = time.monotonic()
    return found, seconds


def copy(file: Any, begun: threading.Event) -> None:
    """Copies the messages of the job, and notes when a generation has begun."""
    for row in file:
        print(row, end="", file=sys.stderr)
        if " processes go on " in row:
            begun.set()


if __name__ == "__main__":
    sys.exit(main())
