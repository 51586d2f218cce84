"""Starts the processes of one `jax.distributed` job, and ends all of them whatever happens."""

import contextlib
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from unit.runtime.processes import forks

from jaxpp._system import keep_port

SOON = 20.0
"""Seconds within which a test wants something that takes at most two: other tests run on the same cores."""


def run(jobs: Sequence[Callable[[], Any]], processes: int, devices: int = 1, seconds: float = 300) -> list[list[Any]]:
    """Run the jobs, functions of a module, one after the other in each process; what each returned, by process and job.

    A result is JSON: a number, a list... Fails with the output of all processes when one of them does, or takes longer.
    """
    found, failure = _run(jobs, processes, devices, time.monotonic() + seconds)
    if failure is not None:
        raise failure
    return found


class Results(dict[str, Any]):
    """What each job returned, by its name, in each process; to ask for that of a job that failed raises its error."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, AssertionError):
            raise found
        return found


def run_each(
    jobs: Sequence[Callable[[], Any]],
    processes: int,
    devices: int = 1,
    seconds: float = 300,
    first: Sequence[Callable[[], Any]] = (),
) -> Results:
    """As `run`, but a job that fails is alone in that: the jobs after it run in other processes.

    `first` is what all processes begin with.
    """
    end = time.monotonic() + seconds
    results, rest = Results(), list(jobs)
    while rest:
        ran = [*first, *rest]
        found, failure = _run(ran, processes, devices, end)
        returned = list(zip(*found, strict=False))  # of the jobs that all processes came through
        results |= {job.__name__: list(values) for job, values in zip(ran, returned, strict=False)}
        if failure is None:
            break
        failed = min(max(len(returned), len(first)), len(ran) - 1)
        results[ran[failed].__name__] = failure
        rest = ran[failed + 1 :]
    return results


def _run(
    jobs: Sequence[Callable[[], Any]], processes: int, devices: int, end: float
) -> tuple[list[list[Any]], AssertionError | None]:
    """What the jobs returned, by process, as far as each came; and the error if not all did, before `end`."""
    names = [f"{job.__module__}:{job.__name__}" for job in jobs]
    with started([names] * processes, devices) as (children, outputs):
        while any(child.poll() is None for child in children):
            failed = any(child.poll() for child in children)
            if failed or time.monotonic() > end:
                break
            time.sleep(0.02)
        texts = [Path(output).read_text(encoding="utf-8") for output in outputs]
        codes = [child.poll() for child in children]
    found = [[json.loads(line) for line in re.findall(r"^returned: (.*)\n", text, re.MULTILINE)] for text in texts]
    if all(code == 0 for code in codes):
        return found, None
    shown = "\n".join(f"--- process {i}, exit code {codes[i]}\n{text[-5000:]}" for i, text in enumerate(texts))
    return found, AssertionError(f"in {processes} processes:\n{shown}")


@contextlib.contextmanager
def started(
    arguments: Sequence[Sequence[str]], devices: int = 1, function: str = f"{__name__}:main"
) -> Generator[tuple[list[forks.Fork], list[str]]]:
    """A function, "module:name", called in a process for each entry of `arguments`, which names others.

    Returns the processes, and the files that hold what they print.
    """
    with keep_port("127.0.0.1") as kept, tempfile.TemporaryDirectory() as folder:
        port = str(kept.getsockname()[1])
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
    for name in names:
        module, function = name.split(":")
        print(f"{name}...", flush=True)
        try:
            result = getattr(import_module(module), function)()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # at once: the others would be waited for
        print("\nreturned:", json.dumps(result), flush=True)
