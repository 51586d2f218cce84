"""Models that no schedule can cut, or that only look so: the whole text of the answer, or the right numbers."""

# pyright: reportUnknownLambdaType=false

import re
from functools import partial
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, layers, loss, make_mesh, sgd_step, weights
from unit.end_to_end.test_bad_input import SCHEDULE, at, message, with_loss

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules import ScheduleError

mark = jaxpp.mark_stage_end


def squared_error(x: jax.Array, microbatch: Any) -> jax.Array:
    return jnp.mean((x - microbatch["y"]) ** 2)


def siamese(params: Any, microbatch: Any) -> Any:
    """A model that is traced once, applied to two inputs; a stage of both follows."""
    model = jax.jit(partial(layers, params[:2]))
    return jnp.mean(mark(jnp.tanh(model(microbatch["x"]) @ params[2] - model(microbatch["y"]))) ** 2)


def scanned(params: Any, microbatch: Any) -> Any:
    """A model that scans over its stages, under `jax.checkpoint`, applied to three inputs."""
    stages = jnp.stack(params)
    model = jax.checkpoint(lambda x: jax.lax.scan(lambda x, w: (mark(jnp.tanh(x @ w)), None), x, stages)[0])
    x, y = microbatch["x"], microbatch["y"]
    return jnp.mean((model(x) - model(y)) ** 2 + model(x + y))


def without_the_last_mark(params: Any, microbatch: Any) -> Any:
    x, y = layers(params, microbatch["x"], 2), layers(params, microbatch["y"], 2)
    return jnp.mean((x - y) ** 2)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("of_one", [siamese, scanned, without_the_last_mark])
def test_a_model_applied_to_several_inputs(of_one: Any, name: str) -> None:
    """All applications go through the stages together."""
    step = partial(sgd_step, schedule=schedules.make(name, meshes=3, microbatches=4), loss=of_one)
    check(step, (weights(3), batch(4)), make_mesh(3))


def test_two_gradients_in_a_microbatch() -> None:
    def step(params: Any, batch: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            x, y = microbatch["x"], microbatch["y"]
            return [jax.value_and_grad(loss)(params, {"x": a, "y": b}) for a, b in ((x, y), (y, x))]

        return jaxpp.treduce(of_one, batch, schedule=SCHEDULE, operation=jaxpp.Add)

    check(step, (weights(3), batch(4)), make_mesh(3))


@pytest.mark.parametrize("jit", [jax.jit, lambda model: model], ids=["jit", "plain"])
def test_a_model_applied_to_what_it_made(jit: Any) -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        model = jit(partial(layers, params))
        return squared_error(model(model(microbatch["x"])), microbatch)

    text = message(with_loss(of_one))
    assert at(text, sgd_step, "jaxpp.treduce(") == (
        "found 6 stage marks, the schedule 1f1b has 3 stages\n"
        "  if each mark ends a layer: cuts=[2, 2, 2] (jaxpp-opt: --cuts 2,2,2); or "
        "mark the end of every stage (mark_stage_end): 3 marks, or 2 without the last one; "
        "or take a schedule of 6 stages, such as 1f1b{chunks=2} on 3 meshes"
    )
    step = partial(sgd_step, schedule=jaxpp.Interleaved1F1B(6, mpmd_dim=3), loss=of_one)
    check(step, (weights(3), batch(3)), make_mesh(3))


def test_a_model_applied_twice_and_marked_together() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        x, y = microbatch["x"], microbatch["y"]
        for w in params:
            x, y = mark((jnp.tanh(x @ w), jnp.tanh(y @ w)))
        return jnp.mean((x - y) ** 2)

    check(with_loss(of_one), (weights(3), batch(4)), make_mesh(3))


def test_a_loop_that_is_differentiated_as_a_whole() -> None:
    def step(params: Any, batch: Any) -> Any:
        def total(params: Any) -> Any:
            return jaxpp.treduce(partial(loss, params), batch, schedule=SCHEDULE, operation=jaxpp.Add)

        return jax.value_and_grad(total)(params)

    assert at(message(step), step, "jaxpp.treduce(") == (
        "the loop over microbatches is differentiated as a whole: its backward would be a loop of its own\n"
        "  differentiate each microbatch: treduce(partial(jax.value_and_grad(loss), params), batch)"
    )


def test_forward_mode() -> None:
    """The tangents go through the stages with the values."""

    def step(params: Any, batch: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            return jax.jvp(lambda params: loss(params, microbatch), (params,), (params,))

        return jaxpp.treduce(of_one, batch, schedule=jaxpp.GPipe(3), operation=jaxpp.Add)

    check(step, (weights(3), batch(4)), make_mesh(3))


def penalized(params: Any, microbatch: Any) -> Any:
    value, slope = jax.value_and_grad(lambda x: loss(params, {**microbatch, "x": x}))(microbatch["x"])
    return value + jnp.sum(slope**2)


def sharpness_aware(params: Any, microbatch: Any) -> Any:
    gradients = jax.grad(loss)(params, microbatch)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients))
    return loss(
        [w + 0.05 * jax.lax.stop_gradient(g / norm) for w, g in zip(params, gradients, strict=True)], microbatch
    )


