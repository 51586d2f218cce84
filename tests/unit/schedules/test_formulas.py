"""The library and the simulator against the closed formulas and the published figures of the papers."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxpp import schedules as S
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.engine.report import Report
from jaxpp.schedules.library.exchange import exchange_costs

meshes, few = st.integers(1, 8), st.integers(1, 20)
times = st.sampled_from([0.5, 1.0, 1.25, 3.0, 7.75])
hops = st.sampled_from([0.0, 0.1, 0.5, 2.0])
formula = settings(deadline=None, max_examples=25)


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


def run(name: str, p: int, m: int, costs: S.Costs | None = None, **options: object) -> Report:
    return S.simulate(S.make(name, meshes=p, microbatches=m, **options), costs)


@formula
@given(meshes, few, times, times, times, hops)
def test_gpipe(p: int, m: int, f: float, b: float, w: float, c: float) -> None:
    report = run("gpipe", p, m, S.Costs(f, b, w, c))
    assert report.makespan == near((m + p - 1) * (f + b + w) + 2 * (p - 1) * c)
    assert report.peak_activations() == [m] * p


@formula
@given(st.data(), meshes, few)
def test_gpipe_with_costs_per_stage(data: st.DataObject, p: int, m: int) -> None:
    f, b, w = (data.draw(st.lists(times, min_size=p, max_size=p)) for _ in range(3))
    both = [x + y for x, y in zip(b, w, strict=True)]
    makespan = sum(f) + (m - 1) * max(f) + sum(both) + (m - 1) * max(both)
    assert run("gpipe", p, m, S.Costs(f, b, w)).makespan == near(makespan)


@formula
@given(meshes, few, times, times, times, hops)
def test_1f1b_and_eager_1f1b(p: int, m: int, f: float, b: float, w: float, c: float) -> None:
    costs, t = S.Costs(f, b, w, c), f + b + w
    one = run("1f1b", p, m, costs)
    assert one.makespan == near((m + p - 1) * t + c * (2 * (p - 1) + 2 * ((m - 1) * (p - 1) // p)))
    assert one.peak_activations() == [min(m, p - i) for i in range(p)]
    eager = run("eager-1f1b", p, m, costs)
    assert eager.peak_activations() == [min(m, 2 * (p - i) - 1) for i in range(p)]
    if 2 * c <= t:
        assert eager.makespan == near((m + p - 1) * t + 2 * (p - 1) * c)


@formula
@given(st.integers(2, 8), st.integers(1, 4), st.integers(1, 4), times, times, times, st.sampled_from([0.01, 0.1, 0.5]))
def test_interleaved_1f1b_with_hops(p: int, rounds: int, v: int, f: float, b: float, w: float, c: float) -> None:
    # The Zero Bubble paper counts p hops less: for p = v = m = 2 that is below the best of all orders.
    assume(2 * c * v <= min(f, b + w))
    m, t = p * rounds, f + b + w
    report = run("interleaved-1f1b", p, m, S.Costs(f, b, w, c), chunks=v)
    assert report.makespan == near(m * t + (p - 1) * t / v + (2 * v * p - 2) * c)


@formula
@given(meshes, st.integers(1, 4), st.integers(1, 4), times, times, times)
def test_interleaved_1f1b_and_kimi_k2(p: int, rounds: int, v: int, f: float, b: float, w: float) -> None:
    m, costs, t = p * rounds, S.Costs(f, b, w), f + b + w
    for name, extra in (("interleaved-1f1b", 0), ("kimi-k2", 1)):
        report = run(name, p, m, costs, chunks=v)
        assert report.makespan == near(m * t + (p - 1) * t / v)
        peaks = [min(m * v, 2 * (p - i - 1) + (v - 1) * p + 1 + extra) for i in range(p)]
        assert report.peak_activations() == pytest.approx([peak / v for peak in peaks])


@formula
@given(meshes, few, st.integers(1, 4), times, times, times)
def test_looped_bfs(p: int, more: int, v: int, f: float, b: float, w: float) -> None:
    m, t = p + more - 1, f + b + w
    report = run("looped-bfs", p, m, S.Costs(f, b, w), chunks=v)
    assert report.makespan == near(m * t + (p - 1) * t / v)
    assert report.peak_activations() == [m] * p


@formula
@given(meshes, few, times, times, times, hops)
def test_zb_h1_and_zb_h2(p: int, more: int, f: float, b: float, w: float, c: float) -> None:
    # What the papers' figures assume: a weight gradient is the shortest task, and hops hide behind tasks.
    assume(w <= min(f, b) and 2 * c <= w)
    costs, t = S.Costs(f, b, w, c), f + b + w
    one = run("zb-h1", p, p + more, costs)
    assert one.makespan == near((p + more) * t + (p - 1) * (f + b - w + 4 * c))
    assert one.peak_activations() == [p] * p
    m = 2 * p + more - 1
    two = run("zb-h2", p, m, costs)
    assert two.longest_stage == near(m * t + max((p - 1) * (f + b - 2 * w + 2 * c), 0))
    assert two.peak_activations("B") == [2 * (p - i) - 1 for i in range(p)]
    assert two.peak_activations() == [2 * p - 1] * p


@formula
@given(meshes, few, st.integers(0, 8))
def test_zb_h1_with_few_weight_gradients_waiting(p: int, m: int, waiting: int) -> None:
    """Each mesh delays as many as it may, and the bubble goes from two thirds of that of 1F1B to one third."""
    schedule = S.make("zb-h1", meshes=p, microbatches=m, waiting=waiting)
    for stage, order in enumerate(schedule.orders):
        owed, most = 0, 0
        for task in order:
            owed += (task.kind == "input_grad") - (task.kind == "weight_grad")
            most = max(most, owed)
        assert most == min(m, 1 + min(stage, waiting))
    delays = [run("zb-h1", p, m, waiting=number).makespan for number in (0, waiting, p)]
    assert delays == sorted(delays, reverse=True)
    assert delays[-1] == run("zb-h1", p, m).makespan
    if m >= p:
        assert delays[0] == near(3 * m + 2 * (p - 1))


@formula
@given(meshes, few)
def test_zb_v(p: int, more: int) -> None:
    m = 2 * p + more - 1
    report = run("zb-v", p, m)
    assert report.longest_stage == 3 * m
    assert report.peak_activations() == [p] * p


@formula
@given(meshes, few)
def test_stp(p: int, more: int) -> None:
    """Where pairs overlap nothing; all but 3p - i - 1 of the 2m forwards of mesh i are in a pair."""
    m = 2 * p + more - 1
    report = run("stp", p, m)
    assert report.longest_stage == 3 * m + (p - 0.5 if p > 1 else 0)
    assert report.peak_activations() == [p] * p
    pairs = [sum(len(cell) == 2 for cell in row) for row in S.make("stp", meshes=p, microbatches=m).cells]
    assert pairs == [2 * m - 3 * p + i + 1 for i in range(p)]


@formula
@given(st.integers(2, 12), few)
def test_v_half_and_v_min(p: int, more: int) -> None:
    m = 2 * p + more - 1
    half, least = run("v-half", p, m), run("v-min", p, m)
    assert 2 * (half.makespan - 3 * m) == (1 if p == 2 else 3 * p - 4 if p % 2 else 3 * p - 7)
    assert max(half.peak_activations()) == (p + 2) // 2
    assert 2 * (least.makespan - 3 * m) == (4 * p - 5 if p % 3 else 4 * p - 7)
    assert max(least.peak_activations()) == (p + 4) // 3


@formula
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.data())
def test_gis(p: int, rounds: int, v: int, data: st.DataObject) -> None:
    g = data.draw(st.integers(-(-p // 2), p))
    # The longest group has p microbatches: with fewer in all, the pipeline is never full.
    m = g * (rounds + 2)
    report = run("gis", p, m, chunks=v, group=g)
    assert v * (report.makespan - 3 * m) == near(2 * (p - 1) + (p - g) * (v - 1))
    assert max(report.peak_activations()) == pytest.approx((g * (v - 1) + p) / v)


@formula
@given(st.integers(2, 12), st.integers(1, 4), st.integers(2, 4), st.sampled_from([0.25, 2 / 3, 1.0]))
def test_pipe_offload(p: int, rounds: int, v: int, k: float) -> None:
    """In the time of GIS, whatever the number of meshes in as much memory; half of the copies save nearly half."""
    g = -(-p // 2)
    m = g * (rounds + 2)
    plain = run("gis", p, m, chunks=v)
    both = 1.5 * k
    costs = S.Costs(kinds={"offload": both, "reload": both})
    full, half = (run(name, p, m, costs, chunks=v) for name in ("po-f", "po-h"))
    assert full.makespan == near(plain.makespan)
    assert half.makespan == near(plain.makespan)
    assert max(full.peak_activations()) <= (3 if k <= 2 / 3 else 4) / v + 1e-9
    copies = [sum(task.kind == "offload" for task in report.schedule) for report in (half, full)]
    assert 2 * copies[0] <= m * p * v
    assert max(full.peak_activations()) <= max(half.peak_activations()) <= max(plain.peak_activations())
    assert copies[0] <= copies[1]


@formula
@given(st.integers(1, 5), few, times, times, st.sampled_from([1.0, 0.9, 0.75]))
def test_dualpipe(half: int, more: int, f: float, w: float, fused: float) -> None:
    both, backward = fused * (2 * f + w), f + w
    assume(w <= f and both >= 2 * f)
    p = 2 * half
    m = 2 * p + 2 * (more - 1)
    report = run("dualpipe", p, m, S.Costs(f, f, w, fused=fused))
    # Of the meshes in the middle: those at the ends have fewer pairs to save time with.
    idle = sum(bubble.length for bubble in report.bubbles if bubble.mesh == half)
    assert idle == pytest.approx((half - 1) * (both + backward - 3 * w))
    assert report.peak_activations() == [p + 1] * p


@formula
@given(meshes, few, st.integers(1, 4), times, times, times)
def test_seq1f1b(p: int, m: int, n: int, f: float, b: float, w: float) -> None:
    t = f + b + w
    report = run("seq1f1b", p, m, S.Costs(f, b, w), slices=n)
    assert report.makespan == near(m * t + (p - 1) * t / n)
    assert report.peak_activations() == pytest.approx([min(m * n, p - i - 1 + n) / n for i in range(p)])


@pytest.mark.parametrize(("m", "n", "found"), [(4, 4, 15.44), (4, 8, 14.28), (16, 8, 55.47)])
def test_slimpipe(m: int, n: int, found: float) -> None:
    """Attention is three quarters of the time; the makespan is between that of equal slices and of these alone."""
    costs = exchange_costs(4, n, attention=0.75)
    report = S.simulate(S.make("slimpipe", meshes=4, microbatches=m, slices=n), costs)
    assert report.makespan == pytest.approx(found, abs=0.005)
    shares = tuple(0.25 / n + 0.75 * 2 * (number + 1) / n / (n + 1) for number in range(n))
    alone = run("seq1f1b", 4, m, S.Costs(slices=shares), slices=n).makespan
    equal = run("seq1f1b", 4, m, S.Costs(), slices=n).makespan
    assert equal < report.makespan < equal + 0.5 * (alone - equal)
    assert all(peak <= (4 - mesh + n) / n for mesh, peak in enumerate(report.peak_activations()))


def test_a_backward_that_is_lent_takes_nothing_from_the_peak() -> None:
    """Its forward ran on another mesh: it gets what it reads, and gives that back."""
    schedule = S.make("slimpipe", meshes=4, microbatches=3, slices=2)
    assert activations(schedule) == [22, 20, 14, 8]


@formula
@given(meshes, few, st.integers(1, 4), st.integers(1, 3), times, times, times)
def test_seq1f1b_interleaved(p: int, groups: int, n: int, v: int, f: float, b: float, w: float) -> None:
    """Groups of as few microbatches as have a slice for each mesh, of as many slices as there are meshes."""
    n = n * p if n * p <= 8 else p
    t = f + b + w
    report = run("seq1f1b-i", p, groups, S.Costs(f, b, w), slices=n, chunks=v)
    assert report.makespan == near(groups * t + (p - 1) * t / v / n)


@formula
@given(meshes, few, st.integers(1, 4))
def test_seq1f1b_zero_bubble(p: int, more: int, n: int) -> None:
    m = p + more
    report = run("seq1f1b-zb", p, m, S.Costs(1, 1, 1), slices=n)
    assert report.makespan == near(3 * m + (p - 1) / n)
    assert report.peak_activations() == pytest.approx([(p - 1 + n) / n] * p)


@pytest.mark.parametrize("p", [2, 4, 6, 8, 16])
def test_the_two_way_schedules_halve_the_bubble(p: int) -> None:
    equal = S.Costs(forward=1, input_grad=0.5, weight_grad=0.5)
    assert run("chimera", p, p, equal).makespan == 2 * p + p - 2
    assert run("bitpipe", p, p, equal).makespan == 2 * p + (p - 2) / 2
    for v in (2, 4):
        assert run("hanayo", p, p, equal, chunks=v).makespan == 2 * p + (p - 1) * 2 / v


@formula
@given(meshes, few, times, times, times, hops, st.sampled_from(["1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-2p"]))
def test_no_linear_schedule_is_below_the_bound(
    p: int, m: int, f: float, b: float, w: float, c: float, name: str
) -> None:
    report = run(name, p, m, S.Costs(f, b, w, c))
    assert report.makespan >= m * (f + b + w) + (p - 1) * (f + c) - 1e-9


@pytest.mark.parametrize(
    ("name", "options", "makespan", "longest_stage", "peak"),
    [
        ("1f1b", {}, 33, 33, 4),
        ("interleaved-1f1b", {"chunks": 2}, 28.5, 28.5, 5.5),
        ("zb-1p", {}, 27, 27, 4),
        ("zb-2p", {}, 27, 24, 8),
        ("zb-v", {}, 25.5, 24, 4),
        ("v-half", {}, 26.5, 26.5, 3),
        ("v-min", {}, 29.5, 29.5, 2),
        ("interleaved-zb", {"chunks": 4}, 24.75, 24.75, 4),
        ("dualpipe-v", {}, 25.5, 25.5, 4.5),
    ],
)
def test_four_meshes_eight_microbatches(
    name: str, options: dict[str, int], makespan: float, longest_stage: float, peak: float
) -> None:
    report = S.simulate(S.make(name, meshes=4, microbatches=8, **options))
    assert (report.makespan, report.longest_stage, max(report.peak_activations())) == (makespan, longest_stage, peak)


def test_the_two_objectives_and_the_three_conventions_differ() -> None:
    one, two = run("zb-1p", 4, 12), run("zb-2p", 4, 12)
    assert (one.makespan, one.longest_stage, two.makespan, two.longest_stage) == (39, 39, 39, 36)
    assert [max(two.peak_activations(at)) for at in ("W", "B", "half")] == [12, 7, 8]
