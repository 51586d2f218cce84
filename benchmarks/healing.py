"""A training of which one process is killed every 50 steps: is it that of a run in which nothing happened?

    python benchmarks/healing.py [--processes 4] [--steps 500] [--every 50] [--seconds 1]

Runs `examples/healing.py` under `jaxpp-run --least N-1 --prepare`, kills its processes with SIGKILL in turn, and
compares the losses with those of plain `jax.jit` in this process. Each process sleeps for `--seconds` after a step, so
that one that was killed is back before the next kill. Prints how many steps were made again, and the processor time of
a process from the last step before a change to the end of the first one after it.
"""

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxpp

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "healing.py"))
DIFFERENCE = 1e-5
"""Of a loss, relative: other numbers of stages round differently."""


class Made(NamedTuple):
    """A step as one process tells of it.

    processes: how many took part; again: whether it is the first one since processes came or went.
    cpu: seconds of the processor since the step before.
    """

    slot: int
    pid: int
    step: int
    loss: float
    processes: int
    again: bool
    cpu: float


def main() -> int:
    """Train; returns 1 when losses differ, or more than one step was lost at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=50, help="steps from kill to kill")
    parser.add_argument("--seconds", type=float, default=1.0, help="of sleep after a step")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    with tempfile.TemporaryDirectory() as plans:
        made, kills, code = train(options, plans)
    if code:
        print(f"jaxpp-run ended with exit code {code}")
        return 1
    return report(made, kills, options)


def train(options: argparse.Namespace, plans: str) -> tuple[list[Made], int, int]:
    """(what the processes told, how many were killed, the exit code of `jaxpp-run`)"""
    processes = ["--processes", str(options.processes), "--least", str(options.processes - 1), "--prepare"]
    member = [__file__, "member", str(options.steps), str(options.seconds), plans]
    made: list[Made] = []
    kills, pids = 0, dict[int, int]()
    with subprocess.Popen(
        [sys.executable, "-m", "jaxpp.tools.run", *processes, *member], stdout=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout is not None
        for line in training.stdout:
            each = Made(*json.loads(line))
            made.append(each)
            pids[each.slot] = each.pid
            is_due = each.step and each.step % options.every == 0 and kills < each.step // options.every
            if is_due and each.processes == options.processes:
                os.kill(pids[kills % options.processes], signal.SIGKILL)
                kills += 1
    return made, kills, training.returncode


def report(made: list[Made], kills: int, options: argparse.Namespace) -> int:
    """Print what was found; 1 if it is not what was promised."""
    step, state = jax.jit(partial(EXAMPLE["train_step"], options.processes)), EXAMPLE["first_state"]()
    losses: list[float] = []
    for number in range(options.steps):
        state, loss = step(state, EXAMPLE["batch"](number))
        losses.append(float(loss))
    difference = max(abs(each.loss / losses[each.step] - 1) for each in made)
    changes = [(k, each) for k, each in enumerate(made) if each.again]
    costs = [each.cpu for _, each in changes if each.cpu]
    lost = [max((before.step for before in made[:k]), default=-1) - each.step + 1 for k, each in changes]
    counts = [each.processes for each in made]  # lines of one generation come before those of the next
    changed = [count for k, count in enumerate(counts) if not k or counts[k - 1] != count]
    print(f"{options.steps} steps of {options.processes} processes, {kills} kills: one every {options.every} steps")
    print(f"processes: {' '.join(map(str, changed))}")
    print(f"losses {losses[0]:.4f} to {losses[-1]:.4f}; of all that were told, within {difference:.1e} of jax.jit")
    print(f"steps made again after a change, at most: {max(lost)}")
    print(
        f"processor seconds of a change: median {np.median(costs):.2f}, at most {max(costs):.2f} ({len(costs)} of them)"
    )
    return int(difference > DIFFERENCE or max(lost) > 1)


def member(steps: int, seconds: float, plans: str) -> None:
    """One of the processes of `jaxpp-run`."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    slot, is_new, cpu = int(os.environ["JAXPP_RUN_SLOT"]), True, 0.0

    def make_step() -> Any:
        nonlocal is_new
        is_new = True
        return EXAMPLE["make_step"]()

    def on_step(number: int, output: Any) -> None:
        nonlocal is_new, cpu
        loss = float(jaxpp.fetch(output))
        took = time.process_time() - cpu if cpu else 0.0
        print(
            json.dumps(Made(slot, os.getpid(), number, loss, jax.process_count(), is_new, took)) + "\n",
            end="",
            flush=True,
        )
        time.sleep(seconds)
        is_new, cpu = False, time.process_time()

    jaxpp.healing.train(make_step, EXAMPLE["first_state"], EXAMPLE["batch"], steps, on_step=on_step, plans=plans)


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        member(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
