"""Functions of the user's, run as tasks of the schedule."""

# pyright: reportUnknownLambdaType=false

import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.end_to_end.compare import assert_same, batch, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.runtime import bubble_use
from jaxpp.schedules.rewrites.fill import fill
from jaxpp.schedules.rewrites.tasks import insert

LOG = schedules.Operation.parse("log: forward")
ONE_F_ONE_B = schedules.make("1f1b", meshes=3, microbatches=4)


def step_with(
    function: Callable[..., Any], schedule: schedules.Schedule | None = None, **options: Any
) -> tuple[Any, Any, Any]:
    """A step that calls `function` after the forwards of stages 0 and 1; its arguments; what `jax.jit` computes."""
    schedule = schedule or insert(ONE_F_ONE_B, LOG, 0, 1, after="forward")
    step = partial(sgd_step, schedule=schedule)
    arguments = (weights(schedule.stages), batch(schedule.microbatches))
    pipelined = jaxpp.mpmd_jit_with_loop(
        step, mpmd_mesh=make_mesh(schedule.meshes), options=jaxpp.StepOptions(operations={"log": function}), **options
    )
    return pipelined, arguments, jax.jit(step)(*arguments)


def test_each_task_calls_the_function_once_in_the_order_of_its_mesh() -> None:
    seen: list[jaxpp.Task] = []
    step, arguments, expected = step_with(lambda task: seen.append(task))
    assert_same(step(*arguments), expected)
    for stage in range(2):
        assert [task.microbatch for task in seen if task.stage == stage] == [0, 1, 2, 3]
    assert len(seen) == 8
    assert {type(task) for task in seen} == {jaxpp.Task}


def test_a_function_that_asks_for_nothing() -> None:
    calls: list[None] = []
    step, arguments, expected = step_with(lambda: calls.append(None))
    assert_same(step(*arguments), expected)
    assert len(calls) == 8
    text = step.lower(*arguments).program().as_text()
    assert re.search(r"call @log_\d\(\) \{jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0", text)


def test_residuals_are_what_the_backward_reads() -> None:
    """Stage 1 is y = tanh(x @ w): it keeps its input, the output of stage 0, and y or, from JAX 0.12, 1 - y^2."""
    found: dict[tuple[int, int], list[np.ndarray]] = {}

    def keep(task: jaxpp.Task, residuals: list[jax.Array]) -> None:
        found[task.stage, task.microbatch] = [np.array(each) for each in residuals]

    step, arguments, expected = step_with(keep)
    assert_same(step(*arguments), expected)
    params, data = arguments
    for microbatch in range(4):
        x = jnp.tanh(data["x"][microbatch] @ params[0])
        y = jnp.tanh(x @ params[1])
        for wanted in ([x], [y, 1 - y * y]):
            pairs = itertools.product(found[1, microbatch], wanted)
            assert any(np.allclose(each, one, atol=1e-5) for each, one in pairs)


@pytest.mark.parametrize("change", [schedules.recompute, schedules.offload])
def test_residuals_that_are_made_again_or_go_to_the_host(change: Callable[..., Any]) -> None:
    counts: list[int] = []
    schedule = insert(change(ONE_F_ONE_B), LOG, after="forward")
    step, arguments, expected = step_with(lambda residuals: counts.append(len(residuals)), schedule)
    assert_same(step(*arguments), expected)
    assert len(counts) == 12


def test_residuals_of_a_stage_without_a_forward() -> None:
    """Under `jax.grad` nobody needs the last forward: all of it is in the recompute, which reads the stage's input."""
    found: dict[tuple[int, int], list[np.ndarray]] = {}

    def keep(task: jaxpp.Task, residuals: list[jax.Array]) -> None:
        found[task.stage, task.microbatch] = [np.array(each) for each in residuals]

    def gradients(params: Any, data: Any) -> Any:
        return jaxpp.treduce(partial(jax.grad(loss), params), data, schedule=schedule, operation=jaxpp.Add)

    schedule = insert(schedules.recompute(ONE_F_ONE_B), LOG, 2, after="forward")
    params, data = weights(3), batch(4)
    step = jaxpp.mpmd_jit_with_loop(
        gradients, mpmd_mesh=make_mesh(3), options=jaxpp.StepOptions(operations={"log": keep})
    )
    assert_same(step(params, data), jax.jit(gradients)(params, data))
    for microbatch in range(4):
        x = jnp.tanh(jnp.tanh(data["x"][microbatch] @ params[0]) @ params[1])
        (only,) = found[2, microbatch]
        np.testing.assert_allclose(only, x, atol=1e-5)


