"""The way of each stage, against all ways of all stages of small pipelines."""

from dataclasses import replace
from functools import cache, partial
from itertools import product
from random import Random

import pytest

from jaxpp import schedules
from jaxpp.schedules.search import stagewise
from jaxpp.schedules.search.stagewise import Search, StageChoices, Way


def problem(seed: int, schedule: str, meshes: int, levels: int) -> Search:
    """Stages with drawn bytes and FLOPs, and limits between the least and the most; a copied byte takes 0.2 to 3."""
    random = Random(seed)
    plan = schedules.make(schedule, meshes=meshes, microbatches=4)
    stages = range(plan.stages)
    homes = [sorted({task.stage for task in row}) for row in plan.orders]
    table = {stage: _levels(random, levels) for stage in stages}
    waiting = {stage: random.randint(2, 4) for stage in stages}
    per_byte = random.choice([0.2, 1.0, 3.0])

    def peaks(choice: StageChoices) -> list[int]:
        each = {s: table[s][way.level][0] * (1 if way.offload else waiting[s]) for s, way in choice.items()}
        return [sum(each[stage] for stage in home) for home in homes]

    def time(choice: StageChoices) -> tuple[float, float]:
        again = tuple(stage for stage in stages if choice[stage].level)
        moved = tuple(stage for stage in stages if choice[stage].offload)
        changed = _changed(plan, again, moved)
        chosen = [table[stage][choice[stage].level] for stage in stages]
        kinds = {"forward": 30.0, "backward": 60.0, "recompute": [max(flops, 0.001) for _, flops in chosen]}
        kinds |= {kind: [per_byte * size for size, _ in chosen] for kind in ("offload", "reload")}
        report = schedules.simulate(changed, schedules.Costs(kinds=kinds))
        return report.makespan, report.busy + sum(per_byte * chosen[stage][0] for stage in moved)

    least = peaks(dict.fromkeys(stages, Way(levels - 1)))
    limits = [
        random.randint(few // 2, most) for few, most in zip(least, peaks(dict.fromkeys(stages, Way())), strict=True)
    ]
    groups = [([mesh], home) for mesh, home in enumerate(homes)]
    return Search(groups, table, (), (), limits, peaks, time)


@cache
def _changed(plan: schedules.Schedule, again: tuple[int, ...], moved: tuple[int, ...]) -> schedules.Schedule:
    changed = schedules.recompute(plan, *again) if again else plan
    return schedules.offload(changed, *moved) if moved else changed


def _levels(random: Random, count: int) -> list[tuple[int, int]]:
    found = [(random.randint(50, 100), 0)]
    while len(found) < count:
        size, flops = found[-1]
        found.append((size - random.randint(1, size // 3), flops + random.randint(1, 40)))
    return found


def best(search: Search) -> tuple[float, float] | None:
    """The least time of all choices that fit."""
    ways = [
        [Way(level, moved) for level in range(len(each)) for moved in (False, True)] for each in search.levels.values()
    ]
    choices = (dict(enumerate(combination)) for combination in product(*ways))
    fitting = (each for each in choices if all(a <= b for a, b in zip(search.peaks(each), search.limits, strict=True)))
    return min(map(search.time, fitting), default=None)


@pytest.mark.parametrize("at_once", [300, 0])
@pytest.mark.parametrize(("schedule", "meshes", "levels"), [("1f1b", 3, 3), ("interleaved-1f1b", 2, 2)])
def test_the_best_of_all(
    schedule: str, meshes: int, levels: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stagewise, "_MOST_PRODUCTS", at_once)
    met = 0
    for seed in range(6):
        search = problem(seed, schedule, meshes, levels)
        found, expected = search.run(), best(search)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            met += 1
            assert all(a <= b for a, b in zip(search.peaks(found), search.limits, strict=True))
            assert search.time(found)[0] == pytest.approx(expected[0], rel=1e-12)
    assert met >= 3


def _nearly(search: Search, choice: StageChoices) -> float:
    return 0.99 * search.time(choice)[0]


def test_what_cannot_be_the_fastest_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is the same as without bounds."""
    for at_once in (300, 0):
        monkeypatch.setattr(stagewise, "_MOST_PRODUCTS", at_once)
        search, asked = problem(1, "interleaved-1f1b", 2, 2), list[StageChoices]()

        def time(
            choice: StageChoices, search: Search = search, asked: list[StageChoices] = asked
        ) -> tuple[float, float]:
            asked.append(choice)
            return search.time(choice)

        plain = replace(search, time=time).run()
        without = len(asked)
        bounded = replace(search, time=time, at_least=partial(_nearly, search)).run()
        assert plain is not None
        assert bounded == plain
        assert len(asked) - without < without


def test_many_stages_of_one_group() -> None:
    """Forty-eight stages on two meshes that share them (`evict`): neighbours go the same way, and little is tried."""
    levels = {stage: [(100, 0), (60, 10), (10, 40)] for stage in range(48)}
    asked: list[StageChoices] = []

    def peaks(choice: StageChoices) -> list[int]:
        asked.append(choice)
        sizes = [0 if way.offload else levels[stage][way.level][0] for stage, way in choice.items()]
        return [sum(sizes[:24]) + 5, sum(sizes[24:])]

    def time(choice: StageChoices) -> tuple[float, float]:
        again = sum(levels[stage][way.level][1] for stage, way in choice.items())
        return float(again + 30 * sum(way.offload for way in choice.values())), 0.0

    search = Search([([0, 1], list(range(48)))], levels, (), (), [1500, 1500], peaks, time)
    found = search.run()
    assert found is not None
    assert max(peaks(found)) <= 1500
    assert len(asked) < 40
    assert time(found) < min(time({**dict.fromkeys(levels, Way(2))}), time(dict.fromkeys(levels, Way(0, True))))


def test_no_more_recompute_than_it_takes() -> None:
    """Each mesh gives up the fewest bytes that are enough; one that has room gives up nothing."""
    levels = {stage: [(100 - 10 * n, n) for n in range(10)] for stage in range(2)}
    for limits, expected in (([1000, 400], [0, 0]), ([360, 400], [1, 0]), ([359, 41], [2, 9])):
        search = Search(
            [([0], [0]), ([1], [1])],
            levels,
            (),
            (),
            limits,
            lambda choice: [4 * levels[stage][way.level][0] for stage, way in sorted(choice.items())],
            lambda choice: (float(sum(way.level + 100 * way.offload for way in choice.values())), 0.0),
        )
        found = search.run()
        assert found == {stage: Way(level) for stage, level in enumerate(expected)}


def test_what_the_schedule_says_is_not_changed() -> None:
    levels = {0: [(100, 0), (10, 5)], 1: [(100, 0), (10, 5)]}
    search = Search(
        [([0], [0]), ([1], [1])],
        levels,
        [1],
        [0],
        [50, 50],
        lambda choice: [0 if choice[n].offload else levels[n][choice[n].level][0] for n in range(2)],
        lambda choice: (0.0, 0.0),
    )
    assert search.run() == {0: Way(1), 1: Way(0, True)}
    assert replace(search, stays=[0, 1]).run() is None
    assert replace(search, recomputed=[0, 1]).run() is None


def test_a_sum_that_is_reckoned_wrong_is_not_taken() -> None:
    """Two stages of a mesh that need more together than each alone: only what is proven to fit is chosen."""
    levels = {stage: [(100, 0), (50, 10), (20, 30)] for stage in range(2)}

    def peaks(choice: StageChoices) -> list[int]:
        sizes = [levels[stage][choice[stage].level][0] for stage in range(2)]
        return [sum(sizes) + (60 if min(sizes) == 50 else 0)]

    def flops(choice: StageChoices) -> float:
        return float(sum(levels[stage][way.level][1] + 1000 * way.offload for stage, way in choice.items()))

    search = Search([([0], [0, 1])], levels, (), (), [130], peaks, lambda choice: (flops(choice), 0.0))
    found = search.run()
    assert found is not None
    assert peaks(found)[0] <= 130
    assert flops(found) == 30
