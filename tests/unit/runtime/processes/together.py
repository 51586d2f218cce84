"""Starts the processes of one `jax.distributed` job, and ends all of them whatever happens."""

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from unit.runtime.processes import forks

SOON = 20.0
"""Seconds within which a test wants something that takes at most two: other tests run on the same cores."""


def run(jobs: Sequence[Callable[[], Any]], processes: int, devices: int = 1, seconds: float = 300) -> list[list[Any]]:
    """Run the jobs, functions of a module, one after the other in each process; what each returned, by process and job.

    A result is JSON: a number, a list... Fails with the output of all processes when one of them does, or takes longer.
    """
    names = [f"{job.__module__}:{job.__name__}" for job in jobs]
    with started([names] * processes, devices) as (children, outputs):
        end = time.monotonic() + seconds
        while any(child.poll() is None for child in children):
            failed = any(child.poll() for child in children)
            if failed or time.monotonic() > end:
                break
            time.sleep(0.02)
        texts = [Path(output).read_text(encoding="utf-8") for output in outputs]
        codes = [child.poll() for child in children]
    if any(code != 0 for code in codes):
        shown = "\n".join(f"--- process {i}, exit code {codes[i]}\n{text[-5000:]}" for i, text in enumerate(texts))
        raise AssertionError(f"in {processes} processes:\n{shown}")
    return [json.loads(text.rsplit("\nresults: ", 1)[1]) for text in texts]


@contextlib.contextmanager
def started(
    arguments: Sequence[Sequence[str]], devices: int = 1, function: str = f"{__name__}:main"
) -> Generator[tuple[list[forks.Fork], list[str]]]:
    """A function, "module:name", called in a process for each entry of `arguments`, which names others.

    Returns the processes, and the files that hold what they print.
    """
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        outputs = [f"{folder}/{number}" for number in range(len(arguments))]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        children: list[forks.Fork] = []
        try:
            for number, each in enumerate(arguments):
                modules = {name.split(":")[0] for name in [function, *each] if ":" in name}
                command = [port, str(len(arguments)), str(number), *each]
                children.append(forks.start(function, command, sorted(modules), environment, outputs[number]))
            yield children, outputs
        finally:
            for child in children:
                child.kill()
            for child in children:
                child.wait(60)


def main(port: str, processes: str, number: str, *names: str) -> None:
    """One of the processes: run the jobs, print what they return."""
    import jax

    from jaxpp import distributed

    initialize = jax.distributed.initialize if os.environ.get("INITIALIZE") == "jax" else distributed.initialize
    initialize(f"127.0.0.1:{port}", int(processes), int(number))
    results: list[Any] = []
    for name in names:
        module, function = name.split(":")
        print(f"{name}...", flush=True)
        try:
            results.append(getattr(import_module(module), function)())
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # at once: the others would be waited for
    print("\nresults:", json.dumps(results), flush=True)
