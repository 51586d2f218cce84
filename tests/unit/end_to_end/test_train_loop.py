"""Loops over optimizer steps: several steps in one program, with and without delayed gradients."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end import transformer
from unit.end_to_end.compare import WIDTH, assert_same, batch, check, feed_state, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call
from jaxpp.runtime import load
from jaxpp.schedules.builders.steps import in_steps, is_in_one_order
from jaxpp.schedules.library.classic import gpipe
from jaxpp.schedules.rewrites.peers import evict

TWO_BW = "pipedream-2bw"
FUSED = in_steps(schedules.make("kimi-k2", meshes=2, microbatches=8, fused=True), 2, delay=1)
KEPT_LESS = schedules.offload(schedules.recompute(schedules.make(TWO_BW, meshes=2, microbatches=4, steps=2), 0), 1)
EVICTED = evict(schedules.make(TWO_BW, meshes=4, microbatches=4, steps=3))
FAR_AHEAD = in_steps(gpipe(2, 4), 4, delay=3)
SHARDED = (P(), P(None, None, "data"))
ADAM = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))


def batches(steps: int, microbatches: int, rows: int = 4) -> Any:
    """Inputs and targets, (steps, microbatches, rows, width) each."""
    every = batch(steps * microbatches, rows)
    return {name: value.reshape(steps, microbatches, rows, WIDTH) for name, value in every.items()}


def delayed_sgd(state: Any, batch: Any, older: Any, *, schedule: Any = TWO_BW) -> Any:
    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), older), batch, schedule=schedule)
    return (jax.tree.map(lambda w, g: w - 0.1 * g, state[0], gradients), state[1] + 1), losses.mean()


def delayed_adam(state: Any, batch: Any, older: Any, *, schedule: Any = TWO_BW) -> Any:
    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), older), batch, schedule=schedule)
    updates, optimizer = ADAM.update(gradients, state[1], state[0])
    return (optax.apply_updates(state[0], updates), optimizer), (losses, optax.tree.norm(gradients))


def tasks_of(program: Any) -> list[list[tuple[str, int, int]]]:
    """For each mesh its tasks in the order of the program."""
    lines = load(program.module).sequences
    return [[task[:3] for each in line if isinstance(each, Call) for task in each.tasks] for line in lines]


@pytest.mark.parametrize(("schedule", "meshes"), [("1f1b", 4), ("zb-h2", 4), ("zb-v", 2), ("dualpipe", 2)])
def test_steps_are_those_of_a_scan(schedule: str, meshes: int) -> None:
    """Also called twice, with all of the state given away."""
    made = schedules.make(schedule, meshes=meshes, microbatches=4)
    loop = jaxpp.train_loop(partial(sgd_step, schedule=made), 3)
    arguments = weights(made.stages), batches(3, 4)
    exact = schedule != "dualpipe"  # which has each stage twice
    check(loop, arguments, make_mesh(meshes), exact=exact, steps=2, feed=feed_state, donate_argnums=0)


def test_a_transformer_with_shared_weights() -> None:
    def step(state: Any, batch: Any) -> Any:
        state, *metrics = transformer.train_step(state, batch, schedule="1f1b")
        return state, metrics

    every = jax.tree.map(lambda leaf: np.stack([leaf, leaf[::-1]]), transformer.batch(4))
    check(jaxpp.train_loop(step, 2), (transformer.state(2), every), make_mesh(2), steps=2, feed=feed_state)


def stacked(params: Any, microbatch: Any) -> Any:
    """The loss of a scan over layers, (layers, width, width), or pairs of these and (layers, width)."""

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        w, scale = w if isinstance(w, tuple) else (w, 1)
        return jaxpp.mark_stage_end(jnp.tanh(x @ w * scale)), None

    return jnp.mean((jax.lax.scan(layer, microbatch["x"], params)[0] - microbatch["y"]) ** 2)


@pytest.mark.parametrize("delay", [0, 1])
def test_stacked_layers_stay_in_blocks(delay: int) -> None:
    """Each mesh has the rows of its own stages, in every version."""

    def step(state: Any, batch: Any, *older: Any) -> Any:
        gradient = partial(jax.value_and_grad(stacked), *(older or state))
        losses, gradients = jaxpp.treduce(gradient, batch, schedule=TWO_BW if delay else "1f1b")
        return (state[0] - 0.1 * gradients,), losses

    loop = jaxpp.train_loop(step, 3, delay)
    arguments = loop.start((jnp.stack(weights(2)),)), batches(3, 4)
    check(loop, arguments, make_mesh(2), steps=2, feed=feed_state, donate_argnums=0)
    program = jaxpp.mpmd_jit_with_loop(loop, make_mesh(2)).lower(*arguments).program()
    assert not program.rows_sent_bytes
    assert all(f"tensor<1x{WIDTH}x{WIDTH}xf32>" in line for line in program.as_text().splitlines() if "@mesh_" in line)


@pytest.mark.parametrize("data", [1, 2])
def test_batches_and_metrics_of_stacked_layers(data: int) -> None:
    """They have the shape of the stack, beside the steps, and are whole: state alone is stored in blocks."""

    def step(params: Any, batch: Any) -> Any:
        gradient = jax.value_and_grad(lambda w, one: stacked((w, batch["scale"]), one))
        _, gradients = jaxpp.treduce(partial(gradient, params), batch["data"], schedule="1f1b")
        metrics = {"norms": jnp.linalg.norm(gradients, axis=(1, 2)), "now": params, "gradients": gradients}
        return params - 0.1 * gradients + batch["noise"], metrics

    noise = np.random.default_rng(1).normal(size=(3, 2, WIDTH, WIDTH)).astype(np.float32)
    every = {"data": batches(3, 4), "noise": noise, "scale": 1 + noise[..., 0]}
    arguments = jnp.stack(weights(2)), every
    check(jaxpp.train_loop(step, 3), arguments, make_mesh(2, data=data), steps=2, feed=feed_state, donate_argnums=0)


@pytest.mark.parametrize(
    ("schedule", "meshes", "steps", "delay", "microbatches"),
    [
        (TWO_BW, 2, 2, 1, 1),
        (TWO_BW, 4, 3, 1, 3),
        (TWO_BW, 4, 5, 2, 2),
        ("interleaved-1f1b", 2, 3, 1, 3),
        ("zb-v", 2, 4, 1, 3),
        ("hanayo", 2, 3, 1, 3),
        ("stp", 2, 3, 1, 4),  # which fuses and splits other tasks when the pipeline fills and drains
    ],
)
def test_delayed_gradients_are_those_of_older_weights(
    schedule: str, meshes: int, steps: int, delay: int, microbatches: int
) -> None:
    """w(t + 1) = w(t) - lr * grad(w(t - delay)), written out; bit for bit, over two calls."""
    loop = jaxpp.train_loop(partial(delayed_sgd, schedule=schedule), steps, delay)
    every, stages = batches(steps, microbatches), schedules.make(schedule, meshes=meshes, microbatches=4).stages
    pipelined = jaxpp.mpmd_jit_with_loop(loop, make_mesh(meshes), donate_argnums=0)
    carry = loop.start((weights(stages), jnp.int32(0)))

    @jax.jit
    def gradient(older: Any, one: Any) -> Any:
        losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), older), one)
        return losses.mean(), gradients

    update = jax.jit(lambda w, g: jax.tree.map(lambda w, g: w - 0.1 * g, w, g))
    versions, means = [weights(stages)] * (delay + 1), list[Any]()
    for _ in range(2):
        carry, found = pipelined(carry, every)
        for step in range(steps):
            mean, gradients = gradient(versions[-1 - delay], jax.tree.map(lambda leaf: leaf[step], every))  # noqa: B023
            versions.append(update(versions[-1], gradients))
            means.append(mean)
        np.testing.assert_array_equal(found, means[-steps:])
    (now, count), older = carry
    assert_same(now, versions[-1], exact=True)
    assert_same(older, tuple(versions[-2 - each] for each in range(delay)), exact=True)
    assert count == 2 * steps


def test_an_optimizer_with_a_norm_of_all_gradients() -> None:
    loop = jaxpp.train_loop(delayed_adam, 3, 1)
    params = weights(4)
    arguments = loop.start((params, ADAM.init(params))), batches(3, 4)
    check(loop, arguments, make_mesh(4), steps=2, feed=feed_state, donate_argnums=0)


def test_over_several_devices_of_a_mesh() -> None:
    loop = jaxpp.train_loop(delayed_adam, 3, 1)
    params = weights(2)
    arguments = loop.start((params, ADAM.init(params))), batches(3, 4)
    mesh = make_mesh(2, data=2)
    check(loop, arguments, mesh, out_shardings=(None, (P(None, "data"), None)))
    check(loop, arguments, mesh, steps=2, feed=feed_state, in_shardings=SHARDED, donate_argnums=0)


def test_gradients_are_scattered_by_runs_in_steps_that_do_not_overlap() -> None:
    loop = jaxpp.train_loop(delayed_sgd, 3, 1)
    state = loop.start((weights(2), jnp.int32(0)))
    specs = jax.tree.map(lambda leaf: P("data") if leaf.ndim else P(), state), P(None, None, "data")
    options = jaxpp.StepOptions(scatter_gradients="chunk")
    step = jaxpp.mpmd_jit_with_loop(loop, make_mesh(2, data=2), in_shardings=specs, options=options)
    with pytest.raises(jaxpp.PassError, match=r"'chunk', for the runs of one step, but the steps of the train_loop ov"):
        step.lower(state, batches(3, 4)).program()


def test_the_state_has_one_sharding_at_both_ends_of_a_step() -> None:
    """Also where alone one end of it is sharded: a batch is kept, and not read by the next step."""

    def step(state: Any, batch: Any) -> Any:
        made, losses = sgd_step(state[0], batch, schedule="1f1b")
        return (made, batch["x"] + state[1]), losses

    every = batches(3, 2)
    mesh = make_mesh(2, data=2)
    shardings = (P(), P()), P(None, None, "data")
    check(jaxpp.train_loop(step, 3), ((weights(2), every["x"][0]), every), mesh, in_shardings=shardings)


def test_stages_of_a_mesh_that_share_a_weight_run_in_another_order_in_each_step() -> None:
    """The embedding and the head of a V, which are one: each has a sum of its own."""

    def step(state: Any, batch: Any, older: Any) -> Any:
        gradient = jax.value_and_grad(transformer.loss, has_aux=True)
        (losses, _), gradients = jaxpp.treduce(partial(gradient, older), batch, schedule="zb-v")
        return (jax.tree.map(lambda w, g: w - 0.1 * g, state[0], gradients),), losses

    loop, params = jaxpp.train_loop(step, 3, 1), transformer.parameters(4)
    del params["head"]
    every = jax.tree.map(lambda leaf: leaf.reshape(3, 4, *leaf.shape[1:]), transformer.batch(12))
    check(loop, (loop.start((params,)), every), make_mesh(2), steps=2, feed=feed_state, donate_argnums=0)


@pytest.mark.parametrize(("name", "meshes", "recompute"), [("1f1b", 4, None), ("1f1b", 4, "inputs"), ("zb-v", 2, None)])
def test_tasks_run_in_the_order_of_the_schedule(name: str, meshes: int, recompute: str | None) -> None:
    """No mesh waits between steps: each runs exactly what the schedule, which has no bubble there, says."""
    loop = jaxpp.train_loop(partial(delayed_sgd, schedule=name), 4, 1)
    step = jaxpp.mpmd_jit_with_loop(loop, make_mesh(meshes), recompute=recompute)
    program = step.lower(loop.start((weights(4), jnp.int32(0))), batches(4, 4)).program()
    schedule = in_steps(schedules.make(name, meshes=meshes, microbatches=16), 4, delay=1)
    assert is_in_one_order(schedule) == (name == "1f1b")
    expected = [[(t.kind, t.stage, t.microbatch) for t in row if t.kind != "optimizer"] for row in schedule.orders]
    found = [[task for task in row if task[0] != "recompute"] for row in tasks_of(program)]
    assert found == expected
    assert program.schedule == str(schedule)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_two_versions_of_the_weights_are_alive(schedule: str) -> None:
    """Proven of the program: a version more, the gradients, and what one step has; however many steps there are."""

    def peaks(loop: Any, arguments: Any) -> tuple[int, ...]:
        return jaxpp.mpmd_jit_with_loop(loop, make_mesh(2), donate_argnums=0).lower(*arguments).program().peak_bytes

    stages, here = (2, 1) if schedule == "1f1b" else (4, 2)  # of a V mesh 0 has both ends
    size, each = here * WIDTH * WIDTH * 4, here * 4 * 4 * WIDTH * 4
    plain, delayed = partial(sgd_step, schedule=schedule), partial(delayed_sgd, schedule=schedule)
    now = peaks(jaxpp.train_loop(plain, 6), (weights(stages), batches(6, 4)))
    for delay in (1, 2):
        loop = jaxpp.train_loop(delayed, 6, delay)
        found = peaks(loop, (loop.start((weights(stages), jnp.int32(0))), batches(6, 4)))
        assert all(0 < more - less <= delay * size + each + 64 for more, less in zip(found, now, strict=True)), found
        longer = jaxpp.train_loop(delayed, 12, delay)
        twice = peaks(longer, (longer.start((weights(stages), jnp.int32(0))), batches(12, 4)))
        assert max(np.subtract(twice, found)) <= 6 * each + 200  # the batches of six steps more, and their losses


def test_the_older_version_is_read_while_the_newer_one_is_written() -> None:
    """What is given away is not overwritten too early: without donation the results are the same, and inputs stay."""
    loop = jaxpp.train_loop(delayed_sgd, 4, 1)
    arguments = loop.start((weights(2), jnp.int32(0))), batches(4, 2)
    kept = jaxpp.mpmd_jit_with_loop(loop, make_mesh(2))(*arguments)
    given = jaxpp.mpmd_jit_with_loop(loop, make_mesh(2), donate_argnums=(0, 1))(*jax.tree.map(jnp.copy, arguments))
    assert_same(given, kept, exact=True)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments[0]))


def test_a_schedule_of_ones_own() -> None:
    """Any order of all microbatches, with the updates put into it."""
    made = in_steps(schedules.make("eager-1f1b", meshes=2, microbatches=9), 3, delay=1)
    loop = jaxpp.train_loop(partial(delayed_sgd, schedule=made), 3, 1)
    check(loop, (loop.start((weights(2), jnp.int32(0))), batches(3, 3)), make_mesh(2), exact=True)


@pytest.mark.parametrize("schedule", [FUSED, KEPT_LESS], ids=["fused", "in the host and made again"])
def test_a_schedule_of_several_steps_with_other_tasks(schedule: schedules.Schedule) -> None:
    """Each runs as often as the schedule has it; what it fuses of two steps runs apart."""
    loop = jaxpp.train_loop(partial(delayed_sgd, schedule=schedule), 2, 1)
    arguments = loop.start((weights(schedule.stages), jnp.int32(0))), batches(2, 4)
    check(loop, arguments, make_mesh(2), steps=2, feed=feed_state)
    program = jaxpp.mpmd_jit_with_loop(loop, make_mesh(2)).lower(*arguments).program()
    found = Counter(task[0] for row in tasks_of(program) for task in row)
    expected = Counter(task.kind for task in schedule if task.kind != "optimizer")
    assert found == expected
    calls = [each for line in load(program.module).sequences for each in line if isinstance(each, Call)]
    of_one_step = [
        len(cell) > 1 == len({task.microbatch // 4 for task in cell}) for row in schedule.cells for cell in row
    ]
    assert sum(len(each.tasks) > 1 for each in calls) == sum(of_one_step) == (16 if schedule is FUSED else 0)


def bad_state(state: Any, batch: Any) -> Any:
    made, losses = sgd_step(state, batch, schedule="1f1b")
    return [w.astype(jnp.bfloat16) for w in made], losses


def newer_sgd(state: Any, batch: Any, older: Any) -> Any:
    return delayed_sgd(state, batch, state[0])


def with_dropout(state: Any, batch: Any, older: Any, *, expects_key: bool = True) -> Any:
    """Where the gradients are finite the weights are updated, and with `expects_key` the key of the noise is too."""
    params, key = state
    key, own = jax.random.split(key)

    def noisy(params: Any, microbatch: Any) -> Any:
        noise = jax.random.bernoulli(own, 0.9, microbatch["x"].shape)
        return loss(params, microbatch | {"x": microbatch["x"] * noise})

    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(noisy), older), batch, schedule=TWO_BW)
    ok = jnp.isfinite(sum(g.sum() for g in gradients))
    made = [w - 0.1 * g for w, g in zip(params, gradients, strict=True)]
    if expects_key:
        made, key = jaxpp.expect(ok, (made, key), lambda: (params, state[1]))
    else:
        made = jaxpp.expect(ok, made, lambda: params)
    return (made, key), losses.mean()


def test_a_delay_and_noise() -> None:
    """What the error of a key in `expect` says: the key is of no gradient, and stands outside."""
    loop = jaxpp.train_loop(partial(with_dropout, expects_key=False), 3, 1)
    check(loop, (loop.start((weights(2), jax.random.key(0))), batches(3, 4)), make_mesh(2))


NINE = schedules.make("1f1b", meshes=2, microbatches=9)


DROPOUT = (weights(2), jax.random.key(0)), (weights(2),)

unchecked_loop: Any = jaxpp.train_loop  # as of users who have no checker


def lowered(step: Callable[..., Any], steps: int, delay: int = 0, state: Any = None, **options: Any) -> Any:
    loop = jaxpp.train_loop(step, steps, delay)
    state = loop.start((weights(2), jnp.int32(0)) if delay else weights(2)) if state is None else state
    every = options.pop("batches", None) or batches(steps, options.pop("microbatches", 2))
    mesh = make_mesh(options.pop("meshes", 2))
    return jaxpp.mpmd_jit_with_loop(loop, mesh, **options).lower(state, every).program()


def gathers_ahead(schedule: str) -> Any:
    """A loop with a delay, of four stages on two meshes, whose weights are sharded over the axis of the batch."""
    mesh = make_mesh(2, data=2)
    sharding = NamedSharding(mesh.jax_mesh, P("data"))

    def in_shards(params: Any, x: jax.Array) -> jax.Array:
        for w in params:
            x = jaxpp.mark_stage_end(jax.lax.with_sharding_constraint(jnp.tanh(x @ w), sharding))
        return jnp.mean(x**2)

    def step(state: Any, batch: Any, older: Any) -> Any:
        losses, grads = jaxpp.treduce(partial(jax.value_and_grad(in_shards), older), batch, schedule=schedule)
        return (jax.tree.map(lambda w, g: w - 0.1 * g, state[0], grads),), losses

    loop, every = jaxpp.train_loop(step, 3, 1), jnp.ones((3, 4, 4, 8))
    shardings = (((P("data"),), P("data")), P(None, None, "data"))
    options = jaxpp.StepOptions(gather_weights="ahead")
    jitted = jaxpp.mpmd_jit_with_loop(loop, mesh, in_shardings=shardings, options=options)
    return jitted.lower(loop.start((weights(4),)), every).program()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: jaxpp.train_loop(sgd_step, 0),
            ValueError,
            "train_loop: steps must be a whole number of at least 1, found 0",
        ),
        (
            lambda: jaxpp.train_loop(sgd_step, 2, -1),
            ValueError,
            "train_loop: delay must be a whole number of at least 0, found -1",
        ),
        (lambda: jaxpp.train_loop(sgd_step, 2, 2), ValueError, "delay=2 is not less than steps=2: no step sees"),
        (
            lambda: lowered(partial(delayed_sgd, schedule=jaxpp.Std1F1B(2)), 3, 1),
            jaxpp.PassError,
            "the gradients are delayed by 1, but the schedule 1f1b is of one step: nothing would overlap\n"
            '  give one by name, such as "1f1b", which is then of all steps',
        ),
        (
            lambda: lowered(partial(delayed_sgd, schedule="gpipe"), 3, 1),
            jaxpp.PassError,
            "gpipe: stage 0 begins step 2 before the update of step 0, whose weights it reads with a delay of 1: give "
            "each step more microbatches than 2, a larger delay, or a schedule that keeps fewer activations",
        ),
        (
            lambda: lowered(partial(delayed_sgd, schedule="chimera"), 3, 1),
            jaxpp.PassError,
            "chimera: stage 0 is on 2 meshes, a loop over steps needs it on one",
        ),
        (
            lambda: lowered(partial(sgd_step, schedule=TWO_BW), 3),
            jaxpp.PassError,
            ": error: the schedule pipedream-2bw overlaps steps, whose gradients are not delayed",
        ),
        (
            lambda: lowered(partial(delayed_sgd, schedule="pipedream-2bw{steps=2}"), 3, 1),
            jaxpp.PassError,
            "the schedule pipedream-2bw is of 2 steps, expected 3, as many as the train_loop has\n"
            "  make the schedule with steps=3, or the loop with train_loop(step, 2, ...)",
        ),
        (
            lambda: (
                jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule="pipedream-2bw{steps=2}"), make_mesh(2))
                .lower(weights(2), batch(2))
                .program()
            ),
            jaxpp.PassError,
            "the schedule pipedream-2bw is of 2 steps, expected one training step",
        ),
        (
            lambda: lowered(partial(delayed_sgd, schedule=EVICTED), 3, 1, microbatches=4, meshes=4),
            jaxpp.PassError,
            "pipedream-2bw: mesh 0 runs other tasks in step 1 than in step 0: load(stage 0, mb 0) in step 1, not in "
            "step 0; a loop over steps needs the same in all, and what is moved differs while the pipeline fills and "
            "drains",
        ),
        (
            lambda: lowered(partial(delayed_sgd, schedule=FAR_AHEAD), 4, 1, microbatches=1),
            jaxpp.PassError,
            "schedule runs later\n  a schedule of all steps needs a delay of as many updates as it overlaps steps",
        ),
        (
            lambda: gathers_ahead("zb-v"),
            jaxpp.PassError,
            "gather_weights is 'ahead', but the forward of stage 0 for microbatch 2 of step 1, which gathers weights "
            "for the forward of stage 3 for microbatch 0 of step 1, runs behind it: this step has its tasks in another "
            'order than step 0\n  take gather_weights="chunk"',
        ),
        (
            lambda: lowered(newer_sgd, 3, 1),
            jaxpp.PassError,
            "the forward of stage 0 for microbatch 0 of step 1 reads what the update of step 0 makes of the backward "
            "of stage 0 for microbatch 1 of step 0, which the schedule runs later\n"
            "  with a delay take gradients of the older weights, the step's third argument",
        ),
        (
            lambda: lowered(with_dropout, 3, 1, state=DROPOUT),
            jaxpp.PassError,
            "  with a delay make state[1], which it reads, of what needs no gradient of its step: outside of "
            "jaxpp.expect, if it stands in one",
        ),
        (
            lambda: lowered(partial(delayed_sgd, schedule="pipedream-2bw{steps=1}"), 3, 1),
            jaxpp.PassError,
            "pipedream-2bw{steps=3 delay=1}; or leave the delay out",
        ),
        (
            lambda: lowered(partial(delayed_sgd, schedule=in_steps(NINE, 3, 1)), 3, 1),
            jaxpp.PassError,
            "the loop runs 2 microbatches, its schedule has 3 in each of 3 steps",
        ),
        (
            lambda: lowered(sgd_step, 2, state=(weights(2), "adam")),
            TypeError,
            "state[1] is of type str, not an array; close over Python values",
        ),
        (
            lambda: unchecked_loop(None, 3),
            TypeError,
            ": train_loop: step is None, expected a function (state, batch) -> (state, metrics)",
        ),
        (
            lambda: lowered(lambda s, b: ([s[0], "x"], 0.0), 2),
            TypeError,
            "train_loop: the new state[1] is of type str, not an array; return arrays alone",
        ),
        (
            lambda: lowered(lambda s, b: (s, "fine"), 2),
            TypeError,
            "metrics is of type str, not an array; return arrays alone",
        ),
        (lambda: lowered(bad_state, 2), TypeError, "state[0] is float32[8, 8], the step makes bfloat16[8, 8] of it"),
        (
            lambda: lowered(lambda s, b: (s[:1], s[0]), 2),
            ValueError,
            "the step takes a state ([*, *]) and returns ([*])",
        ),
        (lambda: lowered(lambda s, b: s, 2), TypeError, "the step returns a list; expected (state, metrics)"),
        (
            lambda: lowered(partial(sgd_step, schedule="1f1b"), 3, batches=batches(2, 2)),
            ValueError,
            "batches['x'] has shape (2, 2, 4, 8); expected 3 steps in front",
        ),
        (
            lambda: lowered(delayed_sgd, 3, 1, state=weights(2)),
            ValueError,
            "with delay=1 the state is (state, 1 older weights); loop.start(state) makes it",
        ),
        (
            lambda: jaxpp.train_loop(delayed_sgd, 3, 1).start(weights(2)),
            ValueError,
            "with a delay the state is a tuple, the weights first; found list",
        ),
        (
            lambda: lowered(partial(sgd_step, schedule="1f1b"), 2, in_shardings=(P(), P("data"))),
            ValueError,
            "shards the steps of a train_loop, which run one after the other",
        ),
        (
            lambda: lowered(
                partial(sgd_step, schedule="1f1b"),
                2,
                in_shardings=(P(), P()),
                out_shardings=([P(None), P("data")], None),
            ),
            ValueError,
            "in_shardings have P() of state[1], out_shardings P('data'",
        ),
        (
            lambda: lowered(delayed_sgd, 3, 1, out_shardings=((P(), P("data")), None)),
            ValueError,
            "state[0][0][0] and state[1][0][0], which are weights and the same a step older, have other shardings, P()",
        ),
        (
            lambda: lowered(partial(sgd_step, schedule="1f1b"), 2, static_argnums=1),
            TypeError,
            "it takes arrays alone, found static_argnums; close over Python values",
        ),
        (
            lambda: jaxpp.tune(
                jaxpp.mpmd_jit_with_loop(jaxpp.train_loop(sgd_step, 2), make_mesh(2)), weights(2), batches(2, 2)
            ),
            ValueError,
            "a train_loop can't be measured: give the step that it runs",
        ),
        (
            lambda: lowered(delayed_sgd, 3, 1, memory_limit=1000),
            ProgramError,
            "bytes on each device, its memory limit is 1,000",
        ),
        (
            lambda: lowered(partial(sgd_step, schedule="auto"), 2),
            ValueError,
            'schedule="auto": a step is tuned alone',
        ),
        (
            lambda: (
                jaxpp.mpmd_jit_with_loop(lambda s, b: jaxpp.train_loop(sgd_step, 2)(s, b), make_mesh(2))
                .lower(weights(2), batches(2, 2))
                .program()
            ),
            jaxpp.PassError,
            "the microbatch loop stands inside another loop or conditional",
        ),
    ],
)
def test_bad_loops_are_refused_by_name(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_reduced_result_is_a_state_as_it_is(schedule: str) -> None:
    def scaled(params: Any, scale: jax.Array, microbatch: Any) -> Any:
        value = loss(params, jax.tree.map(lambda x: x / scale, microbatch))
        return value, value + 1

    def step(state: Any, batch: Any) -> Any:
        params, scale = state
        gradient = partial(jax.value_and_grad(scaled, has_aux=True), params, scale)
        operation = ((jaxpp.Concat(), jaxpp.Max), jaxpp.Add)
        (losses, scale), gradients = jaxpp.treduce(gradient, batch, schedule, operation=operation)
        return (jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), scale), losses.mean()

    batches = jax.tree.map(lambda x: jnp.stack([x, 2 * x, x]), batch(4))
    check(jaxpp.train_loop(step, 3), ((weights(2), jnp.float32(1)), batches), make_mesh(2))
