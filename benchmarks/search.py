"""How close `S.search` comes to the optimum, and how long it takes.

    python benchmarks/search.py [--quick] [--seconds 10] [--prove] [--prove-seconds 60]

The gap is value / optimum - 1, over pipelines whose optimum is proven, those of `benchmarks/data/optima.json`;
`library` is the best published schedule for the placement that fits the memory, where one does. `--prove` looks for
the optima that the file lacks (`pip install ortools`); without it the file is all that is needed.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
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
        """How tight the memory is, for the tables."""
        if self.memory == math.inf:
            return "any"
        if self.memory == 1:
            return "1"
        return "p" if self.memory >= self.meshes else "<= p/2 + 1/2" if self.memory <= self.meshes / 2 + 0.5 else "< p"

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
    """A spread of small pipelines, the smallest first."""
    memories = {2: (1, 1.5, 2, math.inf), 3: (1, 1.5, 2, 3, math.inf), 4: (1, 1.5, 2.5, 3, 4, math.inf)}
    turn = count()
    for meshes, microbatches in ((2, 2), (2, 4), (3, 4), (2, 7), (3, 6), (4, 4), (4, 6), (4, 8)):
        for placement, memory in product(PLACEMENTS, memories[meshes]):
            size = (placement, meshes, microbatches, memory)
            yield Case(*size)
            for _ in range(2 if placement != "linear" and microbatches > 3 else 1):
                yield Case(*size, **VARIANTS[next(turn) % len(VARIANTS)])


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
    """The best published schedule that fits the memory."""
    made = [schedule for schedule in library(case) if case.value(schedule) < math.inf]
    return min(made, key=case.value, default=None)


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
        lines = [f"  {json.dumps(key)}: {value!r}" for key, value in known.items()]
        OPTIMA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def optima() -> dict[str, float]:
    """The optima that are proven, by case."""
    return json.loads(OPTIMA.read_text(encoding="utf-8")) if OPTIMA.exists() else {}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prove", action="store_true", help="look for optima that the file lacks")
    parser.add_argument("--prove-seconds", type=float, default=60.0, metavar="S", help="for each of them")
    options = parser.parse_args()
    if options.prove:
        prove(list(cases()), options.prove_seconds)


if __name__ == "__main__":
    main()