def test_a_jitted_function_runs_on_the_devices_of_its_mesh() -> None:
    devices: list[Any] = []

    def work() -> jax.Array:
        made = jnp.sum(jnp.ones((8, 8)) @ jnp.ones((8, 8)))
        devices.extend(made.devices())
        return made

    mesh = make_mesh(3)
    step, arguments, expected = step_with(work)
    assert_same(step(*arguments), expected)
    assert set(devices) == {mesh.unstack[number].devices.flat[0] for number in (0, 1)}
    step, arguments, expected = step_with(jax.jit(lambda residuals: sum(jnp.sum(each) for each in residuals)))
    assert_same(step(*arguments), expected)


def test_stages_of_several_devices_and_on_two_meshes() -> None:
    two_ways = schedules.make("dualpipe", meshes=2, microbatches=4)
    seen: list[jaxpp.Task] = []
    schedule = insert(two_ways, LOG, after="forward")
    step, arguments, expected = step_with(lambda task, residuals: seen.append(task), schedule)
    assert_same(step(*arguments), expected)
    assert len({str(task) for task in seen}) == len(seen) == 4 * schedule.stages


def test_traces_costs_and_the_summary_have_it() -> None:
    step, arguments, expected = step_with(lambda: jnp.ones(4) + 1)
    compiled = step.lower(*arguments).compile()
    found, events = compiled.trace(*arguments)
    assert_same(found, expected)
    assert [(each.stage, each.microbatch) for each in events if each.kind == "log" and each.mesh == 1] == [
        (1, microbatch) for microbatch in range(4)
    ]
    costs = compiled.costs(events)
    assert [time > 1e-5 for time in costs.kinds["log"]] == [True, True, False]
    assert schedules.simulate(insert(ONE_F_ONE_B, LOG, 0, after="forward"), costs).makespan > 0
    assert compiled.summary().splitlines()[-1] == "Functions of your own, called by one step: log 8 times."


def test_side_work_fills_bubbles() -> None:
    """As much as fits by the costs of a traced step; the trace tells what share of the bubbles it was."""
    calls: list[None] = []
    plain, arguments, _ = step_with(lambda: None)
    costs = plain.lower(*arguments).compile()
    costs = costs.costs(costs.trace(*arguments)[1])
    forward = min(costs.forward) if isinstance(costs.forward, tuple) else costs.forward
    work = schedules.Operation.parse(f"side:; time {3 * forward:.17g}")
    schedule = fill(ONE_F_ONE_B, work, costs)
    count = sum(task.kind == "side" for task in schedule)
    assert count > 0
    step = jaxpp.mpmd_jit_with_loop(
        partial(sgd_step, schedule=schedule),
        mpmd_mesh=make_mesh(3),
        options=jaxpp.StepOptions(operations={"side": lambda: calls.append(None)}),
    )
    compiled = step.lower(*arguments).compile()
    found, events = compiled.trace(*arguments)
    assert_same(found, jax.jit(partial(sgd_step, schedule=schedule))(*arguments))
    assert len(calls) == count
    use = bubble_use(events, ["side"])
    assert 0 < use.share < 1
    assert use.used == pytest.approx(sum(event.seconds for event in events if event.kind == "side"))
    assert bubble_use(events, []).share == 0
    with pytest.raises(ValueError, match="bubble_use: no task is among the events"):
        bubble_use([], ["side"])


def test_what_it_raises_ends_the_step_and_loses_nothing() -> None:
    broken = [True]

    def save(task: jaxpp.Task) -> None:
        if broken and task == jaxpp.Task("log", 1, 2):
            raise OSError("the disk is full")

    step, (params, data), expected = step_with(save, donate_argnums=0)
    params = step.lower(params, data).compile().executable and [jnp.array(each) for each in params]
    with pytest.raises(OSError, match="the disk is full") as error:
        step(params, data)
    assert error.value.__notes__ == ["jaxpp: in log of stage 1, microbatch 2 on mesh 1"]
    broken.clear()
    assert_same(step(params, data), expected)


