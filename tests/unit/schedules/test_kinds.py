"""Kinds: one text for each, what one in place of a built-in kind keeps, and the times that they give."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp import schedules as S
from jaxpp.schedules.builders.steps import in_steps, repeat
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.model.kinds import POOLS, Kind, Need
from jaxpp.schedules.rewrites.fill import fill
from jaxpp.schedules.rewrites.freezing import freeze_ratios
from jaxpp.schedules.rewrites.peers import evict
from jaxpp.schedules.rewrites.tasks import freeze, insert, split_backward, subdivide

names = st.sampled_from(["forward", "backward", "weight_grad", "spill", "all"])
offsets = st.integers(-3, 3)
needs = st.builds(Need, st.lists(names, min_size=1, max_size=3).map(tuple), offsets, st.booleans(), offsets, offsets)
amounts = st.floats(-1e9, 1e9) | st.sampled_from([0, 1, -1])


@settings(deadline=None, max_examples=200)
@given(
    names,
    st.lists(needs | st.builds(Need, st.just(("forward",)), offsets, microbatch=st.just("all")), max_size=3).map(tuple),
    st.lists(st.sampled_from(["compute", "net", "copy_in"]), unique=True).map(tuple),
    st.permutations([("here", 1.5), ("host", 0.0), ("peer", -1)]) | st.dictionaries(st.sampled_from(POOLS), amounts),
    st.booleans(),
    st.sampled_from(["", "activation", "rest", "input"]),
    st.sampled_from(["home", "peer", "any"]),
    st.none() | st.integers(1, 9) | st.floats(1e-9, 1e9) | st.lists(names, min_size=1, max_size=3).map(tuple),
)
def test_a_kind_is_read_as_it_was_written(
    name: str,
    needs: tuple[Need, ...],
    uses: tuple[str, ...],
    moved: "dict[str, float] | list[tuple[str, float]]",
    makes: bool,
    holds: str,
    stands: str,
    time: "float | tuple[str, ...] | None",
) -> None:
    pairs = tuple(dict(moved).items())
    if dict(pairs).get("peer"):
        needs = (Need(("forward",)), *needs)
    kind = Kind(name, needs, uses, pairs, makes, holds, stands, time)
    assert Kind.parse(str(kind)) == kind
    assert all(kind.amount(pool) == amount for pool, amount in pairs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time": "forward"}, "kind 'x': time is of a wrong type, found 'forward'"),
        ({"time": 10**400}, "the time of x must be a positive number, found 1000"),
        ({"amounts": (("here", 10**400),)}, "the memory of x must be a number for each pool, found here 1000"),
        ({"time": ()}, "the time of x must be a positive number, found ()"),
        ({"time": ("inf",)}, "the time of x must be a positive number, found ('inf',)"),
        ({"amounts": (("here", "1"),)}, "kind 'x': amounts is of a wrong type, found (('here', '1'),)"),
        ({"amounts": (("here", 1), ("here", 2))}, "the memory of x must be one number for each pool"),
        ({"uses": "net"}, "kind 'x': uses is of a wrong type, found 'net'"),
        ({"needs": ("forward",)}, "kind 'x': needs is of a wrong type, found ('forward',)"),
        ({"needs": (Need("forward"),)}, "kind 'x': needs is of a wrong type, found (Need("),  # pyright: ignore[reportArgumentType]
        ({"needs": (Need(("forward",), 0.5),)}, "kind 'x': needs is of a wrong type, found (Need("),  # pyright: ignore[reportArgumentType]
        ({"needs": (Need(("Forward",)),)}, "cannot read need 'Forward'"),
        ({"needs": (Need(("forward",), microbatch="all", slice=1),)}, "cannot read need 'forward#all~+1'"),
        ({"name": 3}, "kind 3: name is of a wrong type, found 3"),
    ],
)
def test_what_has_no_text_is_an_error(fields: dict[str, object], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        Kind(**{"name": "x", **fields})  # pyright: ignore[reportArgumentType]
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: forward; time inf", "the time of x must be a positive number, found inf"),
        ("x: forward; time nan", "the time of x must be a positive number, found nan"),
        ("x: forward#all~-1", "cannot read need 'forward#all~-1': #all is all microbatches and slices"),
    ],
)
def test_texts_that_say_nothing(text: str, message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        Kind.parse(text)
    assert str(error.value).startswith(message)


def one_stage(*kinds: str, cells: str) -> S.Schedule:
    rows = "".join(f"kind {kind}\n" for kind in kinds)
    return S.Schedule.parse(f"schedule: x\nplacement: 0\n{rows}mesh 0: {cells}")


def test_what_a_kind_in_place_of_another_does_not_say_stays() -> None:
    schedule = one_stage("offload: forward; uses compute", cells="0F0 0offload0 0reload0 0B0")
    rule = schedule.rules["offload"]
    assert (rule.uses, rule.amount("here"), rule.amount("host")) == (("compute",), -1, 1)
    assert not any(schedule.graph.tasks[number].kind == "offload" for number in schedule.graph.asides)
    assert S.Schedule.parse(str(schedule)) == schedule

    schedule = one_stage("forward: forward@-1; uses compute net", cells="0F0 0F1 0B0 0B1")
    assert S.simulate(schedule).peak_activations() == [2]
    assert schedule.rules["forward"].uses == ("compute", "net")

    schedule = one_stage("backward: forward; holds input", cells="0F0 0B0")
    assert S.simulate(schedule).makespan == 3
    assert (schedule.rules["backward"].makes, schedule.rules["backward"].holds) == (False, "input")


def test_times_in_a_circle_are_no_times() -> None:
    schedule = one_stage("a: forward; time b", "b: forward; time a", cells="0F0 0a0 0b0 0B0")
    with pytest.raises(S.ScheduleError, match="the costs do not say how long a takes, nor b"):
        S.simulate(schedule)
    assert S.simulate(schedule, S.Costs(kinds={"a": 2})).makespan == 1 + 2 + 2 + 2


def test_rewrites_promise_no_time_for_what_has_none() -> None:
    """Only the order counts where activations are moved; a kind of no known time does not stop that."""
    tick = S.Operation.parse("probe: forward; time tick")
    schedule = insert(S.make("1f1b", meshes=4, microbatches=8), tick, after="forward")
    assert len(list(evict(schedule, limit=3))) > len(list(schedule))
    with pytest.raises(S.ScheduleError, match="the costs do not say how long probe takes, nor tick"):
        S.simulate(schedule)


def test_a_push_takes_the_time_of_its_message() -> None:
    text = "schedule: x\nplacement: 0 1\nkind push: forward@-1; uses net; here -1; peer +1\n"
    schedule = S.Schedule.parse(text + "mesh 0: 0F0 0B0\nmesh 1: 1F0 1push0 1B0")
    costs = S.Costs(activation_bytes=[6.0, 6.0], bandwidth=3.0, hop=0.5)
    start, end = S.simulate(schedule, costs).times(S.Task("push", 1, 0))
    assert end - start == 2.5


def test_copies_of_a_stage_that_recomputes_move_its_input() -> None:
    schedule = S.recompute(S.offload(S.make("1f1b", meshes=3, microbatches=6)), 1)
    costs = S.Costs(activation_bytes=[8.0] * 3, message_bytes=[2.0] * 3, copy_bandwidth=4.0)
    report = S.simulate(schedule, costs)
    copies = [task for task in schedule if task.kind in ("offload", "reload")]
    assert {task.stage for task in copies} == {0, 1}
    for task in copies:
        start, end = report.times(task)
        assert end - start == pytest.approx(2.0 / 4 if task.stage else 8.0 / 4)
    assert report.peak_host_bytes()[1] == 2 * 2.0


@pytest.mark.parametrize(
    "call",
    [
        S.recompute,
        split_backward,
        freeze,
        S.offload,
        evict,
        activations,
        S.simulate,
        partial(subdivide, parts=2),
        partial(repeat, steps=2),
        partial(in_steps, steps=2),
        partial(insert, operation="optimizer", after="backward"),
        partial(fill, operation=S.Operation.parse("side:; time 1")),
        partial(freeze_ratios, budget=0.1),
    ],
)
def test_the_name_of_a_schedule_is_none(call: Callable[[Any], Any]) -> None:
    with pytest.raises(S.ScheduleError, match=r"^schedule must be a Schedule, as .*, found '1f1b'$"):
        call("1f1b")
