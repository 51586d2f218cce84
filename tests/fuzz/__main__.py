"""`make fuzz`: tries seed after seed in two processes; prints a line for each, and in the end a table of the families.

First come generated steps, then runs of the tools. Exits 1 when one is wrong, or a family has too few steps that were
compared.
"""

import argparse
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import conftest  # sets the flags of the tests, which make XLA compile fast, before JAX starts
from fuzz import tool_trial, trial
from fuzz.features import FAMILIES
from fuzz.trial import Outcome
from fuzz.worker import Serve, Worker

from jaxpp.hlo_passes import base
from jaxpp.hlo_passes.pipelines import VerifyPhases
from jaxpp.hlo_passes.whole_sums import WholeSumsOfProgram

assert conftest
TIMEOUT = 300.0
"""The seconds after which a seed counts as one that never ends: a step is validated by XLA after every pass."""
ENOUGH = 4
"""From so many cases of a family on, one in `ENOUGH` has to be compared."""


def tried(serve: Serve, seeds: Iterator[int], seconds: float, name: str) -> list[Outcome]:
    """Returns the outcomes of seeds until the time is up, tried in two processes side by side; `name` repeats one."""
    outcomes, lock, end = list[Outcome](), threading.Lock(), time.monotonic() + seconds

    def work() -> None:
        worker = Worker(serve, TIMEOUT)
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
        (
            sum(map(bool, counted))
            for counted in zip(*((each.validated, each.ran, each.refused, each.wrong) for each in own), strict=True)
        )
        if own
        else (0, 0, 0, 0)
    )
    return f"{family or 'all':<18} {len(own):>9} {valid:>10} {ran:>4} {good:>9} {refused:>8} {wrong:>6}"


def _wrong(outcomes: Sequence[Outcome], name: str) -> int:
    """Prints the refusals, and what was wrong; returns the exit code."""
    for words, count in Counter(each.refused.rpartition("error: ")[2] for each in outcomes if each.refused).most_common(
        100
    ):
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
            base.STANDING.extend((VerifyPhases(), WholeSumsOfProgram()))
        outcome = tool_trial.run(options.input) if options.seed is None else trial.run(options.seed)
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
