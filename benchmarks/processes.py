"""A pipeline of two processes, one core each, against one process: how much faster is a training step?

    python benchmarks/processes.py [--models tf mlp tiny] [--microbatches 4 8 16] [--repeat 7] [--transport pair]

The steps take turns in the same two processes, on the same data; their losses have to agree.

    single    plain jax.jit in one process: the gradients of all microbatches summed in a `lax.scan`
    spmd      JAX's own pipeline: GPipe by shard_map and ppermute over both processes (gloo)
    by hand   1F1B written out for this model: jitted stage functions, `jax.experimental.transfer` in between
    jaxpp     the function of `single` with two marks in `mpmd_jit_with_loop`, 1F1B
    torch     with PyTorch installed: its 1F1B, interleaved 1F1B and ZBV (gloo), in two other processes, afterwards

A step counts from when the first process begins it until the last one has its results. Speed-ups over `single` are
ratios of the least times and of the medians; the ideal is 2M / (M + 1), for M microbatches. Of the tiny model, which
computes next to nothing, what counts is the time per task, of which each process has 2M, over 20 steps in a row.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from processes_models import make
from processes_runs import RUNS

from jaxpp import distributed
from jaxpp.runtime.processes.choice import TRANSPORTS
from jaxpp.runtime.processes.job import gather

MODELS = ("tf", "mlp", "tiny")
TORCH = ("torch 1F1B", "torch int.", "torch ZBV")


def main() -> None:
    """Start two processes with a core each, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--microbatches", nargs="+", type=int, default=(4, 8, 16))
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=(*RUNS, "torch"), default=(*RUNS, "torch"), help="besides single")
    parser.add_argument("--transport", choices=TRANSPORTS, default="pull", help="what carries the values of jaxpp")
    parser.add_argument("--join", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.join is None:
        sys.exit(start())
    cores = join(options.join[0], 2, int(options.join[1]), options.transport)
    for name in options.models:
        for microbatches in options.microbatches:
            chosen = [each for each in RUNS if each == "single" or each in options.only]
            measured = measure(name, microbatches, chosen, options.repeat)
            if jax.process_index() == 0:
                of_torch = measure_torch(name, microbatches, options.repeat, cores) if "torch" in options.only else []
                rows = dict(zip(chosen, zip(*measured, strict=True), strict=True))
                report(name, microbatches, rows | dict(zip(TORCH, zip(*of_torch, strict=True), strict=False)))
            gather("")


def free_port() -> str:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def one_thread(devices: int) -> dict[str, str]:
    """The environment of a process with so many CPU devices, and one thread for XLA."""
    flags = {"PJRT_NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    return {**os.environ, **flags, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}


def join(coordinator: str, processes: int, number: int, transport: str = "pull") -> list[int]:
    """Be one of some processes, on a core of its own, or shared by as few as there have to be; the cores of all."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    if processes > 1:
        distributed.initialize(coordinator, processes, number, transport=transport)
    return cores


def start() -> int:
    """Run this script twice, each with one thread for XLA; returns the exit code."""
    command = [sys.executable, *sys.argv, "--join", f"127.0.0.1:{free_port()}"]
    children = [subprocess.Popen([*command, str(number)], env=one_thread(1)) for number in range(2)]
    try:
        while all(child.poll() is None for child in children):
            time.sleep(0.1)
        return max(abs(child.wait(30)) for child in children)
    finally:
        for child in children:
            child.kill()


Measured = list[list[tuple[float, float, float | None]]]
"""For each step and each time it was run (begin, end, loss)."""


def measure(name: str, microbatches: int, chosen: list[str], repeat: int) -> list[Measured]:
    """Run all steps in turns; what each process measured."""
    model = make(name, microbatches)
    runs = [RUNS[each](model) for each in chosen]
    found: Measured = [[] for _ in runs]
    for _ in range(repeat + 1):
        for run, line in zip(runs, found, strict=True):
            gather("")
            begin = time.perf_counter()  # of the machine, not of the process
            losses = [run() for _ in range(20 if name == "tiny" else 1)]
            line.append((begin, time.perf_counter(), losses[-1]))
    return [json.loads(each) for each in gather(json.dumps(found))]


def measure_torch(name: str, microbatches: int, repeat: int, cores: list[int]) -> list[Measured]:
    """What each process of PyTorch measured; nothing where it isn't installed."""
    if importlib.util.find_spec("torch") is None:
        return []
    script, port = str(Path(__file__).with_name("processes_torch.py")), free_port()
    command = [sys.executable, script, name, str(microbatches), str(repeat)]
    children = [
        subprocess.Popen(
            [*command, str(number), str(cores[number % len(cores)]), port],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for number in range(2)
    ]
    return [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]


def report(name: str, microbatches: int, rows: Mapping[str, Sequence[list[tuple[float, float, float | None]]]]) -> None:
    """Print a line for each step, given what each process measured of it."""
    times: dict[str, list[float]] = {}
    losses: dict[str, list[float]] = {}
    for each, lines in rows.items():
        lines = lines[:1] if each == "single" else lines
        turns = list(zip(*lines, strict=True))
        steps = 20 if name == "tiny" else 1
        times[each] = [(max(e for _, e, _ in turn) - min(b for b, _, _ in turn)) / steps for turn in turns[1:]]
        losses[each] = [next(loss for _, _, loss in turn if loss is not None) for turn in turns]
    best, middle = min(times["single"]), statistics.median(times["single"])
    for each, found in times.items():
        least, median = min(found), statistics.median(found)
        wrong = "" if np.allclose(losses[each], losses["single"], rtol=1e-4) else "  LOSSES DIFFER"
        ideal = 2 * microbatches / (microbatches + 1)
        print(
            f"{name:4} M={microbatches:<2} {each:10} {1e3 * least:8.2f} ms, median {1e3 * median:8.2f} ms;"
            f" speed-up {best / least:.2f}, median {middle / median:.2f} (ideal {ideal:.2f});"
            f" {1e6 * least / (2 * microbatches):5.0f} us per task{wrong}",
            flush=True,
        )


if __name__ == "__main__":
    main()
