"""Makespans, peaks and grids of the whole library on random costs are what they have always been.

`numbers.txt` has a line for each schedule: a digest for each of 500 choices of its options and costs. `NUMBERS=500`
checks all of them. If a schedule of the library is meant to change, `python tests/unit/schedules/test_numbers.py NAME`
(with `tests` in PYTHONPATH) writes its line again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest
from unit.schedules.library import Made, made

from jaxpp import schedules as S
from jaxpp.schedules.engine.activations import activations, waiting
from jaxpp.schedules.engine.merged_order import merged_order

DIGESTS = Path(__file__).with_name("numbers.txt")
CASES = 500
CHECKED = int(os.environ.get("NUMBERS", "8"))
TIMES = (0.5, 0.75, 1.0, 1.25, 2.0, 3.0, 7.75)
SMALL = (0.0, 0.0, 0.125, 0.5, 1.5)
BYTES = (1, 2, 3, 8, 64)
COSTS_FOR_ORDER = ("zb-1p", "zb-2p")
"""The schedules whose order follows from the costs."""


def random_costs(choose: Random, found: Made) -> S.Costs:
    """Costs of all kinds of tasks, transfers and bytes, for these stages and meshes."""
    stages, meshes = found.schedule.stages, found.schedule.meshes

    def each(values: tuple[float, ...], count: int) -> Any:
        return choose.choice(values) if choose.random() < 0.5 else [choose.choice(values) for _ in range(count)]

    def pairs(values: tuple[float, ...]) -> Any:
        one = choose.choice(values)
        return one if choose.random() < 0.5 else [[choose.choice(values) for _ in range(meshes)] for _ in range(meshes)]

    several: dict[str, Any] = {}
    if choose.random() < 0.3:
        several["speed"] = each((0.5, 1.0, 2.0), meshes)
    if choose.random() < 0.3:
        several.update(gather=each(SMALL, stages), scatter=each(SMALL, stages))
    if choose.random() < 0.3:
        several["microbatches"] = [choose.choice((0.5, 1.0, 1.5)) for _ in range(found.schedule.microbatches)]
    if choose.random() < 0.5:
        several["fused"] = {"forward+backward": 0.75, "forward+input_grad": 0.5}
    return S.Costs(
        *(each(TIMES, stages) for _ in range(3)),
        hop=pairs(SMALL),
        bandwidth=pairs((1.0, 4.0, 16.0)),
        message_bytes=each(BYTES, stages),
        activation_bytes=each(BYTES, stages),
        weight_grad_bytes=each(BYTES, stages),
        copy_bandwidth=each((1.0, 4.0, 16.0), meshes),
        **several,
    )


def numbers(name: str, case: int) -> Iterator[object]:
    """The grid of one schedule, its order and its peaks, and what the simulator says of it on random costs."""
    choose = Random(f"{name} {case}")
    found = made(name, 6, 9, choose.choice)
    costs = random_costs(choose, found)
    schedule = found.schedule
    if name in COSTS_FOR_ORDER and not costs.microbatches:
        schedule = S.make(name, meshes=found.meshes, microbatches=found.microbatches, costs=costs)
    yield str(schedule)
    yield [f"{mesh}:{task}" for mesh, task in merged_order(schedule)]
    yield from (activations(schedule), waiting(schedule))
    report = S.simulate(schedule, costs)
    times = [report.makespan, report.longest_stage, report.bubble, *report.busy_of_meshes]
    times += [time for rows in (report.start, report.end) for row in rows for time in row.tolist()]
    times += [time for transfer in report.transfers for time in transfer[-2:]]
    times += [bubble.length for bubble in report.bubbles]
    peaks = [peak for at in ("W", "B", "half") for peak in report.peak_activations(at)]
    peaks += [*report.peak_bytes(), *report.peak_host_bytes()]
    yield [f"{number:.9g}" for number in (*times, *peaks)]


def digest(name: str, case: int) -> str:
    text = "\n".join(map(str, numbers(name, case)))
    return blake2b(text.encode(), digest_size=3).hexdigest()


def known() -> dict[str, list[str]]:
    lines = (line.split() for line in DIGESTS.read_text(encoding="utf-8").splitlines())
    return {name: digests for name, *digests in lines}


@pytest.mark.parametrize("name", S.names())
def test_numbers_of_a_schedule_stay(name: str) -> None:
    digests = known()[name]
    wrong = [case for case in range(CHECKED) if digest(name, case) != digests[case]]
    assert not wrong, f"{name}: other numbers than before in cases {wrong[:9]}: see `numbers`"


def write(names: list[str]) -> None:
    """Writes the lines of these schedules."""
    lines = known() if DIGESTS.exists() else {}
    lines.update({name: [digest(name, case) for case in range(CASES)] for name in names})
    DIGESTS.write_text("".join(" ".join([name, *lines[name]]) + "\n" for name in S.names()), encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1:] or list(S.names()))
