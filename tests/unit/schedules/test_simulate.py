"""The simulator against closed formulas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp import schedules as S

counts = st.integers(1, 8)
times = st.sampled_from([0.5, 1.0, 1.25, 3.0, 7.75])


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(counts, st.integers(1, 20), times, times, times, times)
def test_gpipe_and_1f1b_meet_their_formulas(p: int, m: int, f: float, b: float, w: float, c: float) -> None:
    costs = S.Costs(forward=f, input_grad=b, weight_grad=w, hop=c)
    t = f + b + w
    gpipe = S.simulate(S.gpipe(p, m), costs)
    assert gpipe.makespan == near((m + p - 1) * t + 2 * (p - 1) * c)
    assert gpipe.peak_activations() == [m] * p
    if 2 * (p - 1) * c <= t:
        one = S.simulate(S.one_f_one_b(p, m), costs)
        assert one.makespan == near((m + p - 1) * t + c * (2 * (p - 1) + 2 * ((m - 1) * (p - 1) // p)))
        assert one.peak_activations() == [min(m, p - i) for i in range(p)]


@settings(deadline=None, max_examples=60)
@given(st.data(), counts, st.integers(1, 9))
def test_gpipe_with_a_cost_per_stage(data: st.DataObject, p: int, m: int) -> None:
    f, b, w = (data.draw(st.lists(times, min_size=p, max_size=p)) for _ in range(3))
    both = [x + y for x, y in zip(b, w, strict=True)]
    run = S.simulate(S.gpipe(p, m), S.Costs(forward=f, input_grad=b, weight_grad=w))
    assert run.makespan == near(sum(f) + (m - 1) * max(f) + sum(both) + (m - 1) * max(both))
