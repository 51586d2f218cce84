"""A host vanishes without a word: a job that heals goes on without it, within the watchdog's time and some seconds."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

from unit.healing.hosts import Hosts, hosts

TESTS = Path(__file__).parents[2]

WATCHDOG, MORE = 3, 5
"""Seconds within which a job goes on, as docs/multihost.md promises: the sum of both."""

SLOW = 10
"""Seconds that a busy machine may need beyond that."""

SCRIPT = """
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


def wait_for(happens: Callable[[], bool], seconds: float, shown: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, shown()
        time.sleep(0.05)


@contextlib.contextmanager
def training(on: Hosts, folder: Path) -> Generator[Callable[[], str]]:
    """One process of a job on each host. Gives what is printed on the first one, where process 0 is."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_NUM_CPU_DEVICES": "1", "JAX_PLATFORMS": "cpu"}
    environment |= {"JAXPP_JOB_SECRET": "secret", "JAXPP_WATCHDOG_SECONDS": str(WATCHDOG), "PYTHONUNBUFFERED": "1"}
    head, count = f"{on.addresses[0]}:9876", len(on.addresses)
    begins = ["--processes", str(count), "--least", str(count - 1), "--here", "1", "--listen", head]
    children: list[subprocess.Popen[bytes]] = []

    def shown() -> str:
        return (folder / "host0").read_text(encoding="utf-8")

    try:
        for number in range(count):
            options = ["--join", head] if number else begins
            command = on.command(number, sys.executable, "-m", "jaxpp.tools.run", *options, str(script))
            with (folder / f"host{number}").open("wb") as output:
                child = subprocess.Popen(
                    command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                )
            children.append(child)
            if not number:
                wait_for(lambda: listens(children[0].pid, 9876), 60, shown)
        yield shown
    finally:
        for child in children:
            os.killpg(child.pid, signal.SIGKILL)
        for child in children:
            child.wait(60)


def steps(text: str, processes: int) -> list[float]:
    """When the steps were made that so many processes made."""
    rows = [line.split() for line in text.splitlines() if line.startswith("step ")]
    return [float(row[3]) for row in rows if len(row) == 4 and int(row[2]) == processes]


def test_a_host_vanishes_without_a_word(tmp_path: Path) -> None:
    """It held a copy of the state of the first host; its own state is on the third one."""
    with hosts(3) as on, training(on, tmp_path) as printed:
        wait_for(lambda: len(steps(printed(), 3)) > 5, 120, printed)
        on.cut(1)
        cut = time.time()
        wait_for(lambda: bool(steps(printed(), 2)), 120, printed)
        took = steps(printed(), 2)[0] - cut
        print(f"the first step without the host ends {took:.2f} s after it vanished")
        assert took < WATCHDOG + MORE + SLOW, printed()
        assert f"jaxpp: the launcher at {on.addresses[1]}:" in printed()
        assert "2 of 3 processes go on after step " in printed()
