"""Compares a pipeline of two processes, one core each, with one process: how much faster is a training step?

    python benchmarks/processes.py [--models tf mlp tiny] [--microbatches 4 8 16] [--repeat 7] [--transport pair]

The steps take turns in the same two processes, on the same data; their losses have to agree.

    single    plain jax.jit in one process: the gradients of all microbatches summed in a `lax.scan`
    spmd      JAX's own pipeline: GPipe by shard_map and ppermute over both processes (gloo)
    by hand   1F1B written out for this model: jitted stage functions, `jax.experimental.transfer` in between
    jaxpp     the function of `single` with two marks in `mpmd_jit_with_loop`, 1F1B
    torch     with PyTorch installed: its 1F1B, interleaved 1F1B and ZBV (gloo), in two other processes, afterwards

A step counts from when the first process begins it until the last one has its results. The table has the least and the
median milliseconds, their speed-ups over `single`, and the least microseconds per task, of which each process has 2M
for M microbatches. The ideal speed-up is 2M / (M + 1). Times of the tiny model are those of 20 steps in a row.
"""

import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from processes_models import make
from processes_runs import RUNS, Run
from shared import by_turns, parser, show

from jaxpp import distributed
from jaxpp.runtime.processes.choice import TRANSPORTS
from jaxpp.runtime.processes.job import gather

MODELS = ("tf", "mlp", "tiny")
TORCH = ("torch 1F1B", "torch int.", "torch ZBV")
Turn = tuple[float, float, float | None]
"""Begin, end and loss of a step in one process; the loss is None in a process that doesn't know it."""


def main() -> None:
    """Starts two processes with a core each, or is one of them."""
    flags = parser(__doc__, repeat=7)
    flags.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    flags.add_argument("--microbatches", nargs="+", type=int, default=(4, 8, 16))
    flags.add_argument("--only", nargs="+", choices=(*RUNS, "torch"), default=(*RUNS, "torch"), help="besides single")
    flags.add_argument("--transport", choices=TRANSPORTS, default="pull", help="what carries the values of jaxpp")
    flags.add_argument("--join", nargs=2, help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.join is None:
        sys.exit(start())
    cores, number = sorted(os.sched_getaffinity(0)), int(options.join[1])
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    distributed.initialize(options.join[0], 2, number, transport=options.transport)
    heads = ("model", "M", "step", "least ms", "median ms", "speed-up", "of medians", "ideal", "µs per task", "losses")
    rows = measured(options, cores)
    if number:
        list(rows)
    else:
        show(heads, rows)


def free_port() -> str:
    """Returns a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start() -> int:
    """Runs this script twice, each with one thread for XLA; returns the exit code."""
    command = [sys.executable, *sys.argv, "--join", f"127.0.0.1:{free_port()}"]
    flags = {"PJRT_NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    environment = {**os.environ, **flags, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    children = [subprocess.Popen([*command, str(number)], env=environment) for number in range(2)]
    try:
        while all(child.poll() is None for child in children):
            time.sleep(0.1)
        return max(abs(child.wait(30)) for child in children)
    finally:
        for child in children:
            child.kill()


def measured(options: argparse.Namespace, cores: list[int]) -> Iterator[Sequence[object]]:
    """Measures each model with each number of microbatches; yields the rows in the first process."""
    chosen = [each for each in RUNS if each == "single" or each in options.only]
    for name in options.models:
        for count in options.microbatches:
            model = make(name, count)
            runs = {each: RUNS[each](model) for each in chosen}
            turns = by_turns({each: partial(turn, run, name) for each, run in runs.items()}, options.repeat)
            found = [json.loads(each) for each in gather(json.dumps(turns))]
            if jax.process_index() == 0:
                lines = {each: [process[each] for process in found] for each in chosen}
                if "torch" in options.only:
                    lines |= measure_torch(name, count, options.repeat, cores)
                yield from rows_of(name, count, lines)
            gather("")


def turn(run: Run, name: str) -> Turn:
    """Runs a step in all processes at once; returns what this one measured."""
    gather("")
    begin = time.perf_counter()  # of the machine, not of the process
    losses = [run() for _ in range(steps_of(name))]
    return begin, time.perf_counter(), losses[-1]


def steps_of(name: str) -> int:
    """Returns how many steps are timed together."""
    return 20 if name == "tiny" else 1


def measure_torch(name: str, microbatches: int, repeat: int, cores: list[int]) -> Mapping[str, Any]:
    """Returns the turns of each process of PyTorch by schedule; nothing where it isn't installed."""
    if importlib.util.find_spec("torch") is None:
        return {}
    script, port = str(Path(__file__).with_name("processes_torch.py")), free_port()
    command = [sys.executable, script, name, str(microbatches), str(repeat)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    places = [(str(number), str(cores[number % len(cores)]), port) for number in range(2)]
    children = [subprocess.Popen([*command, *place], env=environment, stdout=subprocess.PIPE) for place in places]
    found = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
    return {each: [lines[k] for lines in found] for k, each in enumerate(TORCH)}


def rows_of(name: str, microbatches: int, lines: Mapping[str, list[list[Turn]]]) -> Iterator[Sequence[object]]:
    """Yields a row for each step, given the turns of each process."""
    times: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    for each, processes in lines.items():
        turns = list(zip(*processes[: 1 if each == "single" else 2], strict=True))
        times[each] = [(max(e for _, e, _ in turn) - min(b for b, _, _ in turn)) / steps_of(name) for turn in turns]
        losses[each] = [next(loss for _, _, loss in turn if loss is not None) for turn in turns]
    best, middle = min(times["single"]), statistics.median(times["single"])
    for each, found in times.items():
        least, median = min(found), statistics.median(found)
        agrees = "agree" if np.allclose(losses[each], losses["single"], rtol=1e-4) else "DIFFER"
        speeds = [f"{value:.2f}" for value in (best / least, middle / median, 2 * microbatches / (microbatches + 1))]
        numbers = [f"{1e3 * least:.2f}", f"{1e3 * median:.2f}", *speeds, f"{1e6 * least / (2 * microbatches):.0f}"]
        yield name, microbatches, each, *numbers, agrees


if __name__ == "__main__":
    main()
