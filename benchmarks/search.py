"""Measures how close `S.search` comes to the optimum, and how long it takes.

    python benchmarks/search.py [--seconds 10] [--every 7]
    pip install ortools && python benchmarks/search.py --prove

The gap is value / optimum - 1, over pipelines whose optimum is proven, those of `benchmarks/data/optima.json`;
`library` is the best published schedule for the placement that fits the memory, where one does. `--prove` looks for
the optima that the file lacks, for `--seconds` each; without it the file is all that is needed.
"""

from __future__ import annotations

import inspect
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from shared import parser, show
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
    """A pipeline to schedule; the memory of each mesh is limited, in microbatches.

    Attributes:
        placement: a name of `PLACEMENTS`.
        costs: "unit": all kinds alike; "skewed": I takes longer than F, W less long; "uneven": unit costs, but for a
            light first stage (embedding) and a heavy last one (loss).
        objective: the time that is to be short.
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
        """Returns the key in the file: `v p=4 m=8 memory=2.5 W unit hop=0 makespan split`."""
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
    def limits(self) -> dict[str, Any]:
        """The options of a search."""
        return {"released_at": self.released_at, "objective": self.objective, "split_backward": self.split}

    @property
    def level(self) -> str:
        """The one of `LEVELS` that the memory is at."""
        if self.memory == math.inf:
            return "any"
        reached = (1, self.meshes / 2 + 0.5, self.meshes - 0.5, self.meshes)
        return LEVELS[next(level for level, most in enumerate(reached) if self.memory <= most)]

    def value(self, schedule: S.Schedule) -> float:
        """Returns the value of a schedule; infinite where it keeps too much."""
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
    """Yields small pipelines, the smallest first; with equal times somewhat larger ones can be proven too."""
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
    """Yields the published schedules for the placement of a case, whatever memory they keep."""
    where = case.where
    chunks = where.stages // where.meshes
    offered = {"placement": [where], "chunks": [chunks], "costs": [case.times], "group": range(1, case.meshes + 1)}
    allowed = {"forward", "input_grad", "weight_grad", "backward"} if case.split else {"forward", "backward"}
    for name in S.names():
        known = [option for option in inspect.signature(LIBRARY[name]).parameters if option in offered]
        known = [option for option in known if option != "chunks" or "placement" not in known]
        for values in product(*(cast("Sequence[object]", offered[option]) for option in known)):
            chosen = dict(zip(known, values, strict=True))
            try:
                made = S.make(name, meshes=case.meshes, microbatches=case.microbatches, **chosen)
            except S.ScheduleError:
                continue
            kinds = {task.kind for task in made}
            if made.placement == where and kinds <= allowed and made.slices == 1 and not made.fused:
                yield made


def best_of_library(case: Case) -> S.Schedule | None:
    """Returns the best published schedule that fits the memory; of several the one that stands first in `S.names()`."""
    made: dict[float, S.Schedule] = {}
    for schedule in library(case):
        made.setdefault(case.value(schedule), schedule)
    least = min(made, default=math.inf)
    return made[least] if least < math.inf else None


def prove(wanted: Sequence[Case], seconds: float) -> None:
    """Looks for the optima that the file lacks, and writes down those that are proven."""
    from oracle import optimum

    known = optima()
    for case in tqdm([case for case in wanted if str(case) not in known], desc="prove", unit="case"):
        hint = best_of_library(case)
        found = optimum(
            case.where, case.microbatches, case.times, case.memory, **case.limits, seconds=seconds, hint=hint
        )
        if not found.proven:
            tqdm.write(f"{case}: {found.bound:g} to {found.value:g}")
            continue
        if found.schedule is not None:
            assert math.isclose(case.value(found.schedule), found.value), f"{case}: not what the simulator says"
        assert hint is None or case.value(hint) >= found.value - 1e-9, f"{case}: {hint and hint.name} is better"
        known[str(case)] = found.value
        lines = [f"  {json.dumps(key)}: {known[key]!r}" for key in map(str, cases()) if key in known]
        OPTIMA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def optima() -> dict[str, float]:
    """Returns the optima that are proven, by case."""
    return json.loads(OPTIMA.read_text(encoding="utf-8"))


class Row(NamedTuple):
    """The optimum of a case, and the values of the library and the search; infinite where nothing fits."""

    case: Case
    optimum: float
    library: float
    search: float
    bound: float


def search(case: Case, seconds: float) -> Any:
    """Searches a schedule of a case."""
    known: dict[str, Any] = {"placement": case.where, **case.limits}
    return S.search(case.meshes, case.microbatches, case.times, case.memory, **known, seconds=seconds)


def compare(case: Case, optimum: float, seconds: float) -> Row:
    """Searches, and checks that the schedule fits the memory, and that nothing is better than the optimum."""
    published, found = best_of_library(case), search(case, seconds)
    values = [math.inf if schedule is None else case.value(schedule) for schedule in (published, found)]
    assert values[1] < math.inf, f"{case}: the search keeps too much"
    assert math.isclose(values[1], found.value), f"{case}: the search says {found.value}, the simulator {values[1]}"
    assert min(values) >= optimum - 1e-9, f"{case}: {min(values)} is better than the optimum, {optimum}"
    assert found.lower_bound <= optimum + 1e-9, f"{case}: the bound {found.lower_bound} is above {optimum}"
    return Row(case, optimum, values[0], values[1], found.lower_bound)


def gaps(rows: Sequence[Row]) -> list[str]:
    """Returns the cells of some cases, under `HEADS`."""
    cells = [str(len(rows)), str(sum(row.library < math.inf for row in rows))]
    for values in ([row.library / row.optimum for row in rows], [row.search / row.optimum for row in rows]):
        gap = [value - 1 for value in values if value < math.inf]
        shares = [statistics.median(gap), max(gap), sum(value < 1e-9 for value in gap) / len(gap)] if gap else []
        cells += [*map(percent, shares), *[""] * 3][:3]
    return [*cells, percent(sum(row.search <= row.bound + 1e-9 for row in rows) / len(rows))]


def percent(share: float) -> str:
    """Returns `12.3 %`."""
    return f"{100 * abs(share):.1f} %"


def against_optima(seconds: float, every: int) -> Iterator[list[str]]:
    """Yields the gaps, for each placement and memory limit."""
    known = optima()
    chosen = [case for case in cases() if str(case) in known][::every]
    rows = [compare(case, known[str(case)], seconds) for case in tqdm(chosen, desc="gaps", unit="case")]
    for group in product(PLACEMENTS, LEVELS):
        if found := [row for row in rows if (row.case.placement, row.case.level) == group]:
            yield [*group, *gaps(found)]
    yield ["**all**", "", *gaps(rows)]


def large(seconds: float, every: int) -> Iterator[list[str]]:
    """Yields the values and times of pipelines of real sizes, whose optima are not known."""
    chosen = [
        Case(placement, meshes, microbatches, memory, costs=costs, hop=hop)
        for placement, meshes, microbatches in (("v", 8, 32), ("looped", 8, 32), ("linear", 32, 256))
        for costs, hop in (("unit", 0.0), ("skewed", 0.1))
        for memory in (meshes // 2 + 1, meshes, math.inf)
    ]
    for case in chosen[::every]:
        began = time.perf_counter()
        found = search(case, seconds)
        took, best = time.perf_counter() - began, best_of_library(case)
        published = f"{best.name} {case.value(best):.10g}" if best else "none fits"
        size = f"{case.meshes} x {case.microbatches}, {case.costs}"
        numbers = f"{found.value:.10g}", f"{found.lower_bound:.10g}", f"{took:.1f}"
        yield [case.placement, size, f"{case.memory:g}", published, *numbers]


def main() -> None:
    """Prints the tables."""
    flags = parser(__doc__, every=1)
    flags.add_argument("--seconds", type=float, default=10.0, help="for each search, or each proof")
    flags.add_argument("--prove", action="store_true", help="only look for the optima that the file lacks")
    options = flags.parse_args()
    if options.prove:
        prove(list(cases()), options.seconds)
        return
    show(HEADS, against_optima(options.seconds, options.every), words=2)
    print()
    heads = "placement", "meshes x microbatches, costs", "memory", "library", "search", "its bound", "seconds"
    show(heads, large(options.seconds, options.every), words=2)


if __name__ == "__main__":
    main()
