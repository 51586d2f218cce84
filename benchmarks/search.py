"""How close `S.search` comes to the optimum, and how long it takes.

    python benchmarks/search.py [--quick] [--seconds 10] [--prove] [--prove-seconds 60]

The gap is value / optimum - 1, over pipelines whose optimum is proven, those of `benchmarks/data/optima.json`;
`library` is the best published schedule for the placement that fits the memory, where one does. `--prove` looks for
the optima that the file lacks (`pip install ortools`); without it the file is all that is needed. Each case is told on
the standard error as it ends; the tables come last, on the standard output.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any, Final, Literal, cast

from tqdm import tqdm

from jaxpp import schedules as S
from jaxpp.schedules.library import LIBRARY

OPTIMA: Final = Path(__file__).parent / "data" / "optima.json"
PLACEMENTS: Final[dict[str, Callable[[int], S.Placement]]] = {
    "linear": S.Placement.linear,
    "v": lambda meshes: S.Placement.waves(meshes, 2),
    "looped": lambda meshes: S.Placement.looped(meshes, 2),
}

LEVELS: Final = ("1", "up to p/2 + 1/2", "below p", "p", "any")
"""How tight the memory of a mesh is, in microbatches, for p meshes."""

HEADS: Final = (
    *("placement", "memory", "cases", "library fits", "median gap", "worst", "optimal"),
    *("search: median gap", "worst", "optimal", "proven by its bound"),
)


@dataclass(frozen=True)
class Case:
    """A pipeline to schedule.

    Attributes:
        placement: a name of `PLACEMENTS`.
        meshes: how many.
        microbatches: how many.
        memory: the limit of each mesh, in microbatches.
        released_at: when activations are freed.
        costs: "unit": all kinds alike; "skewed": I takes longer than F, W less long; "uneven": a light first stage
            (embedding) and a heavy last one (loss), that is, unit costs but for these.
        hop: between meshes.
        objective: what is to be short.
        split: I and W apart.
    """

    placement: str
    meshes: int
    microbatches: int
    memory: float
    released_at: Literal["W", "B", "half"] = "W"
    costs: str = "unit"
    hop: float = 0.0
    objective: Literal["makespan", "longest_stage"] = "makespan"
    split: bool = True

    def __str__(self) -> str:
        """The key in the file: `v p=4 m=8 memory=2.5 W unit hop=0 makespan split`."""
        numbers = f"p={self.meshes} m={self.microbatches} memory={self.memory:g} {self.released_at}"
        words = f"{self.costs} hop={self.hop:g} {self.objective} {'split' if self.split else 'fused'}"
        return f"{self.placement} {numbers} {words}"

    @property
    def where(self) -> S.Placement:
        """The placement itself."""
        return PLACEMENTS[self.placement](self.meshes)

    @property
    def times(self) -> S.Costs:
        """The costs themselves."""
        if self.costs == "skewed":
            return S.Costs(forward=1, input_grad=1.25, weight_grad=0.75, hop=self.hop)
        if self.costs == "unit":
            return S.Costs(hop=self.hop)
        stages = self.where.stages
        even = self.meshes / stages
        each = [even / 2] + [even] * (stages - 2) + [even * 3 / 2]
        return S.Costs(forward=each, input_grad=each, weight_grad=each, hop=self.hop)

    @property
    def level(self) -> str:
        """The one of `LEVELS` that the memory is at."""
        if self.memory == math.inf:
            return "any"
        reached = (1, self.meshes / 2 + 0.5, self.meshes - 0.5, self.meshes)
        return LEVELS[next(level for level, most in enumerate(reached) if self.memory <= most)]

    def value(self, schedule: S.Schedule) -> float:
        """What the schedule takes; infinite where it keeps too much."""
        report = S.simulate(schedule, self.times)
        fits = max(report.peak_activations(self.released_at)) <= self.memory + 1e-9
        return getattr(report, self.objective) if fits else math.inf


VARIANTS: Final[list[dict[str, Any]]] = [
    {"costs": "skewed"},
    {"released_at": "half"},
    {"costs": "uneven", "hop": 0.1},
    {"objective": "longest_stage"},
    {"costs": "skewed", "released_at": "half", "hop": 0.1},
    {"split": False},
    {"costs": "uneven", "released_at": "half"},
    {"hop": 0.1},
    {"costs": "skewed", "objective": "longest_stage", "hop": 0.1},
]
"""What else may vary: each size and memory limit comes with unit costs and with one or two of these in turn."""


def cases() -> Iterator[Case]:
    """A spread of small pipelines, the smallest first; with equal times somewhat larger ones can be proven too."""
    memories = {2: (1, 1.5, 2, math.inf), 3: (1, 1.5, 2, 3, math.inf), 4: (1, 1.5, 2.5, 3, 4, math.inf)}
    turn = count()
    for meshes, microbatches in ((2, 2), (2, 4), (3, 4), (2, 7), (3, 6), (4, 4), (4, 6), (4, 8)):
        for placement, memory in product(PLACEMENTS, memories[meshes]):
            size = (placement, meshes, microbatches, memory)
            yield Case(*size)
            for _ in range(2 if placement != "linear" and microbatches > 3 else 1):
                yield Case(*size, **VARIANTS[next(turn) % len(VARIANTS)])
    for meshes, microbatches in ((4, 12), (6, 8), (4, 16), (6, 12)):
        for placement, memory in product(("v", "looped"), (meshes // 2 + 1, meshes, math.inf)):
            yield Case(placement, meshes, microbatches, memory)


def library(case: Case) -> Iterator[S.Schedule]:
    """The published schedules for the placement of a case, whatever memory they keep."""
    where = case.where
    chunks = where.stages // where.meshes
    offered = {"placement": [where], "chunks": [chunks], "costs": [case.times], "group": range(1, case.meshes + 1)}
    allowed = {"forward", "input_grad", "weight_grad", "backward"} if case.split else {"forward", "backward"}
    for name in S.names():
        known = [option for option in inspect.signature(LIBRARY[name]).parameters if option in offered]
        known = [option for option in known if option != "chunks" or "placement" not in known]
        for values in product(*(cast("Sequence[object]", offered[option]) for option in known)):
            try:
                made = S.make(
                    name,
                    meshes=case.meshes,
                    microbatches=case.microbatches,
                    **dict(zip(known, values, strict=True)),
                )
            except S.ScheduleError:
                continue
            kinds = {task.kind for task in made}
            if made.placement == where and kinds <= allowed and made.slices == 1 and not made.fused:
                yield made


def best_of_library(case: Case) -> S.Schedule | None:
    """The best published schedule that fits the memory; of several the one that stands first in `S.names()`."""
    made: dict[float, S.Schedule] = {}
    for schedule in library(case):
        made.setdefault(case.value(schedule), schedule)
    least = min(made, default=math.inf)
    return made[least] if least < math.inf else None


def prove(wanted: Sequence[Case], seconds: float) -> None:
    """Look for the optima that the file lacks, and write down those that are proven."""
    from oracle import optimum

    known = optima()
    for case in tqdm([case for case in wanted if str(case) not in known], desc="prove", unit="case"):
        hint = best_of_library(case)
        found = optimum(
            case.where,
            case.microbatches,
            case.times,
            case.memory,
            case.released_at,
            case.objective,
            case.split,
            seconds=seconds,
            hint=hint,
        )
        if not found.proven:
            tqdm.write(f"{case}: {found.bound:g} to {found.value:g}")
            continue
        if found.schedule is not None:
            assert math.isclose(case.value(found.schedule), found.value), f"{case}: not what the simulator says"
        assert hint is None or case.value(hint) >= found.value - 1e-9, f"{case}: {hint and hint.name} is better"
        known[str(case)] = found.value
        keys = [key for key in map(str, cases()) if key in known]
        lines = [f"  {json.dumps(key)}: {known[key]!r}" for key in keys]
        OPTIMA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def optima() -> dict[str, float]:
    """The optima that are proven, by case."""
    return json.loads(OPTIMA.read_text(encoding="utf-8")) if OPTIMA.exists() else {}


@dataclass(frozen=True)
class Row:
    """What became of one case: the optimum, and what the library and the search took; infinite where nothing fits."""

    case: Case
    optimum: float
    library: float
    search: float
    bound: float

    def __str__(self) -> str:
        """`v p=4 m=8 memory=2.5 W unit hop=0 makespan split: optimum 30, library 33, search 30, its bound 30`."""
        values = f"optimum {self.optimum:.10g}, library {self.library:.10g}, search {self.search:.10g}"
        return f"{self.case}: {values}, its bound {self.bound:.10g}"


def compare(case: Case, optimum: float, seconds: float) -> Row:
    """Search, and check that what is found fits the memory, and that nothing is better than the optimum."""
    published = best_of_library(case)
    found = S.search(
        case.meshes,
        case.microbatches,
        case.times,
        case.memory,
        placement=case.where,
        released_at=case.released_at,
        objective=case.objective,
        split_backward=case.split,
        seconds=seconds,
    )
    values = [math.inf if schedule is None else case.value(schedule) for schedule in (published, found)]
    least = optimum - 1e-9
    assert values[1] < math.inf, f"{case}: the search keeps too much"
    assert math.isclose(values[1], found.value), f"{case}: the search says {found.value}, the simulator {values[1]}"
    assert min(values) >= least, f"{case}: {min(values)} is better than the optimum, {optimum}"
    assert found.lower_bound <= optimum + 1e-9, f"{case}: the bound {found.lower_bound} is above {optimum}"
    return Row(case, optimum, values[0], values[1], found.lower_bound)


def gaps(rows: Sequence[Row]) -> list[str]:
    """The cells of some cases, under `HEADS`."""
    cells = [str(len(rows)), str(sum(row.library < math.inf for row in rows))]
    for values in ([row.library / row.optimum for row in rows], [row.search / row.optimum for row in rows]):
        gap = [value - 1 for value in values if value < math.inf]
        shares = [statistics.median(gap), max(gap), sum(value < 1e-9 for value in gap) / len(gap)] if gap else []
        cells += [*map(percent, shares), *[""] * 3][:3]
    return [*cells, percent(sum(row.search <= row.bound + 1e-9 for row in rows) / len(rows))]


def percent(share: float) -> str:
    """`12.3 %`."""
    return f"{100 * abs(share):.1f} %"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first two columns are words."""
    lines = ["| " + " | ".join(row) + " |" for row in (heads, *rows)]
    lines.insert(1, "|" + "|".join(["---"] * 2 + ["---:"] * (len(heads) - 2)) + "|")
    return "\n".join(lines)


