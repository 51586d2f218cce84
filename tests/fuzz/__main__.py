"""`make fuzz`: tries seed after seed in two processes; prints a line for each, and in the end a table of the families.

First come generated steps, then runs of the tools. Exits 1 when one is wrong, or a family has too few steps that were
compared.
"""

import argparse
import math
import multiprocessing
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import conftest  # sets the flags of the tests, which make XLA compile fast, before JAX starts
from fuzz import tool_trial, trial
from fuzz.features import FAMILIES
from fuzz.trial import Outcome

from jaxpp.hlo_passes import base
from jaxpp.hlo_passes.pipelines import VerifyPhases

assert conftest
CONTEXT = multiprocessing.get_context("spawn")
TIMEOUT = 180.0
"""The seconds after which a seed counts as one that never ends."""
SEEDS_EACH = 60
"""The seeds after which a process is replaced: XLA keeps what it compiled."""
ENOUGH = 4
"""From so many cases of a family on, one in `ENOUGH` has to be compared."""


Serve = Callable[[Connection], None]
"""What a process of a worker does: it tries each seed that arrives, and sends what came of it."""


class Worker:
    """A process in which `serve` tries seeds, and which is replaced when it dies or hangs."""

    def __init__(self, serve: "Serve") -> None:
        self._serve = serve
        self.start()

    def start(self) -> None:
        """Start a process."""
        self.connection, child = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=self._serve, args=(child,))
        self.process.start()
        child.close()
        self.left = SEEDS_EACH

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()

    def run(self, seed: int) -> dict[str, Any]:
        """Returns the fields of the outcome of a seed."""
        if not self.left:
            self.stop()
            self.start()
        self.left -= 1
        try:
            self.connection.send(seed)
            if self.connection.poll(TIMEOUT):
                return self.connection.recv()
            problem = f"it did not end within {TIMEOUT:.0f} s"
        except (EOFError, OSError):
            self.process.join(10)
            problem = f"the process died with code {self.process.exitcode}"
        self.stop()
        self.start()
        return {"seed": seed, "wrong": problem}


def tried(serve: Serve, seeds: Iterator[int], seconds: float, name: str) -> list[Outcome]:
    """Returns the outcomes of seeds until the time is up, tried in two processes side by side; `name` repeats one."""
    outcomes, lock, end = list[Outcome](), threading.Lock(), time.monotonic() + seconds

    def work() -> None:
        worker = Worker(serve)
        while time.monotonic() < end:
            with lock:
                seed = next(seeds, None)
            if seed is None:
                break
            outcome = Outcome(**worker.run(seed))
            with lock:
                outcomes.append(outcome)
                print(outcome.line, flush=True)
                if outcome.wrong:
                    print(f"        make fuzz {name}={seed}", flush=True)
        worker.stop()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def table(outcomes: Sequence[Outcome]) -> int:
    """Prints the families of steps and their refusals; returns the exit code."""
    print(f"\n{'family':<18} generated  validated  ran  compared  refused  wrong")
    starved = list[str]()
    for family in (*FAMILIES, ""):
        own = [each for each in outcomes if not family or family in (*each.words, FAMILIES[each.seed % len(FAMILIES)])]
        compared = sum((each.ran or each.validated) and not each.refused and not each.wrong for each in own)
        is_starved = len(own) >= ENOUGH and compared * ENOUGH < len(own)
        starved += [family] * is_starved
        print(_row(family, own, compared) + ("  starved" if is_starved else ""))
    steps = sum(each.steps for each in outcomes)
    print(f"{len(outcomes)} seeds, {steps} steps compared, starved: {', '.join(starved) or 'none'}")
    return _wrong(outcomes, "SEED") or int(bool(starved))


def table_of_runs(outcomes: Sequence[Outcome]) -> int:
    """Prints the families of runs of the tools; returns the exit code."""
    print(f"\n{'runs of the tools':<18} generated  validated  ran  ended well  refused  wrong")
    for family in (*tool_trial.FAMILIES, ""):
        own = [each for each in outcomes if not family or family in each.words]
        print(_row(family, own, sum(each.ran and not each.wrong for each in own)))
    return _wrong(outcomes, "INPUT")


def _row(family: str, own: Sequence[Outcome], good: int) -> str:
    valid, ran, refused, wrong = (
        sum(map(bool, counted))
        for counted in zip(*((each.validated, each.ran, each.refused, each.wrong) for each in own), strict=True)
    ) if own else (0, 0, 0, 0)
    return f"{family or 'all':<18} {len(own):>9} {valid:>10} {ran:>4} {good:>9} {refused:>8} {wrong:>6}"


def _wrong(outcomes: Sequence[Outcome], name: str) -> int:
    """Prints the refusals, and what was wrong; returns the exit code."""
    for words, count in Counter(
        each.refused.rpartition("error: ")[2] for each in outcomes if each.refused
    ).most_common(100):
        print(f"refused {count:>4}: {words[:150]}")
    wrong = [each for each in outcomes if each.wrong]
    for each in wrong:
        print(f"WRONG: make fuzz {name}={each.seed}: {each.wrong}")
    print(f"{len(wrong)} wrong")
    return int(bool(wrong))


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of the generated steps")
    parser.add_argument("--inputs", type=int, default=0, help="how many runs of the tools")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one step alone, in this process")
    parser.add_argument("--input", type=int, help="one run of a tool alone, in this process")
    options = parser.parse_args()
    if options.seed is not None or options.input is not None:
        if options.seed is not None:
            base.STANDING.append(VerifyPhases())
        outcome = trial.run(options.seed) if options.input is None else tool_trial.run(options.input)
        print(outcome.line)
        return int(bool(outcome.wrong))
    first = options.first
    codes = [
        table(tried(trial.serve, iter(range(first, sys.maxsize)), options.seconds, "SEED")),
        table_of_runs(tried(tool_trial.serve, iter(range(first, first + options.inputs)), math.inf, "INPUT")),
    ]
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main())
