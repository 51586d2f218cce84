"""Rehearsals of plans whose times follow by hand."""

import dataclasses
import math
import statistics
from typing import Any

import pytest

from jaxpp import schedules as S
from jaxpp.planning import Conditions, PlanError, Rehearsal, rehearse
from jaxpp.planning.numbers import MeshPlan, Numbers
from jaxpp.planning.show_rehearsal import compared

MICROBATCHES = 8
HOP = 0.5


def planned(meshes: int = 4, *, hop: float = 0.0, around: float = 2.0, hidden: float = 0.02, **changes: Any) -> Numbers:
    """Returns the plan of a GPipe whose forwards take 1 ms, and backwards 2 ms.

    Each mesh has eight devices: products take half of its time, memory and collectives a quarter each.
    """
    schedule = S.make("gpipe", meshes=meshes, microbatches=MICROBATCHES)
    costs = S.Costs(hop=hop, unit="ms")
    step = (S.simulate(schedule, costs).makespan + around) / 1e3
    busy = (3 * MICROBATCHES + around) / 1e3
    mesh = MeshPlan((0,), 8, 1, 1 << 30, 0, 2 << 30, 0, 0, 0, busy, busy / 2, busy / 4, busy / 4, 18, 7.0)
    plan = Numbers(
        name="step",
        target="h100 x 4 x 8",
        chip="h100",
        compilers="none",
        microbatches=MICROBATCHES,
        schedule=str(schedule),
        step_seconds=step,
        hidden_seconds=hidden,
        prepare_seconds=3.0,
        model_flops=0,
        products={},
        meshes=(mesh,) * meshes,
        programs=(),
        hops=(),
        cost_table=costs.table(),
    )
    return dataclasses.replace(plan, **changes)


def test_the_parts_of_a_step() -> None:
    """Messages of GPipe delay a step by two hops for each border of meshes."""
    plan = planned(hop=HOP)
    found = rehearse(plan, Conditions(dispatch=0.0))
    busy, messages = 26.0, 2 * 3 * HOP
    bubble = 3 * 3.0
    expected = {"compute": busy / 2, "memory": busy / 4, "links": busy / 4 + messages, "dispatch": 0, "bubble": bubble}
    assert found.parts == pytest.approx({name: each / 1e3 for name, each in expected.items()})
    assert sum(found.parts.values()) == pytest.approx(plan.step_seconds) == pytest.approx(found.step)
    assert found.bound_by == "compute"
    assert found.overlapped_step == plan.hidden_seconds


def test_dispatch_binds() -> None:
    """A host that issues 18 calls in 180 ms is slower than the devices, also with full overlap."""
    found = rehearse(planned(), Conditions(dispatch=0.01))
    assert found.step == found.overlapped_step == pytest.approx(0.18)
    assert found.bound_by == "dispatch"
    assert sum(found.parts.values()) == pytest.approx(0.18) == found.first["step"]


def test_all_chips_are_slow() -> None:
    plan = planned()
    found = rehearse(plan, Conditions(stragglers=1.0, slowdown=2.0, dispatch=0.0))
    assert len(set(found.steps)) == 1
    assert found.step == pytest.approx(2 * plan.step_seconds)
    assert sum(found.parts.values()) == pytest.approx(plan.step_seconds)


def test_some_chips_are_slow() -> None:
    """A mesh of 8 chips is slow in 1 - 0.9^8 of the steps; one mesh has no other to wait for."""
    plan = planned(1)
    found = rehearse(plan, Conditions(stragglers=0.1, slowdown=3.0, dispatch=0.0))
    slow = 1 - 0.9**8
    assert len(found.steps) == 200
    assert {round(each / plan.step_seconds, 6) for each in found.steps} == {1.0, 3.0}
    deviation = 2 * math.sqrt(slow * (1 - slow) / 200)
    assert found.step / plan.step_seconds == pytest.approx(1 + 2 * slow, abs=4 * deviation)


def test_a_mesh_that_is_slow_for_a_step_delays_the_others() -> None:
    """With several meshes more steps are slow, by less than the slowdown, as the others keep their speed."""
    plan = planned(around=0.0)
    found = rehearse(plan, Conditions(stragglers=0.01, slowdown=2.0, dispatch=0.0))
    assert min(found.steps) == pytest.approx(plan.step_seconds)
    assert plan.step_seconds < found.step < 2 * plan.step_seconds


