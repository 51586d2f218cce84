"""A limit of memory: the program is below it, or the error says which mesh needs how much."""

import re
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end import transformer
from unit.end_to_end.compare import (
    assert_same,
    batch,
    check,
    loss,
    loss_with_callback,
    lowered,
    make_mesh,
    sgd_step,
    step_keywords,
    weights,
)
from unit.end_to_end.test_bad_input import at

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.hlo_passes.program.verify_program import limits_of
from jaxpp.ir.errors import ProgramError
from jaxpp.memory.limit import NOTHING, limit_text
from jaxpp.memory.other_orders import other_orders
from jaxpp.schedules.engine.activations import activations
from jaxpp.schedules.search.stagewise import Search, StageChoices, Way

ARGUMENTS = (transformer.state(3), transformer.batch(4))


def limited(**options: Any) -> Any:
    """The step with a limit, or none, which tests compare theirs with."""
    step = partial(transformer.train_step, schedule=schedules.make("1f1b", meshes=3, microbatches=4))
    return lowered(step, ARGUMENTS, make_mesh(3), **options)


def test_the_cheapest_that_is_below() -> None:
    """A limit just below the peak of one mesh changes the stage of that mesh, and as little as is enough."""
    free = limited().program()
    most = max(free.peak_bytes)
    assert limited(memory_limit=most).program().kept_less == NOTHING
    less = limited(memory_limit=most - 1).program()
    (only,) = less.kept_less["recompute"].split()
    assert re.fullmatch(rf"{free.peak_bytes.index(most)}:[0-9]+B", only)
    assert (less.kept_less["offload"], less.kept_less["evict"]) == ("", "")
    assert max(less.peak_bytes) < most


