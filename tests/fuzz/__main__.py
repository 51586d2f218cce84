"""`make fuzz`: tries seed after seed in two processes; prints a line for each, and in the end a table of the families.

Exits 1 when a result is wrong, or a family has too few cases that were compared.
"""

import argparse
import multiprocessing
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import conftest  # sets the flags of the tests, which make XLA compile fast, before JAX starts
from fuzz import trial
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


class Worker:
    """A process that tries seeds, and is replaced when it dies or hangs."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start a process."""
        self.connection, child = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=trial.serve, args=(child,))
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


def tried(seeds: Iterator[int], seconds: float) -> list[Outcome]:
    """Returns the outcomes of seeds until the time is up, tried in two processes side by side."""
    outcomes, lock, end = list[Outcome](), threading.Lock(), time.monotonic() + seconds

    def work() -> None:
        worker = Worker()
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
                    print(f"        make fuzz SEED={seed}", flush=True)
        worker.stop()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def table(outcomes: Sequence[Outcome]) -> int:
    """Print the families and their refusals; returns the exit code."""
    print(f"\n{'family':<18} generated  validated  ran  compared  refused  wrong")
    starved = list[str]()
    for family in (*FAMILIES, ""):
        own = [each for each in outcomes if not family or family in (*each.words, FAMILIES[each.seed % len(FAMILIES)])]
        valid, ran, refused, wrong, compared = (
            sum(map(bool, counted))
            for counted in (
                [each.validated for each in own],
                [each.ran for each in own],
                [each.refused for each in own],
                [each.wrong for each in own],
                [(each.ran or each.validated) and not each.refused and not each.wrong for each in own],
            )
        )
        is_starved = len(own) >= ENOUGH and compared * ENOUGH < len(own)
        starved += [family] * is_starved
        row = f"{family or 'all':<18} {len(own):>9} {valid:>10} {ran:>4} {compared:>9} {refused:>8} {wrong:>6}"
        print(row + ("  starved" if is_starved else ""))
    for words, count in Counter(
        each.refused.rpartition("error: ")[2] for each in outcomes if each.refused
    ).most_common():
        print(f"refused {count:>4}: {words[:150]}")
    wrong = [each for each in outcomes if each.wrong]
    for each in wrong:
        print(f"WRONG: make fuzz SEED={each.seed}: {each.wrong}")
    steps = sum(each.steps for each in outcomes)
    print(f"{len(outcomes)} seeds, {steps} steps compared, {len(wrong)} wrong, starved: {', '.join(starved) or 'none'}")
    return int(bool(wrong or starved))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one seed alone, in this process")
    options = parser.parse_args()
    if options.seed is not None:
        base.STANDING.append(VerifyPhases())
        outcome = trial.run(options.seed)
        print(outcome.line)
        return int(bool(outcome.wrong))
    return table(tried(iter(range(options.first, sys.maxsize)), options.seconds))


if __name__ == "__main__":
    raise SystemExit(main())