def test_steps_spread() -> None:
    plan = planned(1)
    found = rehearse(plan, Conditions(jitter=0.05, dispatch=0.0))
    assert found.step == pytest.approx(plan.step_seconds, rel=4 * 0.05 / math.sqrt(200))
    assert statistics.stdev(found.steps) == pytest.approx(0.05 * plan.step_seconds, rel=0.2)
    assert found.steps == rehearse(plan, Conditions(jitter=0.05, dispatch=0.0)).steps
    assert found.steps != rehearse(plan, Conditions(jitter=0.05, dispatch=0.0, seed=1)).steps


def test_a_plan_without_a_schedule_is_as_slow_as_its_slowest_mesh() -> None:
    plan = planned(schedule="")
    found = rehearse(plan, Conditions(stragglers=1.0, slowdown=2.0, dispatch=0.0))
    assert found.step == pytest.approx(2 * plan.step_seconds)


def test_the_first_results() -> None:
    """Tracing, the longest compilation, and a gibibyte of arguments through the link to the host."""
    plan = planned()
    found = rehearse(plan).first
    expected = {"tracing and passes": 3.0, "compiling": 7.0, "arguments": (1 << 30) / 50e9, "step": plan.step_seconds}
    assert found == pytest.approx(expected)
    assert "tracing and passes" not in rehearse(dataclasses.replace(plan, prepare_seconds=0.0)).first


def test_failures_of_a_job() -> None:
    """Of 32 chips one fails every 100 h. A healed job does not compile again, nor wait for a restart of all."""
    found = rehearse(planned(), Conditions(mtbf=3200, restart=500, heal=50))
    restarted, healed = found.losses["restarted"], found.losses["healed"]
    load = (1 << 30) / 50e9
    assert (restarted.saves.restart, healed.saves.restart) == pytest.approx((510 + load, 53 + load))
    assert restarted.saves.save == healed.saves.save == pytest.approx(load)
    for each in (restarted, healed):
        assert each.saves.interval == pytest.approx(math.sqrt(2 * load * 360_000), rel=0.01)
        assert (each.saves.interval / found.step) % 1 == pytest.approx(0.0, abs=1e-6)
        assert each.expected == each.saves.lost(360_000)
        error = statistics.stdev(each.drawn) / math.sqrt(len(each.drawn))
        assert statistics.fmean(each.drawn) == pytest.approx(each.expected, abs=4 * error)
    assert found.loss == healed.expected < restarted.expected
    given = rehearse(planned(), Conditions(mtbf=3200, checkpoint=20, interval=600)).losses["restarted"].saves
    assert (given.interval, given.save) == pytest.approx((600, 20), rel=1e-3)


def test_money() -> None:
    plan = planned()
    found = rehearse(plan, Conditions(tokens=1000, price=2.5))
    assert (found.chips, found.cost_per_day) == (32, 1920)
    assert found.tokens_per_day(0.5) == pytest.approx(0.5 * 1000 * 86400 / found.step)
    two_devices = dataclasses.replace(plan, chip="tpu7x")
    assert rehearse(two_devices, Conditions(price=2.5)).cost_per_day == 960


def test_as_text() -> None:
    lines = str(rehearse(planned(), Conditions(tokens=1000, price=2.5, mtbf=3200, jitter=0.01))).splitlines()
    assert lines[0] == "rehearsal on 32 chips:"
    parts = "3 s tracing and passes, 7 s compiling, 21.5 ms arguments, 35 ms step"
    assert lines[1] == f"first results: after 10.1 s ({parts})"
    assert lines[2].startswith("a step: 35")
    assert lines[2].endswith(" in 80% of 200 drawn steps; 20 ms with full overlap")
    assert lines[3] == "bound by compute: compute 37%, memory 19%, links 19%, dispatch 0%, bubble 26%"
    assert lines[4] == "a failure: every 4.17 days"
    assert lines[5].split() == (
        "after a failure saves every a save a restart lost drawn tokens a day cost a day cost of 10^9 tokens".split()
    )
    assert [each.split()[0] for each in lines[6:8]] == ["restarted", "healed"]
    assert lines[-1].startswith("Left out: ")
    alone = str(rehearse(planned()))
    assert "no failures: give mtbf=HOURS" in alone
    assert "tokens a day" not in alone


def test_a_job_that_does_not_advance() -> None:
    """A failure comes before each restart ends: all time is lost, and nothing is drawn."""
    found = rehearse(planned(), Conditions(mtbf=0.01, tokens=1000, price=1))
    assert (found.losses["restarted"].expected, found.losses["restarted"].drawn) == (1.0, ())
    restarted = next(line for line in str(found).splitlines() if "restarted" in line)
    assert restarted.split()[-1] == "-"


def compare(**rehearsals: Rehearsal) -> list[str]:
    return compared(rehearsals).splitlines()