@pytest.mark.parametrize("of_one", [penalized, sharpness_aware])
@pytest.mark.parametrize("schedule", ["1f1b", "hanayo"])  # which has as many stages as there are marks
def test_a_forward_of_gradients(of_one: Any, schedule: str) -> None:
    """docs/recipes.md has the way to write these."""
    text = message(partial(sgd_step, schedule=schedule, loss=of_one))
    assert at(text, layers, "mark_stage_end") == (
        "a stage mark stands behind the backward: in a second pass over a microbatch, in a second derivative, or "
        "inside jax.checkpoint\n"
        "  run the first pass as a step of its own, and give its gradients to this step: docs/recipes.md, "
        "'Two passes'; put jax.checkpoint around what stands between two marks"
    )


def test_second_derivatives_along_a_vector() -> None:
    """The tangents go through the stages with the values, and the gradients of both come back."""

    def along(params: Any, microbatch: Any) -> Any:
        value, change = jax.jvp(partial(loss, params), (microbatch,), (jax.tree.map(jnp.sin, microbatch),))
        return value + change**2

    def times_hessian(params: Any, batch: Any, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            return jax.jvp(lambda params: jax.grad(loss)(params, microbatch), (params,), (params,))

        return jaxpp.treduce(of_one, batch, schedule=schedule, operation=jaxpp.Add)

    for schedule in ("1f1b", "zb-h1"):
        check(partial(sgd_step, schedule=schedule, loss=along), (weights(3), batch(4)), make_mesh(3))
        check(partial(times_hessian, schedule=schedule), (weights(3), batch(4)), make_mesh(3))


@pytest.mark.parametrize("large", [1 << 20, 1])
def test_two_models_one_after_the_other(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own gradient: the forward of the second stands behind the backward of the first.

    From `large` meshes and microbatches on, marks are counted before a schedule is made.
    """
    monkeypatch.setattr("jaxpp.hlo_passes.loop.find_microbatch_loop._LARGE", large)

    def step(params: Any, batch: Any, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            one, other = (jax.value_and_grad(loss)(each, microbatch) for each in params)
            return (one[0], other[0]), (one[1], other[1])

        return jaxpp.treduce(of_one, batch, schedule=schedule)

    both = weights(2), weights(2)
    for stages in (4, 3):  # one after the other, or both through the stages together
        check(partial(step, schedule=jaxpp.GPipe(stages)), (both, batch(4)), make_mesh(stages))
    text = message(partial(step, schedule=jaxpp.GPipe(6)), both, batch(4), mesh=make_mesh(6))
    assert at(text, step, "jaxpp.treduce(") == (
        "found 4 stage marks, the schedule gpipe has 6 stages\n"
        "  mark the end of every stage (mark_stage_end): 6 marks, or 5 without the last one"
    )


def test_too_few_or_odd_microbatches_for_a_schedule() -> None:
    """A schedule's own rules, at the line of the user's `treduce`; by name, at that of the loop."""
    dual = "DualPipeV requires n_mubatches=3 >= self.num_stages=4"
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.DualPipeV(4, 2)), mpmd_mesh=make_mesh(2))
    with pytest.raises(ScheduleError) as caught:
        step(weights(4), batch(3))
    assert re.fullmatch(rf".*compare\.py:\d+: {re.escape(dual)}", str(caught.value)), "at the user's treduce"
    chimera = "chimera: microbatches must be a multiple of 2, found 3: there are two directions"
    text = message(sgd_step, weights(4), batch(3), mesh=make_mesh(4), schedule="chimera")
    assert at(text, sgd_step, "jaxpp.treduce(") == chimera


def test_microbatches_that_do_not_divide_the_batch() -> None:
    def step(params: Any, batch: Any) -> Any:
        microbatches = jax.tree.map(lambda leaf: leaf.reshape(3, -1, 8), batch)
        return sgd_step(params, microbatches, schedule=SCHEDULE)

    flat = jax.tree.map(lambda leaf: leaf.reshape(16, 8), batch(4))
    with pytest.raises(TypeError, match=r"cannot reshape array of shape \(16, 8\)"):
        jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3))(weights(3), flat)


def forgetful(x: jax.Array, w: jax.Array) -> jax.Array:
    x = jnp.tanh(x @ w)
    mark(x)
    return x


def marked(x: jax.Array, w: jax.Array) -> jax.Array:
    return mark(jnp.tanh(x @ w))


GO_ON = "\n  go on with what the mark returns: x = jaxpp.mark_stage_end(x)"


@pytest.mark.parametrize("wrap", [lambda layer: layer, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
@pytest.mark.parametrize("forgets", [(0, 1, 2), (0,), (1,), (2,)], ids=str)
@pytest.mark.parametrize("differentiate", [True, False], ids=["gradient", "forward"])
def test_a_mark_whose_value_nobody_uses(wrap: Any, forgets: tuple[int, ...], differentiate: bool) -> None:
    """JAX drops those of jitted and checkpointed layers where it differentiates."""
    good, bad = wrap(lambda x, w: marked(x, w)), wrap(lambda x, w: forgetful(x, w))

    def of_one(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for stage, w in enumerate(params):
            x = (bad if stage in forgets else good)(x, w)
        return squared_error(x, microbatch)

    def forward(params: Any, batch: Any) -> Any:
        return jaxpp.treduce(partial(of_one, params), batch, schedule=SCHEDULE, operation=jaxpp.Add)

    text = message(with_loss(of_one) if differentiate else forward)
    assert at(text, forgetful, "mark(x)") == "nobody uses the result of this stage mark" + GO_ON


def test_a_mark_in_a_scan_whose_value_nobody_uses() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (forgetful(x, w), None), microbatch["x"], jnp.stack(params))
        return squared_error(x, microbatch)

    assert at(message(with_loss(of_one)), forgetful, "mark(x)") == "nobody uses the result of this stage mark" + GO_ON


@pytest.mark.parametrize("wrap", [lambda layer: layer, jax.jit], ids=["plain", "jit"])
def test_unused_marks_however_the_stages_are_said(wrap: Any) -> None:
    """By cuts, by the least time, in a loop of the user's, or of one microbatch; each time that a step is lowered."""
    bad = wrap(lambda x, w: forgetful(x, w))

    def of_one(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = bad(x, w)
        return squared_error(x, microbatch)

    def users_loop(params: Any, batch: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        add = lambda total, microbatch: jax.tree.map(jnp.add, total, jax.grad(of_one)(params, microbatch))  # noqa: E731
        return jax.lax.scan(lambda total, microbatch: (add(total, microbatch), None), zeros, batch)[0]

    step, (params, data) = partial(sgd_step, schedule=None, loss=of_one), (weights(4), batch(4))
    jit, two = jaxpp.mpmd_jit_with_loop, make_mesh(2)
    one = jax.tree.map(lambda leaf: leaf[0], data)
    for run in (
        lambda: jit(step, two, schedule="1f1b", cuts=[2, 2])(params, data),
        lambda: jit(step, two, schedule="1f1b", cuts=[1, 3])(params, data),
        lambda: jit(step, two, schedule="auto")(params, data),
        lambda: jit(users_loop, make_mesh(4), schedule="1f1b")(params, data),
        lambda: jaxpp.mpmd_jit_by_yield(of_one, mpmd_mesh=make_mesh(4))(params, one),
    ):
        with pytest.raises(jaxpp.PassError) as caught:
            run()
        assert at(str(caught.value), forgetful, "mark(x)") == "nobody uses the result of this stage mark" + GO_ON


def test_marks_that_need_no_use() -> None:
    """The last one is left out; those of `jax.eval_shape`, one leaf of several; a stage that hands on what it gets."""

    def of_one(params: Any, microbatch: Any) -> Any:
        x = jax.eval_shape(partial(layers, params), microbatch["x"])
        x = jnp.zeros(x.shape) + microbatch["x"]
        for w in params[:2]:
            jax.eval_shape(marked, x, w)
            x, _ = mark((jnp.tanh(x @ w), x))
        return squared_error(jnp.tanh(x @ params[2]), microbatch)

    def handing_on(params: Any, microbatch: Any) -> Any:
        return squared_error(mark(layers(params[:2], microbatch["x"])), microbatch)

    check(with_loss(of_one), (weights(3), batch(4)), make_mesh(3))
    check(with_loss(handing_on), (weights(2), batch(4)), make_mesh(3))


def test_marks_of_what_no_later_stage_uses() -> None:
    def for_metrics(params: Any, microbatch: Any) -> Any:
        x, norms = microbatch["x"], 0.0
        for w in params:
            x = jnp.tanh(x @ w)
            norms += jnp.mean(mark(x))
        return squared_error(x, microbatch) + norms * 0

    def of_weights(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = jnp.tanh(x @ mark(w))
        return squared_error(x, microbatch)

    def of_constants(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = jnp.tanh(x @ w) * mark(jnp.ones(8))
        return squared_error(x, microbatch)

    def of_the_loss(params: Any, microbatch: Any) -> Any:
        return mark(squared_error(layers(params[:1], microbatch["x"]) @ params[1], microbatch))

    for of_one in (of_weights, of_constants):
        assert at(message(with_loss(of_one)), of_one, "mark(") == (
            "the mark of stage 0 marks what is the same for all microbatches\n"
            "  mark what the stage computes of its microbatch"
        )
    text = message(with_loss(lambda params, microbatch: jax.lax.stop_gradient(for_metrics(params, microbatch))))
    assert at(text, for_metrics, "mark(x)") == (
        "no later stage uses the result of this stage mark: they use what stage 0 made without it" + GO_ON
    )
    assert at(message(with_loss(of_the_loss)), sgd_step, "jaxpp.treduce(") == (
        "stage 2 has no work: nothing is computed behind the mark of stage 1\n"
        "  mark the end of every stage (mark_stage_end): 3 marks, or 2 before the last stage; "
        "or take a schedule of fewer stages"
    )


def test_stages_that_do_not_depend_on_each_other() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        a = mark(jnp.tanh(microbatch["x"] @ params[0]))
        b = mark(jnp.tanh(microbatch["y"] @ params[1]))
        return squared_error(mark(jnp.tanh(a @ params[2]) + b), microbatch)

    check(with_loss(of_one), (weights(3), batch(4)), make_mesh(3))


def test_marks_in_another_order_than_the_data() -> None:
    """The stages are numbered as the marks are met: what both need is computed in the first that needs it."""

    def of_one(params: Any, microbatch: Any) -> Any:
        early = jnp.tanh(microbatch["x"] @ params[0])
        late = mark(jnp.tanh(early @ params[1]) @ params[2])
        return squared_error(mark(late + mark(early)), microbatch)

    check(with_loss(of_one), (weights(3), batch(4)), make_mesh(3))


def test_a_value_that_flows_backwards_between_forward_stages() -> None:
    """Each microbatch hands what its last stage makes to the first stage of the next one."""

    def step(params: Any, batch: Any) -> Any:
        def body(x: Any, microbatch: Any) -> Any:
            x = layers(params, microbatch["x"] + x)
            return x, squared_error(x, microbatch)

        return jax.lax.scan(body, jnp.zeros((4, 8)), batch)

    assert at(message(step, schedule="gpipe"), step, "lax.scan") == (
        "the forward of stage 0 for microbatch 1 needs a value of the forward of stage 2 for microbatch 0, "
        "which the schedule runs later\n  what one microbatch hands on to the next must be made and used by one stage"
    )


def test_debug_print_in_a_stage_runs_once_per_microbatch(capfd: pytest.CaptureFixture[str]) -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        x = layers(params[:1], microbatch["x"])
        jax.debug.print("stage one {mean:.2f}", mean=x.mean())
        return squared_error(layers(params[1:], x), microbatch)

    jax.block_until_ready(jaxpp.mpmd_jit_with_loop(with_loss(of_one), mpmd_mesh=make_mesh(3))(weights(3), batch(4)))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("stage one ") == 4


def test_io_callback_in_a_stage_runs_once_per_microbatch() -> None:
    calls: list[float] = []

    def step(params: Any, batch: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            x = layers(params[:1], microbatch["x"])
            jax.experimental.io_callback(lambda mean: calls.append(float(mean)), None, x.mean())
            return layers(params[1:], x)

        return jaxpp.treduce(of_one, batch, schedule=SCHEDULE, operation=jaxpp.Concat)

    jax.block_until_ready(jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3))(weights(3), batch(4)))
    jax.effects_barrier()
    assert len(calls) == 4


ORDERED = (
    "an ordered side effect, such as jax.debug.print(..., ordered=True), has no order across meshes; "
    "leave out ordered=True"
)


def test_an_ordered_side_effect() -> None:
    def of_one(params: Any, microbatch: Any) -> Any:
        jax.debug.print("{x}", x=microbatch["x"], ordered=True)
        return loss(params, microbatch)

    def step(params: Any, batch: Any) -> Any:
        params, losses = sgd_step(params, batch, schedule=SCHEDULE)
        jax.experimental.io_callback(lambda x: None, None, losses, ordered=True)
        return params, losses

    assert at(message(with_loss(of_one), error=ValueError), of_one, "jax.debug.print") == ORDERED
    assert at(message(step, error=ValueError), step, "io_callback") == ORDERED


def test_a_callback_before_a_mark() -> None:
    """It runs on one of the two devices of its stage; what it returns goes on to the next stage on both."""

    def of_one(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = jnp.tanh(x @ w)
            x = mark(jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
        return squared_error(x, microbatch)

    def step(params: Any, batch: Any) -> Any:
        return jaxpp.treduce(partial(of_one, params), batch, schedule=SCHEDULE, operation=jaxpp.Concat())

    shardings = P(), P(None, "data")
    check(step, (weights(3), batch(4)), make_mesh(3, data=2), in_shardings=shardings)


def test_float0_and_objects_in_the_batch() -> None:
    step = with_loss(loss)
    text = message(step, weights(3), batch(4) | {"f": np.zeros((4, 2), jax.dtypes.float0)}, error=TypeError)
    assert re.fullmatch(r".*compare\.py:\d+: treduce: batch\['f'\] is of type float0, not an array", text)
    text = message(step, weights(3), batch(4) | {"f": None, "g": {1, 2}}, error=TypeError)
    assert text == (
        "argument batch['g'] is of type set ({1, 2}), not an array; "
        "if batch is a Python value, name it in static_argnums or static_argnames"
    )


def test_donated_arguments_that_no_result_can_reuse() -> None:
    """As for `jax.jit`, donation is a permission: an integer batch has no result to become; no warning either."""
    ours = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=SCHEDULE), mpmd_mesh=make_mesh(3), donate_argnums=(0, 1))
    new, _ = ours(weights(3), jax.tree.map(jnp.asarray, batch(4) | {"n": np.arange(4)}))
    assert len(new) == 3
    with pytest.raises(ValueError, match="donate_argnums"):
        jaxpp.mpmd_jit_with_loop(sgd_step, mpmd_mesh=make_mesh(3), donate_argnums=5)(weights(3), batch(4))
