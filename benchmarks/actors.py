"""The same pipeline as Ray's actors run it, told by a driver, and as JAX's own processes do: who is faster?

    python benchmarks/actors.py [--models tf mlp tiny] [--microbatches 4 8 16] [--repeat 15]

Two actors and two processes, one core each, take turns with the models and the schedule of processes.py; their losses
have to agree. A step counts from when it is asked for until its state and its loss are there. The driver has no core of
its own, and sends the batch anew with each step.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
from processes_models import Model, make
from processes_runs import Run, make_jaxpp, training_step

import jaxpp

MODELS = ("tf", "mlp", "tiny")
FLAGS = {"PJRT_NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


def main() -> None:
    """Print two lines for each model and number of microbatches, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--microbatches", nargs="+", type=int, default=(4, 8, 16))
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--join", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.join is not None:
        join(options.join[0], int(options.join[1]))
        return
    jax.config.update("jax_platforms", "cpu")
    environment: dict[str, Any] = {"runtime_env": {"env_vars": FLAGS}}
    with Processes() as processes, jaxpp.ray.Cluster(2, options=environment) as cluster:
        for number, pid in enumerate(cluster.processes):
            pin(pid, number)
        for name in options.models:
            for microbatches in options.microbatches:
                report(make(name, microbatches), cluster, processes, options.repeat)


def report(model: Model, cluster: jaxpp.ray.Cluster, processes: "Processes", repeat: int) -> None:
    """Measure by turns, and print."""
    processes.ask(f"{model.name} {model.microbatches}")
    runs = {"processes": lambda: float(processes.ask("step")), "actors": make_actors(model, cluster)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    losses: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeat + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            losses[name].append(run())
            if turn:
                times[name].append(time.perf_counter() - begin)
    wrong = "" if np.allclose(losses["actors"], losses["processes"], rtol=1e-4) else "  LOSSES DIFFER"
    best, middle = min(times["processes"]), statistics.median(times["processes"])
    for name, found in times.items():
        least, median = min(found), statistics.median(found)
        print(
            f"{model.name:4} M={model.microbatches:<2} {name:9} {1e3 * least:8.2f} ms, median {1e3 * median:8.2f} ms;"
            f" {least / best:.2f} of the processes' time, median {median / middle:.2f}{wrong}",
            flush=True,
        )


def make_actors(model: Model, cluster: jaxpp.ray.Cluster) -> Run:
    """The step on two actors."""
    mesh = cluster.mesh((2,), ("mpmd",), "mpmd")
    pipeline = jaxpp.mpmd_jit_with_loop(training_step(model), mpmd_mesh=mesh, donate_argnums=0)
    state: Any = model.parameters()
    batch = model.data()

    def run() -> float:
        nonlocal state
        state, total = pipeline(state, batch)
        jax.block_until_ready(state)
        return float(total)

    return run


class Processes:
    """This script twice more, as the processes of one job that do what they are asked for."""

    def __enter__(self) -> "Processes":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        environment = {**os.environ, **FLAGS, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        command = [sys.executable, __file__, "--join", coordinator]
        pipe = subprocess.PIPE
        self._children = [
            subprocess.Popen([*command, str(number)], env=environment, stdin=pipe, stdout=pipe, text=True)
            for number in range(2)
        ]
        return self

    def ask(self, request: str) -> str:
        """Send a line to both; returns the answer of the last one when both have answered."""
        for child in self._children:
            print(request, file=child.stdin, flush=True)
        return [child.stdout.readline() for child in self._children if child.stdout][-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            if child.stdin:
                child.stdin.close()
        for child in self._children:
            child.wait(30)


def join(coordinator: str, number: int) -> None:
    """Be one of the processes: answer each line."""
    pin(os.getpid(), number)
    jax.distributed.initialize(coordinator, 2, number)
    run: Run = float
    for line in sys.stdin:
        if line == "step\n":
            print(run(), flush=True)
        else:
            name, microbatches = line.split()
            run = make_jaxpp(make(name, int(microbatches)))
            print(flush=True)


def pin(process: int, number: int) -> None:
    """Keep a process on one core."""
    cores = sorted(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cores[number % len(cores)]})


if __name__ == "__main__":
    main()