def test_does_it_pay() -> None:
    conditions = Conditions(dispatch=0.0)
    fast, slow = (rehearse(planned(2, around=around), conditions) for around in (2.0, 200.0))
    hides, not_hides = (rehearse(planned(1, around=60.0, hidden=hidden), conditions) for hidden in (0.02, 0.08))
    table = compare(pipeline=fast, fsdp=not_hides)
    assert [line.split()[0] for line in table[1:3]] == ["pipeline", "fsdp"]
    assert table[3] == "the pipeline pays"
    assert table[4] == (
        "pipeline is 2.90 times as fast as fsdp, 2.76 times if only the latter has full overlap, 4.20 times if only "
        "the former has"
    )
    assert compare(pipeline=fast, fsdp=hides)[3] == "the pipeline may pay: it depends on what hides"
    slowest = dataclasses.replace(slow, plan=dataclasses.replace(slow.plan, hidden_seconds=0.2))
    assert compare(pipeline=slowest, fsdp=hides)[3] == "the pipeline does not pay"


def test_what_does_not_fit_pays_nothing() -> None:
    pipeline, other = rehearse(planned(2)), rehearse(planned(1))

    def too_large(found: Rehearsal) -> Rehearsal:
        meshes = tuple(dataclasses.replace(mesh, peak_bytes=1 << 40) for mesh in found.plan.meshes)
        return dataclasses.replace(found, plan=dataclasses.replace(found.plan, meshes=meshes))

    table = compare(fsdp=too_large(other), pipeline=pipeline)
    assert [line.split()[0] for line in table[1:3]] == ["pipeline", "fsdp"]
    assert "DOES NOT FIT" in table[2]
    assert table[3:] == ["no other mesh than one of a pipeline fits into the memory"]
    assert compare(fsdp=other, pipeline=too_large(pipeline))[3:] == ["no pipeline fits into the memory"]
    assert compare(pipeline=too_large(pipeline))[2:] == ["nothing fits into the memory"]
    assert compare(pipeline=pipeline)[2:] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mtbf=-5"], "mtbf is -5.0, expected hours, more than 0"),
        (["mtbf=0"], "mtbf is 0.0, expected hours, more than 0"),
        (["price=-2"], "price is -2.0, expected the price of a chip for an hour, at least 0"),
        (["price=much"], "price is 'much', expected the price of a chip for an hour, at least 0"),
        (["price=nan"], "price is nan, expected the price of a chip for an hour, at least 0"),
        (["tokens=inf"], "tokens is inf, expected tokens of a step, at least 0, and at most 1e+15"),
        (["days=inf"], "days is inf, expected days, more than 0, and at most 1e+15"),
        (["interval=1e308"], "interval is 1e+308, expected seconds, more than 0, and at most 1e+15"),
        (["mtbf=1e308"], "mtbf is 1e+308, expected hours, more than 0, and at most 1e+15"),
        (["stragglers=2"], "stragglers is 2.0, expected a probability from 0 to 1"),
        (["slowdown=0.5"], "slowdown is 0.5, expected a factor, at least 1"),
        (["jitter"], "jitter is '', expected a share from 0 to 1"),
        (["interval=0"], "interval is 0.0, expected seconds, more than 0"),
        (["seed=1.5"], "seed is '1.5', expected a whole number, at least 0"),
        (["days=0"], "days is 0.0, expected days, more than 0"),
        (["price=1", "price=2"], "price is given twice, expected one number"),
        (
            ["mtfb=5"],
            "no condition 'mtfb' is known (did you mean mtbf?); there are tokens, price, mtbf, restart, heal, "
            "checkpoint, interval, stragglers, slowdown, jitter, dispatch, days, seed",
        ),
    ],
)
def test_wrong_conditions(words: list[str], message: str) -> None:
    with pytest.raises(PlanError) as raised:
        Conditions.parse(words)
    assert str(raised.value) == f"rehearse: {message}"


def test_conditions() -> None:
    assert Conditions.parse(["tokens=4e6", "mtbf=inf", "seed=7"]) == Conditions(tokens=4e6, seed=7)
    with pytest.raises(PlanError, match=r"^rehearse: tokens is True, expected tokens of a step"):
        Conditions(tokens=True)


def test_a_job_that_is_shorter_than_a_step() -> None:
    message = r"^rehearse: days is 1e-07, which is 8\.64 ms, expected at least a step, which takes 35 ms$"
    with pytest.raises(PlanError, match=message):
        rehearse(planned(), Conditions(days=1e-7))
    assert rehearse(planned(), Conditions(days=1e-6)).step == pytest.approx(0.035)


def test_a_step_that_takes_no_time() -> None:
    with pytest.raises(PlanError, match=r"^rehearse: the step of step takes no time: plan a step that computes$"):
        rehearse(planned(step_seconds=0.0))