def against_optima(quick: bool, seconds: float) -> str:
    """The gaps, for each placement and memory limit."""
    known = optima()
    chosen = [case for case in cases() if str(case) in known][:: 7 if quick else 1]
    rows: list[Row] = []
    for case in tqdm(chosen, desc="gaps", unit="case"):
        rows.append(compare(case, known[str(case)], seconds))
        tqdm.write(str(rows[-1]), file=sys.stderr)
    groups = {(row.case.placement, row.case.level): list[Row]() for row in rows}
    for row in rows:
        groups[row.case.placement, row.case.level].append(row)
    shown = sorted(groups, key=lambda group: (list(PLACEMENTS).index(group[0]), LEVELS.index(group[1])))
    lines = [[*group, *gaps(groups[group])] for group in shown]
    return table(HEADS, [*lines, ["**all**", "", *gaps(rows)]])


def large(quick: bool, seconds: float) -> str:
    """The values and times of pipelines of real sizes, whose optima are not known."""
    sizes = [("v", 8, 32), ("looped", 8, 32)] + [("linear", 32, 256)] * (not quick)
    chosen = [
        Case(placement, meshes, microbatches, memory, costs=costs, hop=hop)
        for placement, meshes, microbatches in sizes
        for costs, hop in (("unit", 0.0), ("skewed", 0.1))
        for memory in (meshes // 2 + 1, meshes, math.inf)
    ]
    lines: list[list[str]] = []
    for case in tqdm(chosen, desc="large", unit="case"):
        began = time.perf_counter()
        found = S.search(case.meshes, case.microbatches, case.times, case.memory, placement=case.where, seconds=seconds)
        took = time.perf_counter() - began
        best = best_of_library(case)
        published = f"{best.name} {case.value(best):.10g}" if best else "none fits"
        numbers = (published, f"{found.value:.10g}", f"{found.lower_bound:.10g}", f"{took:.1f}")
        size = f"{case.meshes} x {case.microbatches}, {case.costs}"
        lines.append([case.placement, size, f"{case.memory:g}", *numbers])
        tqdm.write(", ".join(lines[-1]), file=sys.stderr)
    return table(
        ("placement", "meshes x microbatches, costs", "memory", "library", "search", "its bound", "seconds"), lines
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every seventh case, and nothing of 32 meshes")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each search")
    parser.add_argument("--prove", action="store_true", help="only look for the optima that the file lacks")
    parser.add_argument("--prove-seconds", type=float, default=60.0, metavar="S", help="for each of them")
    options = parser.parse_args()
    if options.prove:
        prove(list(cases()), options.prove_seconds)
        return
    print(against_optima(options.quick, options.seconds))
    print()
    print(large(options.quick, options.seconds))


if __name__ == "__main__":
    main()