def test_a_step_inside_of_its_own_operation_is_refused() -> None:
    def again() -> None:
        step(*arguments)

    step, arguments, _ = step_with(again)
    with pytest.raises(RuntimeError, match="a step was called by one of its own operations"):
        step(*arguments)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_an_optimizer_of_a_stage_is_called_when_the_gradients_of_all_microbatches_are_there(name: str) -> None:
    plain = schedules.make(name, meshes=3, microbatches=4)
    after = "weight_grad" if name == "zb-h1" else "backward"
    schedule = insert(plain, "optimizer", after=after)
    seen: list[jaxpp.Task] = []
    step = partial(sgd_step, schedule=schedule)
    options = jaxpp.StepOptions(operations={"optimizer": seen_by(seen)})
    pipelined = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3), options=options)
    arguments = (weights(3), batch(4))
    compiled = pipelined.lower(*arguments).compile()
    found, events = compiled.trace(*arguments)
    assert_same(found, jax.jit(step)(*arguments))
    assert sorted(seen, key=str) == [jaxpp.Task("optimizer", stage, 0) for stage in range(3)]
    for stage in range(3):
        own = [(event.kind, event.microbatch) for event in events if event.stage == stage and event.target is None]
        assert {(after, microbatch) for microbatch in range(4)} <= set(own[: own.index(("optimizer", 0))])


def seen_by(seen: list[jaxpp.Task]) -> Callable[[jaxpp.Task], None]:
    return lambda task: seen.append(task)


def refusal(schedule: schedules.Schedule, operations: dict[str, Any]) -> str:
    options = jaxpp.StepOptions(operations=operations)
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), mpmd_mesh=make_mesh(3), options=options)
    with pytest.raises(jaxpp.PassError) as error:
        step.lower(weights(3), batch(4)).program()
    place, message = str(error.value).split(" error: ")
    assert re.search(r"compare\.py:\d+:", place)
    return message


def test_a_task_without_a_function() -> None:
    schedule = insert(ONE_F_ONE_B, LOG, 1, after="forward")
    assert refusal(schedule, {}) == (
        "the schedule 1f1b has a task that is bound to no function: log(stage 1, mb 0) on mesh 1\n"
        "  give one to mpmd_jit_with_loop: options=jaxpp.StepOptions(operations={'log': function})"
    )


def test_a_function_without_a_task() -> None:
    assert refusal(ONE_F_ONE_B, {"log": print}) == (
        "there is a function for 'log', the schedule 1f1b has no such task\n"
        "  it has: backward, forward; schedules.rewrites.insert puts tasks into a schedule"
    )


def test_an_optimizer_without_a_function() -> None:
    schedule = insert(ONE_F_ONE_B, "optimizer", after="backward")
    assert refusal(schedule, {}) == (
        "the schedule 1f1b has a task that is bound to no function: optimizer(stage 0, mb 0) on mesh 0\n"
        "  give one to mpmd_jit_with_loop: options=jaxpp.StepOptions(operations={'optimizer': function})"
    )


def test_a_task_that_waits_for_another_mesh_without_a_message() -> None:
    """Behind the forward of stage 1 that of stage 0 is proven to be done; the one of stage 2 is not."""
    down = schedules.Operation.parse("log: forward@-1")
    schedule = insert(ONE_F_ONE_B, down, 1, after="forward")
    assert refusal(schedule, {}).startswith("the schedule 1f1b has a task that is bound to no function")
    options = jaxpp.StepOptions(operations={"log": lambda: None})
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), mpmd_mesh=make_mesh(3), options=options)
    assert "log_1" in step.lower(weights(3), batch(4)).program().as_text()
    up = insert(ONE_F_ONE_B, schedules.Operation.parse("log: forward@+1"), 1, after="forward")
    assert refusal(up, {"log": lambda: None}) == (
        "the schedule 1f1b has log(stage 1, mb 0) on mesh 1, which needs F(stage 2, mb 0) of mesh 2: no task of mesh "
        "1 before it waits for that\n  put it on that mesh, or behind a task that needs the other"
    )


def test_a_task_that_is_fused() -> None:
    plain = insert(ONE_F_ONE_B, LOG, 0, after="forward")
    rows = [[cell for cell in row if cell[0].kind != "log"] for row in plain.cells]
    rows[0][0] = (*rows[0][0], schedules.Task("log", 0, 0))
    schedule = schedules.Schedule.of("mine", plain.placement, rows, plain.kinds)
    assert refusal(schedule, {"log": print}) == (
        "the schedule mine fuses log(stage 0, mb 0) with another task\n"
        "  only what is compiled is fused, and this is not: give it a cell of its own"
    )


def test_residuals_before_there_are_any() -> None:
    early = insert(ONE_F_ONE_B, schedules.Operation.parse("log:"), 0, before="forward")
    assert refusal(early, {"log": lambda residuals: None}) == (
        "the log of stage 0 for microbatch 0 needs a value of the forward of stage 0 for microbatch 0, which the "
        "schedule runs later\n  put the log behind it"
    )
