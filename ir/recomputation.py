"""Chooses which values of a computation to keep, and which operations to recompute: for fewest bytes or FLOPs."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxpp.ir.min_cut import UNCUTTABLE, min_cut
from jaxpp.ir.values import closure

# The search may end this close to the optimum, as a share of it: among many equal layers the last 0.1 % takes longest.
_GAP = 1e-3
# The search ends after so many branches, with the best choice that it has found. Their number, unlike the clock, lets
# every process of a job find the same choice.
_MOST_BRANCHES = 2000


@dataclass(frozen=True)
class ValueNode:
    """A value that the later part may need.

    Attributes:
        size: the bytes that it takes to keep it.
        step: the index of the step that makes it; None for a value from outside.
    """

    size: int
    step: int | None = None


@dataclass(frozen=True)
class OpNode:
    """An operation.

    Attributes:
        operands: the indices of the values that it uses, without those that cost nothing to have.
        flops: the FLOPs that it takes to recompute it; None if it must not be recomputed.
    """

    operands: Sequence[int]
    flops: int | None


@dataclass(frozen=True)
class Recomputation:
    """The choice between keeping values and recomputing steps, so that the later part has the `wanted` values.

    Without a limit the choice is a minimum cut, with bytes as the capacities of values. With a limit it contains the
    knapsack problem (AdaPipe, Sun et al., ASPLOS 2024), and is solved as an integer program. It has a variable for
    each value that is kept and each step that is recomputed. Its relaxation is a minimum cut whose steps have a price
    in bytes, so there is little to search.
    """

    values: Sequence[ValueNode]
    steps: Sequence[OpNode]
    wanted: Sequence[int]
    ties: Sequence[tuple[int, int]] = ()
    """Pairs of a value and a step that is not recomputed if the value is kept."""

    def fewest_bytes(self, flops: int | None = None) -> set[int]:
        """Returns the steps to recompute so that the fewest bytes are kept, with at most `flops` FLOPs (None: any)."""
        if flops is None:
            found = self._solve(self._sizes(), self._flops(), np.inf)
        else:
            found = self._within(flops, self.flops, self._sizes(), self._flops())
        return found or set()  # keeping all wanted values takes no FLOPs

    def fewest_flops(self, size: int) -> set[int] | None:
        """Returns the steps to recompute so that at most `size` bytes are kept, with the fewest FLOPs.

        Returns None if no choice keeps so few bytes.
        """
        found = self._within(size, self.kept_bytes, self._flops(), self._sizes())
        least = self.fewest_bytes() if found is None else found
        return least if self.kept_bytes(least) <= size else None

    def cut(self) -> set[int]:
        """Returns the fewest steps to recompute so that the fewest bytes are kept, by a minimum cut.

        Each step is a node, on the early side unless it is recomputed. An edge with the size of a value leads from the
        step that makes it to a node of its own. A tie also holds if the later part does not need its value.
        """
        entry = [0 if value.step is None else 2 + value.step for value in self.values]
        first = 2 + len(self.steps)
        edges = [(entry[number], first + number, value.size) for number, value in enumerate(self.values)]
        edges += [(first + value, 1, UNCUTTABLE) for value in dict.fromkeys(self.wanted)]
        for node, step in enumerate(self.steps, start=2):
            edges += [(first + value, node, UNCUTTABLE) for value in step.operands]
            if step.flops is None:
                edges.append((0, node, UNCUTTABLE))
        edges += [(entry[value], 2 + step, UNCUTTABLE) for value, step in self.ties]
        early = min_cut(edges, first + len(self.values))
        return {step for step in range(len(self.steps)) if 2 + step not in early}

    def kept(self, again: Set[int]) -> list[int]:
        """Returns the values that are kept if the steps `again` are recomputed."""
        used = dict.fromkeys([*self.wanted, *(value for step in sorted(again) for value in self.steps[step].operands)])
        return [value for value in used if self.values[value].step not in again]

    def kept_bytes(self, again: Set[int]) -> int:
        """Returns the bytes that are kept if the steps `again` are recomputed."""
        return sum(self.values[value].size for value in self.kept(again))

    def flops(self, again: Set[int]) -> int:
        """Returns the FLOPs of the steps `again`."""
        return sum(self.steps[step].flops or 0 for step in again)

    def _sizes(self) -> np.ndarray:
        return np.array([*(value.size for value in self.values), *(0 for _ in self.steps)], float)

    def _flops(self) -> np.ndarray:
        return np.array([*(0 for _ in self.values), *(step.flops or 0 for step in self.steps)], float)

    def _within(
        self, limit: int, measured: Callable[[Set[int]], int], costs: np.ndarray, limited: np.ndarray
    ) -> set[int] | None:
        """Solves as `_solve`, but never above the limit, which the solver may exceed by a millionth of the total."""
        allowed = limit
        while (again := self._solve(costs, limited, allowed)) is not None and (above := measured(again) - limit) > 0:
            allowed -= max(above, limit - allowed)  # doubles the distance, which soon exceeds a millionth
        return again

    def _solve(self, costs: np.ndarray, limited: np.ndarray, limit: float) -> set[int] | None:
        """Returns the steps of the cheapest choice with at most `limit` of `limited`.

        Of equally cheap choices, the one with less of `limited` wins.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # here: importing it takes longer than jaxpp-opt
        from scipy.sparse import csr_matrix

        if not len(costs):  # a stage without residuals
            return set()
        rows, least = self._needs()
        total = max(limited.sum(), 1.0)
        if np.isfinite(limit):
            rows.append({n: -cost / total for n, cost in enumerate(limited) if cost})
            least.append(-limit / total)
        count = len(costs)
        numbers = [(row, n, factor) for row, entries in enumerate(rows) for n, factor in entries.items()]
        at, columns, factors = zip(*numbers, strict=True) if numbers else ((), (), ())
        matrix = csr_matrix((factors, (at, columns)), shape=(len(rows), count))
        most: Any = np.array([*(1 for _ in self.values), *(step.flops is not None for step in self.steps)], float)
        lower: Any = np.array(least, float)
        found = milp(
            costs / max(costs.sum(), 1.0) + 1e-6 * limited / total,
            constraints=LinearConstraint(matrix, lower, np.inf),
            bounds=Bounds(0, most),
            integrality=np.ones(count),
            options={"mip_rel_gap": _GAP, "node_limit": _MOST_BRANCHES},
        )
        if found.x is None:
            return None
        again = {n for n in range(len(self.steps)) if found.x[len(self.values) + n] > 0.5}
        return self._needed(again)

    def _needs(self) -> tuple[list[dict[int, float]], list[float]]:
        """Returns the rows of the constraints, and the lower bound of each: a needed value is kept or recomputed."""
        rows: list[dict[int, float]] = []
        least: list[float] = []
        for value in dict.fromkeys(self.wanted):
            rows.append(self._has(value))
            least.append(1)
        for number, step in enumerate(self.steps):
            for value in step.operands:
                rows.append(self._has(value) | {len(self.values) + number: -1})
                least.append(0)
        for value, number in self.ties:
            rows.append({value: -1, len(self.values) + number: -1})
            least.append(-1)
        return rows, least

    def _has(self, value: int) -> dict[int, float]:
        step = self.values[value].step
        return {value: 1.0} if step is None else {value: 1.0, len(self.values) + step: 1.0}

    def _needed(self, again: set[int]) -> set[int]:
        """Returns the steps among `again` whose results are wanted, or used by other such steps."""

        def makers(values: Sequence[int]) -> list[int]:
            return [step for value in values if (step := self.values[value].step) is not None and step in again]

        return set(closure(makers(self.wanted), lambda step: makers(self.steps[step].operands)))
