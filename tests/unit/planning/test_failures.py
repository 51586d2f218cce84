"""Losses by failures: the closed form, the draws, and the best interval."""

import math
import statistics

import pytest

from jaxpp.planning.failures import Saves, best_interval


@pytest.mark.parametrize(
    ("saves", "mean"),
    [
        (Saves(600.0, 10.0, 60.0), 11_000.0),
        (Saves(600.0, 100.0, 900.0), 3_600.0),
        (Saves(50.0, 0.0, 0.0), 300.0),
        (Saves(50.0, 5.0, 500.0), 250.0),  # most restarts fail, too
        (Saves(1e6, 1.0, 1.0), 5e5),  # most failures come before a save
    ],
)
def test_drawn_jobs_lose_what_is_expected(saves: Saves, mean: float) -> None:
    """On average, within four standard errors."""
    jobs = saves.drawn(mean, 2_000 * mean, 40, seed=3)
    error = statistics.stdev(jobs) / math.sqrt(len(jobs))
    assert len(jobs) == 40
    assert statistics.fmean(jobs) == pytest.approx(saves.lost(mean), abs=4 * error)
    assert error < 0.05 * saves.lost(mean)


def test_draws_follow_from_their_seed() -> None:
    saves = Saves(600.0, 10.0, 60.0)
    assert saves.drawn(1e4, 1e6, 3, seed=1) == saves.drawn(1e4, 1e6, 3, seed=1) != saves.drawn(1e4, 1e6, 3, seed=2)


def test_too_many_failures_are_not_drawn() -> None:
    """The jobs are fewer, and then shorter."""
    saves = Saves(1.0, 0.1, 0.1)
    assert len(saves.drawn(1.0, 50_000.0, 200, seed=0)) == 2
    assert len(saves.drawn(1.0, 1e12, 200, seed=0)) == 1


@pytest.mark.parametrize(("mean", "save"), [(11_000.0, 10.0), (1e6, 1.0), (3_600.0, 300.0)])
def test_the_best_interval(mean: float, save: float) -> None:
    """Nothing near it loses clearly less. Where saves are short, it is Young's, and so is the loss."""
    best = best_interval(mean, save)
    least = Saves(best, save, 60.0).lost(mean)
    others = [Saves(best * factor, save, 60.0).lost(mean) for factor in (0.5, 0.8, 1.25, 2.0)]
    assert min(others) > least
    if save < 1e-3 * mean:
        assert best == pytest.approx(math.sqrt(2 * save * mean), rel=0.03)
        assert Saves(best, save, 0.0).lost(mean) == pytest.approx(math.sqrt(2 * save / mean), rel=0.05)


def test_ends_of_the_range() -> None:
    assert best_interval(math.inf, 10.0) == math.inf
    assert best_interval(10.0, 20.0) == 10.0
    assert Saves(math.inf, 0.0, 0.0).lost(math.inf) == 0.0
    assert Saves(90.0, 10.0, 0.0).lost(math.inf) == pytest.approx(0.1)
    assert Saves(90.0, 10.0, 1e6).lost(1.0) == 1.0
