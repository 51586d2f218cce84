"""The choice of recomputes and offloads per stage that meets the memory limits and makes the step fastest."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

StageChoices = Mapping[int, "Way"]
"""The `Way` of each stage."""

_MOST_PRODUCTS = 300
"""The number of combinations of the groups' options up to which all are simulated. Of more combinations, the search
changes one group at a time."""
_MOST_PARTS = 6
"""The most parts of one group that choose separately. In a group with more stages, neighbouring stages make the same
choice."""
_MOST_MIXED = 4**_MOST_PARTS
"""The number of combinations of the parts of one group that may be compared. A group with many parts tries fewer levels
for each part."""
_MOST_WRONG = 8
"""The number of combinations that may need more memory than estimated before only proven combinations are taken."""


@dataclass(frozen=True)
class Way:
    """The methods by which a stage keeps less memory.

    Attributes:
        level: how much the stage recomputes: an index of its (bytes, FLOPs) in `Search.levels`, 0 for nothing.
        offload: whether the residuals of the stage are offloaded to the host.
    """

    level: int = 0
    offload: bool = False


@dataclass(frozen=True)
class Search:
    """The search for the `Way` of each stage.

    A group is a set of meshes whose memory depends on the same stages, usually a single mesh. The ladder of a group
    raises the recompute level of one stage at a time, at the fewest FLOPs per byte. A binary search, for all groups at
    once, finds the first choice of each ladder that fits, with offload and without.

    The stages of one group may also choose separately. This is the knapsack of AdaPipe (Sun et al., ASPLOS 2024), over
    combinations whose memory is estimated as a sum over stages. The search then compares the fitting choices by the
    time of the step. With one stage per group the result is optimal, if more recomputation never needs more memory.

    Attributes:
        groups: the meshes and the stages of each group.
        levels: for each stage the choices of what a recompute keeps: (bytes, FLOPs). Bytes fall and FLOPs rise.
        recomputed: the stages that the schedule already recomputes.
        stays: the stages that no choice offloads, because the schedule already does or no path to a host exists.
        limits: the memory limit of each mesh, in bytes.
        peaks: computes the peak bytes of each mesh. The call is slow.
        time: computes the time of the step and, to break ties, the time of its tasks.
        at_least: computes a lower bound of the time of a step. A choice that can't be the fastest is not simulated.
    """

    groups: Sequence[tuple[Sequence[int], Sequence[int]]]
    levels: Mapping[int, Sequence[tuple[int, int]]]
    recomputed: Collection[int]
    stays: Collection[int]
    limits: Sequence[float]
    peaks: Callable[[StageChoices], Sequence[int]]
    time: Callable[[StageChoices], tuple[float, float]]
    at_least: Callable[[StageChoices], float] = lambda _: 0.0

    def run(self) -> StageChoices | None:
        """Returns the choice that takes the least time; None if some mesh is above its limit with every choice."""
        again, moved = ([self._ladder(stages, offload) for _, stages in self.groups] for offload in (False, True))
        least, least_moved = self._least(again), None
        options: list[list[StageChoices]] = []
        for number, ladder in enumerate(again):
            found = [] if (at := least[number]) is None else [ladder[at]]
            if at != 0:
                least_moved = least_moved or self._least(moved)
                if (first := least_moved[number]) is not None:
                    found += moved[number][first :: len(self.groups[number][1])]  # as many steps apart as stages
            options.append(found)
        if not all(options):
            return None
        return self._best(options, [number for number, at in enumerate(least) if at != 0])

    def _best(self, proven: Sequence[Sequence[StageChoices]], tight: Collection[int]) -> StageChoices:
        """Returns the fastest combination of proven and estimated choices that fits.

        After `_MOST_WRONG` combinations that do not fit, it returns the first proven choice of each group.
        """
        options = [list(each) for each in proven]
        several = [number for number in tight if len(self.groups[number][1]) > 1]
        reckoning = _Reckoning.of(self, several)
        for _ in range(_MOST_WRONG):
            for number in several:
                options[number] = [*proven[number], *reckoning.mixed(number)]
            best = self._fastest(options)
            fit = self._fit([best])
            if all(fit):
                return best
            reckoning.wrong += [
                {stage: best[stage] for stage in stages}
                for (_, stages), fits in zip(self.groups, fit, strict=True)
                if not fits
            ]
        return self._joined([each[0] for each in proven])

    def _ladder(self, stages: Sequence[int], offload: bool) -> list[StageChoices]:
        """Returns the choices of a group, from no recomputation to full recomputation."""
        at = dict.fromkeys(stages, 0)
        found: list[StageChoices] = []
        while True:
            found.append({stage: Way(level, offload and stage not in self.stays) for stage, level in at.items()})
            ahead = [stage for stage in stages if at[stage] < self.last(stage)]
            if not ahead:
                return found
            at[min(ahead, key=lambda stage: self._price(stage, at[stage]))] += 1

    def last(self, stage: int) -> int:
        """Returns the level at which a stage recomputes most."""
        return 0 if stage in self.recomputed else len(self.levels[stage]) - 1

    def _price(self, stage: int, level: int) -> float:
        """Returns the additional FLOPs per saved byte, from one level to the next."""
        (size, flops), (less, more) = self.levels[stage][level : level + 2]
        return (more - flops) / max(size - less, 1)

    def _least(self, ladders: Sequence[Sequence[StageChoices]]) -> list[int | None]:
        """Returns for each group the first choice of its ladder that fits; None if even the last does not fit."""
        low, high = [-1] * len(ladders), [len(ladder) - 1 for ladder in ladders]
        last = self._fit([ladder[-1] for ladder in ladders])
        middle = [0] * len(ladders)  # start with no recomputation, which fits for most groups
        while any(high[n] - low[n] > 1 for n, fits in enumerate(last) if fits):
            fit = self._fit([ladder[at] for ladder, at in zip(ladders, middle, strict=True)])
            for n, fits in enumerate(fit):
                low[n], high[n] = (low[n], min(high[n], middle[n])) if fits else (max(low[n], middle[n]), high[n])
            middle = [max(0, (one + other) // 2) for one, other in zip(low, high, strict=True)]
        return [at if fits else None for at, fits in zip(high, last, strict=True)]

    def _fit(self, choices: Sequence[StageChoices]) -> list[bool]:
        peaks = self.peaks(self._joined(choices))
        return [all(peaks[mesh] <= self.limits[mesh] for mesh in meshes) for meshes, _ in self.groups]

    def _fastest(self, options: Sequence[Sequence[StageChoices]]) -> StageChoices:
        """Returns the combination of one option per group that takes the least time."""
        best = [0] * len(options)
        least = self.time(self._joined([each[0] for each in options]))

        def improve(tried: Sequence[int]) -> bool:
            nonlocal best, least
            choice = self._joined([each[at] for each, at in zip(options, tried, strict=True)])
            if self.at_least(choice) > least[0] or (took := self.time(choice)) >= least:
                return False
            best, least = list(tried), took
            return True

        if math.prod(map(len, options)) <= _MOST_PRODUCTS:
            for tried in product(*(range(len(each)) for each in options)):
                improve(tried)
        else:
            changed = True
            while changed:
                changed = False
                for n, each in enumerate(options):
                    for at in range(len(each)):
                        changed |= improve([*best[:n], at, *best[n + 1 :]])
        return self._joined([options[n][number] for n, number in enumerate(best)])

    def _joined(self, choices: Sequence[StageChoices]) -> StageChoices:
        return {stage: way for choice in choices for stage, way in choice.items()}


_Part = tuple[int, ...]
"""Stages of one group that make the same choice."""


@dataclass
class _Reckoning:
    """An estimate of the memory of each mesh, as a sum over the parts of its group.

    Each term is proportional to the bytes that a part keeps. A peak is the maximum over moments, and at each moment the
    memory is linear in those bytes. So a peak is convex, and the line between two measured ends is an upper bound.
    """

    search: Search
    nothing: Sequence[int]
    parts: dict[int, list[_Part]]
    """For each group its parts: single stages, or neighbouring stages together if there are many."""
    slopes: dict[tuple[_Part, bool], list[float]] = field(default_factory=dict[tuple[_Part, bool], list[float]])
    """For each (part, offloaded) the bytes that each mesh needs per byte that the part keeps."""
    moved: dict[_Part, list[int]] = field(default_factory=dict[_Part, list[int]])
    """For each part the bytes that each mesh saves if the part is offloaded."""
    wrong: list[StageChoices] = field(default_factory=list[StageChoices])
    """The choices that did not fit. Choices that save no more in any stage are not tried again."""

    @classmethod
    def of(cls, search: Search, numbers: Sequence[int]) -> "_Reckoning":
        """Measures the parts of some groups, one part of each group at a time."""
        nothing: dict[int, Way] = {stage: Way() for _, stages in search.groups for stage in stages}
        parts = {number: _parts(search.groups[number][1]) for number in numbers}
        made = cls(search, search.peaks(nothing), parts)
        for position in range(max(map(len, parts.values()), default=0)):
            measured = [each[position] for each in parts.values() if position < len(each)]
            stages = [stage for part in measured for stage in part]

            def peaks(again: bool, moved: bool, stages: Sequence[int] = stages) -> Sequence[int]:
                ways = {s: Way(search.last(s) if again else 0, moved and s not in search.stays) for s in stages}
                return search.peaks(nothing | ways)

            again, kept, both = peaks(True, False), peaks(False, True), peaks(True, True)
            for part in measured:
                span = max(sum(search.levels[s][0][0] - search.levels[s][-1][0] for s in part), 1)
                for offload, most, less in ((False, made.nothing, again), (True, kept, both)):
                    made.slopes[part, offload] = [(a - b) / span for a, b in zip(most, less, strict=True)]
                made.moved[part] = [a - b for a, b in zip(made.nothing, kept, strict=True)]
        return made

    def mixed(self, number: int) -> list[StageChoices]:
        """Returns the combinations that fit the meshes of a group by the estimate, without dominated ones."""
        meshes, parts = self.search.groups[number][0], self.parts[number]
        most = max(2, int(_MOST_MIXED ** (1 / len(parts))) // 2)
        found: dict[tuple[bool, ...], list[tuple[float, float, StageChoices]]] = {}
        for ways in product(*(self._ways(part, most) for part in parts)):
            choice = {stage: way for each in ways for stage, way in each.items()}
            fits = all(self._peak(number, mesh, choice) <= self.search.limits[mesh] for mesh in meshes)
            if fits and not any(_does_less(choice, wrong) for wrong in self.wrong):
                levels = {stage: self.search.levels[stage][way.level] for stage, way in choice.items()}
                flops = sum(flops for _, flops in levels.values())
                copied = sum(size for stage, (size, _) in levels.items() if choice[stage].offload)
                found.setdefault(tuple(way.offload for way in choice.values()), []).append((flops, copied, choice))
        return [choice for each in found.values() for choice in _undominated(each)]

    def _ways(self, part: _Part, most: int) -> list[StageChoices]:
        last = {stage: self.search.last(stage) for stage in part}
        count = min(most, max(last.values()) + 1)
        found: list[StageChoices] = []
        for n, offload in product(range(count), (False, True)):
            levels = {stage: round(n * each / max(count - 1, 1)) for stage, each in last.items()}
            ways = {stage: Way(level, offload and stage not in self.search.stays) for stage, level in levels.items()}
            found += [ways] if ways not in found else []
        return found

    def _peak(self, number: int, mesh: int, choice: StageChoices) -> float:
        peak, levels = float(self.nothing[mesh]), self.search.levels
        for part in self.parts[number]:
            less = sum(levels[stage][0][0] - levels[stage][choice[stage].level][0] for stage in part)
            offload = any(choice[stage].offload for stage in part)
            peak -= self.slopes[part, offload][mesh] * less + (self.moved[part][mesh] if offload else 0)
        return peak


def _parts(stages: Sequence[int]) -> list[_Part]:
    count = min(len(stages), _MOST_PARTS)
    ends = [len(stages) * n // count for n in range(count + 1)]
    return [tuple(stages[start:end]) for start, end in pairwise(ends)]


def _does_less(one: StageChoices, other: StageChoices) -> bool:
    """Whether no stage of `one` recomputes or offloads more than in `other`."""
    pairs = [(way, other[stage]) for stage, way in one.items() if stage in other]
    return bool(pairs) and all(a.level <= b.level and a.offload <= b.offload for a, b in pairs)


def _undominated(found: list[tuple[float, float, StageChoices]]) -> Iterator[StageChoices]:
    """Yields the choices for which no other choice has both fewer FLOPs and fewer bytes to copy."""
    fewest = float("inf")
    for _, copied, choice in sorted(found, key=lambda each: each[:2]):
        if copied < fewest:
            yield choice
            fewest = copied