def test_limits_mesh_by_mesh() -> None:
    least = limited(recompute="inputs").program().peak_bytes
    limit = [(most + few) // 2 for most, few in zip(limited().program().peak_bytes, least, strict=True)]
    found = limited(memory_limit=limit).program()
    assert all(peak <= bound for peak, bound in zip(found.peak_bytes, limit, strict=True))
    assert "0:" in found.kept_less["recompute"]


def own(name: str, meshes: int, microbatches: int) -> schedules.Schedule:
    """A schedule of one's own, whose order is not changed."""
    plan = schedules.make(name, meshes=meshes, microbatches=microbatches)
    return schedules.Schedule.of("mine", plan.placement, plan.cells)


def test_offload_where_recompute_is_not_enough() -> None:
    """On the mesh in the middle even the inputs of all microbatches are more than the limit."""
    plan = partial(sgd_step, schedule=own("gpipe", 3, 16))
    arguments = (weights(3), batch(16))
    limit = [10**6, 2000, 10**6]
    found = lowered(plan, arguments, make_mesh(3), memory_limit=limit).program()
    assert found.kept_less["offload"] == "1"
    assert found.peak_bytes[1] <= 2000
    with pytest.raises(jaxpp.LimitError, match=r"compare\.py:\d+:\d+: error: mesh 1 needs 2,9[0-9]+ bytes"):
        lowered(plan, arguments, make_mesh(3), memory_limit=limit, recompute={1: "inputs"}).program()
    check(plan, arguments, make_mesh(3), memory_limit=limit)
    host = found.peak_host_bytes[1] - 1
    with pytest.raises(jaxpp.LimitError, match=r"mesh 1 needs at least [0-9,]+ bytes on each device, its memory limit"):
        lowered(plan, arguments, make_mesh(3), memory_limit=limit, host_memory_limit=host).program()


def test_another_order_where_that_is_fastest() -> None:
    """All forwards first, with room for half of the activations: nothing is done again, in a library's schedule."""
    plan, arguments = partial(sgd_step, schedule=jaxpp.GPipe(3)), (weights(3), batch(8))
    free = lowered(plan, arguments, make_mesh(3)).program()
    limit = [peak * 4 // 5 for peak in free.peak_bytes]
    found = lowered(plan, arguments, make_mesh(3), memory_limit=limit).program()
    order = found.kept_less["order"]
    assert found.kept_less == {**NOTHING, "order": order}
    assert order == " ".join(map(str, activations(schedules.parse(found.schedule))))
    assert max(map(int, order.split())) <= 6
    assert all(peak <= most for peak, most in zip(found.peak_bytes, limit, strict=True))
    check(partial(sgd_step, schedule=schedules.parse(found.schedule)), arguments, make_mesh(3))


def test_the_orders_of_two_meshes_do_not_depend_on_the_limits() -> None:
    """So what a refusal names is enough: the order that needs so much is found for that limit too."""
    plan = schedules.make("interleaved-1f1b", meshes=2, microbatches=4)
    kept = activations(plan)

    def orders(*over: bool) -> dict[str, list[int]]:
        return {str(each): activations(each) for each in other_orders(plan, over, schedules.Costs())}

    both = orders(True, True)
    assert [2, 2] in both.values()
    for mesh in range(2):
        alone = orders(mesh == 0, mesh == 1)
        assert alone == {order: count for order, count in both.items() if count[mesh] < kept[mesh]}


@pytest.mark.parametrize("name", ["search", "gpipe", "mine"])
def test_an_order_of_the_user_stays_whatever_its_name(name: str) -> None:
    """A name says nothing about who wrote the order, nor does a search: whoever gives what it found chose it."""
    plan = schedules.make("1f1b", meshes=2, microbatches=4)
    written = replace(plan, name=name)
    assert other_orders(plan, [True, True], schedules.Costs())
    assert not other_orders(written, [True, True], schedules.Costs())
    found = schedules.search(2, 4, schedules.Costs(), 4, seconds=0.1)
    assert not other_orders(found, [True, True], schedules.Costs())


def test_the_memory_of_hosts_is_limited() -> None:
    """Also where nothing is chosen: a schedule that offloads more is refused."""
    plan = schedules.offload(schedules.make("gpipe", meshes=2, microbatches=8))
    step, arguments = partial(sgd_step, schedule=plan), (weights(2), batch(8))

    def within(limit: Any) -> Any:
        return lowered(step, arguments, make_mesh(2), host_memory_limit=limit).program()

    peaks = within(None).peak_host_bytes
    assert within(list(peaks)).peak_host_bytes == peaks
    with pytest.raises(jaxpp.LimitError) as found:
        within([peaks[0] - 1, 10**9])
    assert at(str(found.value), sgd_step, "jaxpp.treduce(") == (
        f"mesh 0 needs {peaks[0]:,} bytes of the memory of its host for each device, its host memory limit is "
        f"{peaks[0] - 1:,}\n  offload fewer stages, or compute more again (recompute='inputs'): then less is offloaded"
    )
    assert within("1 GB").peak_host_bytes == peaks
    with pytest.raises(TypeError, match="host_memory_limit is 'much', expected bytes per device"):
        within("much")


def chosen(costs: schedules.Costs, name: str = "gpipe", **limits: int) -> Any:
    """What is done on mesh 0, if the others have room."""
    plan = own(name, 4, 8)
    step, arguments = partial(sgd_step, schedule=plan), (weights(4), batch(8))
    most = lowered(step, arguments, make_mesh(4)).program().peak_bytes[0]
    options: Any = {"memory_limit": [most - 1, *[10**6] * 3], "costs": costs, **limits}
    return lowered(step, arguments, make_mesh(4), **options).program().kept_less


def test_costs_decide() -> None:
    """What is measured of copies and links says what is cheapest."""
    slow = schedules.Costs(copy_bandwidth=1e-3, bandwidth=1e-3)
    to_host, to_peers = replace(slow, copy_bandwidth=1e9), replace(slow, bandwidth=1e9)
    assert chosen(slow)["recompute"].startswith("0:")
    assert chosen(to_host) == {**NOTHING, "offload": "0"}
    assert chosen(to_host, host_memory_limit=1)["recompute"].startswith("0:")
    assert chosen(to_peers, "1f1b") == {**NOTHING, "evict": "0"}
    measured = schedules.Costs(activation_bytes=100.0, kinds={"offload": 1e-6, "reload": 1e-6}, bandwidth=1e-3)
    assert chosen(measured) == {**NOTHING, "offload": "0"}
    with pytest.raises(schedules.ScheduleError, match="expected"):
        chosen(schedules.Costs(forward=[1.0, 1.0]))


@pytest.mark.parametrize("costs", [None, schedules.Costs([1.0, 3.0, 2.0], 2.0, 1.0, copy_bandwidth=50.0, hop=0.5)])
def test_no_step_is_faster_than_what_is_said_of_it_before(
    costs: schedules.Costs | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice is not simulated where its bound says that another one is faster."""
    met: list[tuple[float, float]] = []
    run = Search.run

    def bounded(search: Search) -> StageChoices | None:
        for numbers in product(range(3), repeat=3):
            choice = {s: Way(search.last(s) * n // 2, (n + s) % 2 == 1) for s, n in enumerate(numbers)}
            met.append((search.at_least(choice), search.time(choice)[0]))
        return run(search)

    monkeypatch.setattr(Search, "run", bounded)
    options: Any = {"memory_limit": 100, "costs": costs}
    step = lowered(partial(sgd_step, schedule=own("1f1b", 3, 4)), (weights(3), batch(4)), make_mesh(3), **options)
    with pytest.raises(jaxpp.LimitError):
        step.program()
    assert len(met) >= 27
    assert all(0 < bound <= took for bound, took in met)
    assert any(bound > 0.5 * took for bound, took in met)


def test_what_are_no_costs() -> None:
    with pytest.raises(TypeError, match=r"costs: expected jaxpp.schedules.Costs, found str; Costs.load reads a file"):
        jaxpp.mpmd_jit_with_loop(sgd_step, make_mesh(2), options=jaxpp.StepOptions(costs=cast(Any, "costs.toml")))
    for limits in ({}, {"host_memory_limit": 10**6}, {"memory_limit": 10**6, "recompute": "inputs"}):
        with pytest.raises(ValueError, match="costs: they say what memory_limit chooses: expected a memory_limit, and"):
            jaxpp.mpmd_jit_with_loop(sgd_step, make_mesh(2), **step_keywords({"costs": schedules.Costs(), **limits}))


def needed(compiled: Any) -> list[int]:
    return [each.peak_memory_in_bytes for each in compiled.memory_analysis() if each]


def least_of(error: Any) -> int:
    """The bytes that a refusal says are needed at least."""
    text = at(str(error.value), sgd_step, "jaxpp.treduce(")
    said = re.match(r"mesh \d needs at least ([0-9,]+) bytes on each device, ", text)
    assert said, text
    return int(said[1].replace(",", ""))


def test_temporaries_count_once_they_are_known() -> None:
    """A limit that the program alone is just below, and not its compiled tasks: less is kept, and all of it fits."""
    free = limited()
    plain, program = free.compile(), free.program()
    limit = max(needed(plain)) - 1
    assert limit > max(program.peak_bytes)
    step = limited(memory_limit=limit)
    assert step.program().kept_less["recompute"] == ""
    compiled = step.compile()
    assert max(needed(compiled)) <= limit
    assert_same(compiled(*ARGUMENTS), plain(*ARGUMENTS))
    assert step.program().kept_less["recompute"] != ""


def test_temporaries_that_are_too_much() -> None:
    """What is said to be the least, temporaries included, is enough."""

    def small(**options: Any) -> Any:
        step = partial(sgd_step, schedule=own("gpipe", 2, 4))
        return lowered(step, (weights(2), batch(4)), make_mesh(2), **options)

    alone = max(small(recompute="inputs").program().peak_bytes)
    with pytest.raises(
        jaxpp.LimitError,
        match=r"compare\.py:\d+:\d+: error: mesh \d needs [0-9,]+ bytes on each device, [0-9,]+ of them for temporar",
    ):
        small(recompute="inputs", memory_limit=alone).compile()
    with pytest.raises(jaxpp.LimitError) as found:
        small(memory_limit=alone).compile()
    assert "of them for temporaries of its compiled tasks; its memory limit is " in str(found.value)
    least = least_of(found)
    assert max(needed(small(memory_limit=least).compile())) <= least


def test_what_depends_on_a_side_effect_is_not_made_again() -> None:
    """Stage 0 keeps the result of its callback, or offloads it: no error says that its inputs are not enough."""

    def look_up(x: Any) -> Any:
        return np.asarray(x) * 2

    loss = partial(loss_with_callback, look_up)
    plan = partial(sgd_step, schedule=own("gpipe", 2, 8), loss=loss)
    arguments = (weights(2), batch(8))
    free = lowered(plan, arguments, make_mesh(2)).program()
    for share in (0.8, 0.6):
        limit = [int(free.peak_bytes[0] * share), 10**9]
        found = lowered(plan, arguments, make_mesh(2), memory_limit=limit).program()
        assert found.peak_bytes[0] <= limit[0]
        assert found.kept_less["recompute"] + found.kept_less["offload"]


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_below_the_least_possible(name: str) -> None:
    """What is said is the least: a limit of so much is kept, and one of a byte less is refused in the same words."""
    step = partial(sgd_step, schedule=own(name, 3, 8))
    arguments = (weights(3), batch(8))

    def within(limit: int) -> Any:
        return lowered(step, arguments, make_mesh(3), memory_limit=limit).program()

    with pytest.raises(jaxpp.LimitError) as found:
        within(1000)
    least = least_of(found)
    assert str(found.value).endswith(
        "its memory limit is 1,000\n  give the step smaller microbatches, more devices per stage or more stages, or "
        "donate its state"
    )
    assert max(within(least).peak_bytes) == least
    with pytest.raises(jaxpp.LimitError) as found:
        within(least - 1)
    assert least_of(found) == least
    plan = own(name, 3, 8)
    alone = [
        lowered(partial(sgd_step, schedule=each), arguments, make_mesh(3), recompute=keep).program().peak_bytes
        for each, keep in product((plan, schedules.offload(plan)), (None, "inputs"))
    ]
    assert least <= max(map(min, zip(*alone, strict=True)))  # each mesh has one stage, which it chooses alone


def test_below_the_least_possible_where_nothing_is_kept() -> None:
    def evaluate(params: Any, data: Any) -> Any:
        return jaxpp.treduce(partial(loss, params), data, schedule=jaxpp.GPipe(2), operation=jaxpp.Concat())

    step = jaxpp.mpmd_jit_with_loop(evaluate, mpmd_mesh=make_mesh(2), memory_limit=100)
    with pytest.raises(jaxpp.LimitError, match="needs at least"):
        step.lower(weights(2), batch(2)).program()


def test_what_the_user_says_is_not_changed() -> None:
    with pytest.raises(jaxpp.LimitError, match=r"needs [0-9,]+ bytes on .* 1,000\n  keep less \(recompute='inputs'"):
        limited(memory_limit=1000, recompute="selective").program()


def test_it_is_counted_per_device() -> None:
    """Two devices share the examples of each microbatch."""
    one, two = (
        jaxpp.mpmd_jit_with_loop(
            partial(sgd_step, schedule=schedules.make("gpipe", meshes=2, microbatches=8)),
            mpmd_mesh=make_mesh(2, data=data),
            in_shardings=(P(), P(None, "data")),
        )
        .lower(weights(2), batch(8))
        .program()
        .peak_bytes
        for data in (1, 2)
    )
    assert two[0] < 0.7 * one[0]


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (
            "much",
            TypeError,
            "^memory_limit is 'much', expected bytes per device, such as '70GiB'; units are B, KB, MB, GB, TB, KiB, "
            "MiB, GiB or TiB, with a capital first$",
        ),
        ("1gb", TypeError, "memory_limit is '1gb', expected bytes per device"),
        ("0GB", TypeError, "memory_limit is '0GB', expected bytes per device"),
        (
            "20kB",
            TypeError,
            "memory_limit is '20kB', expected bytes per device, such as '70GiB'; units are B, KB, ",
        ),
        (["1GB", "-1GB"], TypeError, "memory_limit is '-1GB', expected bytes per device"),
        (0, TypeError, "memory_limit is 0, expected bytes per device"),
        (True, TypeError, "memory_limit is True, expected bytes per device"),
        (0.9 * 80e9, TypeError, "memory_limit is 72000000000.0, expected bytes per device"),
        ([1, 2, 3], ValueError, "memory_limit has 3 numbers for 2 meshes, expected one, or one for each"),
    ],
)
def test_what_is_no_limit(limit: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        jaxpp.mpmd_jit_with_loop(sgd_step, mpmd_mesh=make_mesh(2), memory_limit=limit)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("70GiB", str(70 << 30)),
        ("500MB", "500000000"),
        ("4096B", "4096"),
        ("4096", "4096"),
        ("1.5TB", "1500000000000"),
        (["1 KiB", 2000], "1024 2000"),
        (10**30, str(10**30)),
    ],
)
def test_limits_with_units(limit: Any, text: str) -> None:
    assert limit_text(limit, 2) == text
    assert limits_of(text, 1) == [int(text.split()[0])]
    assert limits_of("70GiB 4096", 2) == [70 << 30, 4096]


def test_limits_of_numpy() -> None:
    assert limit_text(np.int64(5), 2) == "5"
    assert limit_text([np.int32(5), 6], 2) == "5 6"


def test_too_few_limits() -> None:
    with pytest.raises(ProgramError, match=r"^2 memory limits for 3 meshes, expected one, or one for each$"):
        limits_of("8 8", 3)
