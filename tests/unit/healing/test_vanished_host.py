"""A host vanishes without a word: a job that heals goes on without it, within the watchdog's time and some seconds."""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest
from unit.healing import forked
from unit.healing.hosts import Hosts, hosts
from unit.runtime.processes import forks

WATCHDOG, MORE = 3, 5
"""Seconds within which a job goes on, as docs/healing.md promises: the sum of both."""

SLOW = 10
"""Seconds that a busy machine may need beyond that."""

PLAIN = """
import sys, time
from unit.runtime.processes import jobs
from jaxpp import distributed

distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
weights, batch = jobs.arguments(2)
step = jobs.compiled(2)
try:
    while True:
        weights, _ = step(weights, batch)
        print("step", 0, 2, time.time())
except distributed.PeerError as error:
    print("told:", error)
"""

HEALING = """
import time
import jax
from unit.healing import job
from jaxpp import healing

def on_step(number, output):
    if jax.process_index() == 0:
        print("step", number, jax.process_count(), time.time(), flush=True)
    time.sleep(0.05)

healing.train(*(job.EXAMPLE[name] for name in ("make_step", "first_state", "batch")), 100_000, on_step=on_step)
"""


def listens(process: int, port: int) -> bool:
    """Whether somebody listens at a port of the host of a process."""
    rows = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def wait_for(happens: Callable[[], bool], seconds: float, printed: Path) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, printed.read_text(encoding="utf-8")
        time.sleep(0.05)


@contextlib.contextmanager
def started(
    on: Hosts, folder: Path, function: Callable[..., None], arguments: Sequence[Sequence[str]]
) -> Generator[list[Path]]:
    """`jaxpp-run` or a script on each host. Gives what each prints, as a file; the first one listens first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {"JAXPP_JOB_SECRET": "secret", "JAXPP_WATCHDOG_SECONDS": str(WATCHDOG), "PYTHONUNBUFFERED": "1"}
    children: list[forks.Fork] = []
    printed = [folder / f"host{number}" for number in range(len(arguments))]
    try:
        for number, each in enumerate(arguments):
            command = [on.namespace(number), function.__name__, *each]
            children.append(forked.started(forked.on_host, printed[number], command, environment))
            if not number:
                wait_for(lambda: listens(children[0].pid, 9876), 60, printed[0])
        yield printed
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):  # it has no session yet
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
        for child in children:
            child.wait()


def steps(printed: Path, processes: int) -> list[float]:
    """When the steps were made that so many processes made."""
    rows = [line.split() for line in printed.read_text(encoding="utf-8").splitlines() if line.startswith("step ")]
    return [float(row[3]) for row in rows if len(row) == 4 and int(row[2]) == processes]


def test_a_host_vanishes_without_a_word(tmp_path: Path) -> None:
    """It held a copy of the state of the first host; its own state is on the third one."""
    script = tmp_path / "train.py"
    script.write_text(HEALING)
    with hosts(3) as on:
        head = f"{on.addresses[0]}:9876"
        begins = ["--processes", "3", "--least", "2", "--here", "1", "--listen", head]
        arguments = [[*each, str(script)] for each in (begins, ["--join", head], ["--join", head])]
        with started(on, tmp_path, forked.run_tool, arguments) as (first, *_):
            wait_for(lambda: len(steps(first, 3)) > 5, 120, first)
            on.cut(1)
            cut = time.time()
            wait_for(lambda: bool(steps(first, 2)), 120, first)
            took = steps(first, 2)[0] - cut
            print(f"the first step without the host ends {took:.2f} s after it vanished")
            text = first.read_text(encoding="utf-8")
            assert took < WATCHDOG + MORE + SLOW, text
            assert f"jaxpp: the launcher at {on.addresses[1]}:" in text
            assert "2 of 3 processes go on after step " in text


@pytest.mark.parametrize("victim", [0, 1])
def test_a_job_that_does_not_heal_ends(victim: int, tmp_path: Path) -> None:
    """With an error that names the process of the host; the first host has JAX's coordinator."""
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    with hosts(2) as on:
        arguments = [[str(script), f"{on.addresses[0]}:9876", str(number)] for number in range(2)]
        with started(on, tmp_path, forks.run_script, arguments) as printed:
            other = printed[1 - victim]
            for each in printed:
                wait_for(lambda each=each: len(steps(each, 2)) > 5, 120, each)
            on.cut(victim)
            cut = time.monotonic()
            wait_for(lambda: "told" in other.read_text(encoding="utf-8"), 60, other)
            assert time.monotonic() - cut < WATCHDOG + MORE + SLOW
            text = other.read_text(encoding="utf-8")
            frozen = (
                rf"told: mesh {victim} on process {victim} \(.*\) is frozen: it gave no sign of life for {WATCHDOG} s; "
            )
            assert re.search(frozen, text), text
