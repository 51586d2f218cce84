"""Costs: what is refused, and the cost file."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpp import schedules as S
from jaxpp.schedules.model.sequence_cuts import equal_cuts

positive = st.floats(1e-6, 1e6)
per_stage = positive | st.lists(positive, min_size=3, max_size=3)
per_pair = st.floats(0, 1e6) | st.lists(st.lists(st.floats(0, 1e3), min_size=3, max_size=3), min_size=3, max_size=3)
rates = positive | st.just(math.inf) | st.just([[1.0, math.inf], [2.0, 1.0]])


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"forward": 0}, "forward must be a positive number, found 0"),
        ({"input_grad": -1.0}, "input_grad must be a positive number, found -1.0"),
        ({"weight_grad": math.nan}, "weight_grad must be a positive number, found nan"),
        ({"forward": math.inf}, "forward must be a positive number, found inf"),
        ({"forward": "1"}, "forward must be a positive number, found '1'"),
        ({"forward": True}, "forward must be a positive number, found True"),
        ({"forward": np.True_}, f"forward must be a positive number, found {np.True_!r}"),
        ({"forward": None}, "forward must be a positive number, found None"),
        ({"gather": None}, "gather must be 0 or more, found None"),
        ({"scatter": None}, "scatter must be 0 or more, found None"),
        ({"forward": [1, 0]}, "forward of stage 1 must be a positive number, found 0"),
        ({"forward": []}, "forward: expected a number, or one per stage, found none"),
        ({"hop": -1}, "hop must be 0 or more, found -1"),
        ({"hop": [[0, 1], [math.nan, 0]]}, "hop from mesh 1 to mesh 0 must be 0 or more, found nan"),
        ({"hop": [[0, 1], [1]]}, "hop: expected a row and a column per mesh, found row 1 of [1]"),
        ({"hop": [0, 1]}, "hop: expected a row and a column per mesh, found row 0 of 0"),
        ({"bandwidth": 0}, "bandwidth must be a positive number, found 0"),
        ({"activation_bytes": -4}, "activation_bytes must be 0 or more, found -4"),
        ({"copy_bandwidth": math.nan}, "copy_bandwidth must be a positive number, found nan"),
        ({"fused": 0}, "fused must be a positive number, found 0"),
        ({"fused": {"forward": 1}}, "fused: expected pairs of kinds, such as 'forward+backward', found 'forward'"),
        ({"fused": {"forward+backward": -1}}, "fused forward+backward must be a positive number, found -1"),
        ({"speed": [1, 0]}, "speed of mesh 1 must be a positive number, found 0"),
        ({"speed": math.inf}, "speed must be a positive number, found inf"),
        ({"copy_bandwidth": [1, -1]}, "copy_bandwidth of mesh 1 must be a positive number, found -1"),
        ({"microbatches": 3}, "microbatches must be a size for each microbatch, found 3"),
        ({"microbatches": [1, 0]}, "the size of microbatch 1 must be a positive number, found 0"),
        ({"kinds": {"reload": 0}}, "reload must be a positive number, found 0"),
        ({"kinds": [1]}, "kinds must be a table from kind to time, found [1]"),
        ({"slices": (0.5, 0.6)}, "slices must be parts of a microbatch that make 1 together, found (0.5, 0.6)"),
        ({"slices": (1.5, -0.5)}, "the share of slice 1 must be a positive number, found -0.5"),
        (
            {"slices": ((0.5, 0.5), (1, 0, 0))},
            "slices must be parts that make 1 together, as many for each stage, found ((0.5, 0.5), (1, 0, 0))",
        ),
        ({"unit": "h"}, "unit must be one of s, ms, us, units, found 'h'"),
    ],
)
def test_costs_that_are_none(costs: dict[str, object], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.Costs(**costs)  # pyright: ignore[reportArgumentType]  # mistakes
    assert str(error.value) == message


def test_truth_values_and_shares_of_numpy() -> None:
    costs = S.Costs(slices=np.array([0.5, 0.5]))  # pyright: ignore[reportArgumentType]
    assert (costs.slices, S.Costs(slices=np.array([])).slices) == ((0.5, 0.5), ())  # pyright: ignore[reportArgumentType]
    found = S.search(1, 1, split_backward=np.False_, seconds=0.01)  # pyright: ignore[reportArgumentType]
    assert "backward" in {task.kind for task in found}


def test_arrays_are_lists_of_costs() -> None:
    costs = S.Costs(forward=np.array([1.0, 2.0]), hop=np.zeros((2, 2)))  # pyright: ignore[reportArgumentType]  # NumPy
    assert costs == S.Costs(forward=[1, 2], hop=[[0, 0], [0, 0]])


def test_a_scalar_is_for_a_whole_mesh_and_a_list_for_each_stage() -> None:
    looped = S.make("gpipe", meshes=2, microbatches=1, chunks=2)
    assert S.Costs(forward=2.0).at_home("forward", looped) == [1, 1, 1, 1]
    assert S.Costs(forward=[1, 2, 3, 4]).at_home("backward", looped) == [1, 1, 1, 1]
    assert S.Costs(input_grad=[1, 2, 3, 4], weight_grad=1).at_home("backward", looped) == [1.5, 2.5, 3.5, 4.5]
    assert S.Costs(activation_bytes=8, message_bytes=8).bytes("activation_bytes", looped) == [4, 4, 4, 4]
    assert S.Costs(activation_bytes=8, message_bytes=8).bytes("message_bytes", looped) == [8, 8, 8, 8]


def test_the_time_of_a_task_on_a_mesh() -> None:
    """Faster meshes, larger microbatches and copies: each has its factor."""
    schedule = S.parse(
        "schedule: x\nplacement: 0 1\nmesh 0: 0F0 0offload0 0F1 0reload0 0B0 0B1\nmesh 1: 1F0 1B0 1F1 1B1"
    )
    costs = S.Costs(speed=[1, 2], microbatches=(1, 3), activation_bytes=[8, 8], copy_bandwidth=[4, 1])
    assert costs.time(S.Task("forward", 1, 0), 1, schedule) == 0.5
    assert costs.time(S.Task("backward", 1, 1), 1, schedule) == 3.0
    assert costs.time(S.Task("backward", 0, 1), 0, schedule) == 6.0
    assert costs.time(S.Task("offload", 0, 1), 0, schedule) == 6.0
    report = S.simulate(schedule, costs)
    assert report.times(S.Task("offload", 0, 0)) == (1.0, 3.0)
    assert report.times(S.Task("reload", 0, 0)) == (4.0, 6.0)
    assert report.times(S.Task("backward", 0, 0)) == (6.0, 8.0)
    assert report.makespan == 8.5 + 6
    assert report.peak_host_bytes() == [8.0, 0.0]
    assert report.peak_bytes() == [8 + 24, 24]
    for wrong, message in (
        (S.Costs(speed=[1, 2, 3]), "speed: expected a number for each of 2 meshes, found 3"),
        (S.Costs(microbatches=(1, 2, 3)), "microbatches: expected 2 for x, found 3"),
    ):
        with pytest.raises(S.ScheduleError) as error:
            wrong.time(S.Task("forward", 0, 0), 0, schedule)
        assert str(error.value) == message


def test_a_factor_for_each_pair_of_fused_kinds() -> None:
    schedule = S.make("dualpipe-v", meshes=1, microbatches=4, fused=True)
    (cell, *_) = schedule.fused
    alone = sum(S.Costs().time(task, 0, schedule) for task in cell)
    report = S.simulate(schedule, S.Costs(fused={"forward+backward": 0.5, "forward+weight_grad": 7}))
    start, end = report.times(cell[0])
    assert end - start == alone / 2
    costs = S.Costs(fused={"backward+forward": 0.5})
    assert costs.factor(["forward", "input_grad", "backward"]) == pytest.approx(2.5 / 3)


def test_what_only_its_rules_tell() -> None:
    schedule = S.parse("schedule: x\nplacement: 0\nkind both: forward; time forward reload\nmesh 0: 0F0 0both0 0B0")
    assert S.Costs(kinds={"reload": 2.0}).time(S.Task("both", 0, 0), 0, schedule) == 3.0
    with pytest.raises(S.ScheduleError, match="the costs do not say how long both takes, nor forward and reload"):
        S.simulate(schedule)


@settings(deadline=None, max_examples=60)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "forward": per_stage,
            "weight_grad": per_stage,
            "hop": per_pair,
            "bandwidth": rates,
            "message_bytes": per_stage,
            "activation_bytes": per_stage,
            "weight_grad_bytes": per_stage,
            "copy_bandwidth": positive,
            "fused": positive | st.dictionaries(st.sampled_from(["backward+forward", "forward+forward"]), positive),
            "microbatches": st.lists(positive, max_size=3).map(tuple),
            "speed": positive | st.lists(positive, min_size=2, max_size=2),
            "kinds": st.dictionaries(st.sampled_from(["offload", "reload", "evict"]), per_stage),
            "slices": st.just((0.25, 0.75)),
            "unit": st.sampled_from(["s", "ms", "us"]),
        },
    ),
    st.sampled_from(["costs.toml", "costs.json"]),
)
def test_a_cost_file_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object], name: str
) -> None:
    path = tmp_path_factory.mktemp("costs") / name
    costs = S.Costs(**values)  # pyright: ignore[reportArgumentType]  # drawn
    costs.save(path)
    assert S.Costs.load(path) == costs


def test_a_cost_file_is_short(tmp_path: Path) -> None:
    S.Costs(forward=[1, 2], hop=0.5, kinds={"offload": 3}).save(tmp_path / "costs.toml")
    assert (tmp_path / "costs.toml").read_text() == "forward = [1.0, 2.0]\nhop = 0.5\n\n[kinds]\noffload = 3.0\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("costs.toml", "forward = ", "not a cost file: Invalid value (at end of document)"),
        ("costs.json", "{", "not a cost file: Expecting property name enclosed in double quotes"),
        ("costs.json", "[1]", "not a cost file: expected a table of names, found [1]"),
        ("costs.toml", "forwards = 1", "no cost is named 'forwards': there are forward, input_grad"),
        ("costs.toml", "forward = -1", "forward must be a positive number, found -1"),
        ("costs.toml", "forward = nan", "forward must be a positive number, found nan"),
        ("costs.toml", "forward = {a = 1}", "forward must be a positive number, found {'a': 1}"),
        ("costs.toml", "slices = 3", "slices must be parts of a microbatch"),
    ],
)
def test_a_file_that_holds_no_costs(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(S.ScheduleError) as error:
        S.Costs.load(path)
    assert str(error.value).startswith(f"{path}: {message}")


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60), st.sampled_from(["costs.toml", "costs.json"]))
def test_any_bytes_are_costs_or_a_schedule_error(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, name: str
) -> None:
    path = tmp_path_factory.mktemp("costs") / name
    path.write_bytes(text)
    with suppress(S.ScheduleError):
        S.Costs.load(path)


def test_a_full_backward_may_have_a_time_of_its_own() -> None:
    schedule = S.make("1f1b", meshes=1, microbatches=2)
    assert S.simulate(schedule, S.Costs(kinds={"backward": 5.0})).makespan == 12.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": []}, "unit must be one of s, ms, us, units, found []"),
        ({"kinds": {"a b": 1}}, "kinds: expected names in lower case, such as 'offload', found 'a b'"),
        ({"kinds": {3: 2}}, "kinds: expected names in lower case, such as 'offload', found 3"),
    ],
)
def test_wrong_names_in_costs(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        S.Costs(**arguments)
    assert str(error.value) == message


def test_times_beyond_all_numbers() -> None:
    with pytest.raises(S.ScheduleError, match="the costs are too large"):
        S.simulate(S.make("1f1b", meshes=2, microbatches=2), S.Costs(forward=1e308))


@pytest.mark.parametrize(
    ("task", "mesh", "message"),
    [
        (S.Task("tick", 0, 0), 0, "1f1b has no kind 'tick'"),
        (S.Task("forward", 2, 0), 0, "1f1b has no stage 2: there are 2"),
        (S.Task("forward", 0, 4), 0, "1f1b has no microbatch 4: there are 4"),
        (S.Task("forward", 0, 0, 1), 0, "1f1b has no slice 1: there are 1"),
        (S.Task("forward", 0, 0), 2, "1f1b has no mesh 2: there are 2"),
    ],
)
def test_the_time_of_what_is_not_there(task: S.Task, mesh: int, message: str) -> None:
    with pytest.raises(S.ScheduleError, match=message):
        S.Costs(speed=[1, 2]).time(task, mesh, S.make("1f1b", meshes=2, microbatches=4))


def test_a_pair_is_given_once() -> None:
    with pytest.raises(S.ScheduleError, match=r"fused: 'backward\+forward' is given twice"):
        S.Costs(fused={"forward+backward": 0.5, "backward+forward": 0.7})


def test_cuts_of_equal_time() -> None:
    """Where a position costs as much as those before it, n slices end at the square roots of 1/n, 2/n..."""
    attention = [(2 * part + 1) / 16 for part in range(4)]
    lengths = equal_cuts(attention, 4096)
    ends = np.cumsum(lengths) / 4096
    np.testing.assert_allclose(ends**2, [0.25, 0.5, 0.75, 1], atol=1e-3)
    assert equal_cuts(attention, 4096, 2, multiple=512) == [3072, 1024]
    assert equal_cuts([0.25] * 4, 4096) == [1024] * 4
    assert equal_cuts([attention, [0.25] * 4], 4096) == equal_cuts(np.mean([attention, [0.25] * 4], 0), 4096)
    assert equal_cuts(attention, 8, 8) == [1] * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 64), "equal_cuts: shares must be those of several slices, found none"),
        (([0.5, 0.6], 64), "equal_cuts: shares must be parts of a microbatch that make 1 together, found [0.5, 0.6]"),
        (([math.nan, 0.5], 64), "the share of slice 0 must be a positive number, found nan"),
        (([1.0, 0.0], 64), "the share of slice 1 must be a positive number, found 0.0"),
        (([[1.0, 0.0], [1.5, -0.5]], 64), "the share of slice 1 in stage 1 must be 0 or more, found -0.5"),
        (([0.5, 0.5], 64, 0), "equal_cuts: slices must be a whole number of at least 1, found 0"),
        (([0.5, 0.5], 64, 2.0), "equal_cuts: slices must be a whole number of at least 1, found 2.0"),
        (([0.5, 0.5], 64, 2, 0), "equal_cuts: multiple must be a whole number of at least 1, found 0"),
        (
            ([0.5, 0.5], 64.0),
            "equal_cuts: length, for 2 slices of multiples of 1, must be a whole number of at least 2, found 64.0",
        ),
        (
            ([0.25] * 4, 384, None, 128),
            "equal_cuts: length, for 4 slices of multiples of 128, must be a whole number of at least 512, found 384",
        ),
        (
            ([0.5, 0.5], 100, 2, 3),
            "equal_cuts: length must be a multiple of 3, found 100: each slice has a multiple of so many positions",
        ),
    ],
)
def test_cuts_that_are_none(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(S.ScheduleError) as error:
        equal_cuts(*arguments)
    assert str(error.value) == message
