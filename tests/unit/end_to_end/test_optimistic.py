"""Steps that assume what they expect, and are rolled back: the results are those of the waiting form in every case."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from unit.end_to_end.compare import assert_same, loss, make_mesh, weights
from unit.end_to_end.test_train_loop import batches

import jaxpp.api as jaxpp
from jaxpp.ir.program import Call, Receive
from jaxpp.lowering.train_loop import no_metrics
from jaxpp.runtime import load

STEPS, LIMIT = 3, 1.0


def step(params: Any, batch: Any) -> Any:
    """Clips the gradients by their norm, and skips a step of which it is not finite."""
    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch["data"], "zb-h2")
    gradients = jax.tree.map(lambda g: batch["scale"] * g, gradients)
    norm = optax.tree.norm(gradients)
    gradients = jaxpp.expect(norm <= LIMIT, gradients, lambda: jax.tree.map(lambda g: LIMIT / norm * g, gradients))
    made = jax.tree.map(lambda w, g: w - g, params, gradients)
    return jaxpp.expect(jnp.isfinite(norm), made, lambda: params), (losses, norm)


def arguments(*scales: float) -> Any:
    return weights(2), {"data": batches(STEPS, 4), "scale": np.array(scales, np.float32)}


STEP = cast("Any", step)  # no checker would take it for a loop
LOOP = jaxpp.train_loop(step, STEPS)
GOOD, BAD, BROKEN = 0.01, 100.0, float("nan")


@pytest.mark.parametrize(
    ("scales", "rollbacks"),
    [
        ((GOOD, GOOD, GOOD), 0),
        ((BAD, GOOD, GOOD), 2),
        ((GOOD, BAD, GOOD), 2),
        ((GOOD, GOOD, BAD), 2),
        ((GOOD, BROKEN, GOOD), 2),
        ((BROKEN, BROKEN, BROKEN), 6),
        ((BAD, BROKEN, BAD), 6),
        ((GOOD, float("inf"), GOOD), 2),
    ],
)
def test_results_are_those_of_the_waiting_form(scales: tuple[float, ...], rollbacks: int) -> None:
    """Bit for bit, over two calls, with the state given away; each step that expects too much runs again, no other."""
    hopeful = jaxpp.optimistic(LOOP, make_mesh(2), donate_argnums=0)
    waiting, plain = jaxpp.mpmd_jit_with_loop(LOOP, make_mesh(2)), jax.jit(LOOP)
    state, every = arguments(*scales)
    found, expected, reference = jax.tree.map(jnp.copy, state), state, state
    for _ in range(2):
        found, metrics = hopeful(found, every)
        expected, expected_metrics = waiting(expected, every)
        assert_same(found, expected, exact=True)
        assert_same(metrics, expected_metrics, exact=True)
        reference, _ = plain(reference, every)
        assert_same(found, reference)
    assert hopeful.rollbacks == rollbacks
    assert repr(hopeful) == f"optimistic(train_loop(step, steps=3, delay=0)): {rollbacks} rollbacks"


def receives_behind_the_tasks(program: Any) -> list[int]:
    """For each mesh how many values it receives behind its last task."""
    found: list[int] = []
    for line in load(program.module).sequences:
        last = max(n for n, each in enumerate(line) if isinstance(each, Call) and each.microbatch is not None)
        found.append(sum(isinstance(each, Receive) for each in line[last:]))
    return found


def test_no_mesh_waits_for_the_norm() -> None:
    """But the last one, which collects it: it begins the next step last, and finds there what it receives."""
    hopeful = jaxpp.optimistic(LOOP, make_mesh(3))
    state, every = weights(3), arguments(GOOD, GOOD, GOOD)[1]
    metrics = no_metrics(LOOP, state, every)
    held = metrics, np.zeros(STEPS, bool)
    assuming = hopeful.assuming.lower(state, every, held, np.int32(0)).program()
    assert receives_behind_the_tasks(assuming) == [0, 0, 2]
    waiting = hopeful.waiting.lower(state, every, metrics, np.int32(0)).program()
    assert receives_behind_the_tasks(waiting) == [1, 1, 2]


def test_delayed_gradients_too() -> None:
    def delayed(state: Any, batch: Any, older: Any) -> Any:
        losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), older), batch["data"], "pipedream-2bw")
        norm = batch["scale"] * optax.tree.norm(gradients)
        gradients = jaxpp.expect(norm <= LIMIT, gradients, lambda: jax.tree.map(lambda g: g / norm, gradients))
        return (jax.tree.map(lambda w, g: w - 0.1 * g, state[0], gradients),), losses

    loop = jaxpp.train_loop(delayed, STEPS, 1)
    for scales in ((GOOD, GOOD, GOOD), (GOOD, BAD, GOOD)):
        params, every = arguments(*scales)
        carry = loop.start((params,))
        hopeful = jaxpp.optimistic(loop, make_mesh(2), out_shardings=(None, None))
        assert_same(hopeful(carry, every), jax.jit(loop)(carry, every))
        assert hopeful.rollbacks == (scales != (GOOD, GOOD, GOOD))


def test_explicit_axes() -> None:
    """Of metrics with an entry for each example, and of a condition that follows from the batch alone."""

    def rows(params: Any, microbatch: Any) -> Any:
        return loss(params, microbatch), jnp.sum(microbatch["x"], 1)

    def explicit(params: Any, batch: Any) -> Any:
        operation = (jaxpp.Concat(), jaxpp.Concat()), jaxpp.Add
        gradient = partial(jax.value_and_grad(rows, has_aux=True), params)
        metrics, gradients = jaxpp.treduce(gradient, batch["data"], "1f1b", operation=operation)
        gradients = jaxpp.expect(batch["scale"] < 50, gradients, lambda: jax.tree.map(jnp.zeros_like, gradients))
        norm = optax.tree.norm(gradients)
        gradients = jaxpp.expect(norm <= LIMIT, gradients, lambda: jax.tree.map(lambda g: LIMIT / norm * g, gradients))
        return jax.tree.map(lambda w, g: w - g, params, gradients), (metrics, batch["scale"])

    loop = jaxpp.train_loop(explicit, STEPS)
    given = arguments(GOOD, BAD, GOOD)
    shardings = None, {"data": jax.P(None, None, "data"), "scale": None}
    hopeful = jaxpp.optimistic(loop, make_mesh(2, data=2, explicit=True), in_shardings=shardings)
    found = hopeful(*given)
    assert_same(jax.device_put(jaxpp.fetch(found)), jax.jit(loop)(*given))
    assert hopeful.rollbacks > 0
    (_, sums), _ = found[1]
    assert jax.typeof(sums).sharding.spec == jax.P(None, None, "data")


def test_explicit_axes_that_shard_the_steps() -> None:
    given = {"data": batches(4, 4), "scale": np.ones(4, np.float32)}
    hopeful = jaxpp.optimistic(
        jaxpp.train_loop(step, 4),
        make_mesh(2, data=2, explicit=True),
        in_shardings=(None, {"data": jax.P("data"), "scale": None}),
    )
    spec = jax.P("data", None, None, None)
    message = (
        f"train_loop: batches['data']['x']: {spec} shards the steps of a train_loop, which run one after the other"
    )
    with pytest.raises(ValueError, match=rf"^{re.escape(__file__)}:\d+: {re.escape(message)}"):
        hopeful(weights(2), given)


def inside(params: Any, batch: Any) -> Any:
    def one(microbatch: Any) -> Any:
        value = loss(params, microbatch)
        return jaxpp.expect(value < 1, value, lambda: value)

    return params, jaxpp.treduce(one, batch["data"], "gpipe")


def automatic(limit: float, params: Any, batch: Any) -> Any:
    losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch["data"], "auto")
    return jaxpp.expect(losses.sum() < limit, gradients, lambda: params), losses


def scanned(clip: Any) -> Any:
    return lambda norm, values: jax.lax.scan(lambda carry, _: (clip(norm, carry), None), values, None, 1)[0]


def conditional(clip: Any) -> Any:
    return lambda norm, values: jax.lax.cond(norm > 0, clip, lambda _, values: values, norm, values)


def wrapped(wrap: Any) -> Any:
    """A step that clips its gradients within another trace."""
    clip = wrap(lambda norm, values: jaxpp.expect(norm <= 1e-9, values, lambda: [1e-9 / norm * x for x in values]))

    def clipping(params: Any, batch: Any) -> Any:
        losses, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch["data"], "zb-h2")
        gradients = clip(optax.tree.norm(gradients), gradients)
        return [w - g for w, g in zip(params, gradients, strict=True)], losses

    return clipping


def test_what_is_refused_leaves_nothing_in_caches() -> None:
    """The loop as it is clips afterwards."""
    loop = jaxpp.train_loop(wrapped(jax.jit), STEPS)
    given = arguments(1, 1, 1)
    with pytest.raises(ValueError, match="hide the condition"):
        jaxpp.optimistic(loop, make_mesh(2))(*given)
    found, expected = jaxpp.mpmd_jit_with_loop(loop, make_mesh(2))(*given), jax.jit(loop)(*given)
    assert_same(found, expected)
    assert_same(expected[0], given[0], tolerance=1e-6)


def test_an_expectation_of_what_is_not_expected() -> None:
    """It counts only where the other one did not hold."""

    def twice(params: Any, batch: Any) -> Any:
        _, gradients = jaxpp.treduce(partial(jax.value_and_grad(loss), params), batch["data"], "zb-h2")
        gradients = jax.tree.map(lambda g: batch["scale"] * g, gradients)
        norm = optax.tree.norm(gradients)

        def otherwise() -> Any:
            return jaxpp.expect(norm < 50, [x / norm for x in gradients], lambda: [0 * x for x in gradients])

        gradients = jaxpp.expect(norm <= LIMIT, gradients, otherwise)
        return [w - g for w, g in zip(params, gradients, strict=True)], norm

    loop = jaxpp.train_loop(twice, STEPS)
    for scales in ((GOOD, GOOD, GOOD), (GOOD, 20.0, BAD * 100)):
        hopeful = jaxpp.optimistic(loop, make_mesh(2))
        assert_same(hopeful(*arguments(*scales)), jax.jit(loop)(*arguments(*scales)))
        assert hopeful.rollbacks == 2 * (scales[1] != GOOD)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: jaxpp.optimistic(STEP, make_mesh(2)),
            TypeError,
            "optimistic: expected a loop over steps, as train_loop(step, steps=...) makes it, found function",
        ),
        (
            lambda: jaxpp.optimistic(LOOP, make_mesh(2), static_argnums=1),
            TypeError,
            "train_loop: it takes arrays alone, found static_argnums; close over Python values",
        ),
        (
            lambda: jaxpp.optimistic(LOOP, make_mesh(2))(weights(2), {"data": batches(STEPS + 1, 4), "scale": 1}),
            ValueError,
            "train_loop: batches['data']['x'] has shape (4, 4, 4, 8); expected 3 steps in front",
        ),
        (
            lambda: jaxpp.optimistic(jaxpp.train_loop(partial(automatic, LIMIT), 3), make_mesh(2))(*arguments(1, 1, 1)),
            ValueError,
            'schedule="auto": a step is tuned alone, and this is a train_loop; give a schedule',
        ),
        (
            lambda: jaxpp.optimistic(jaxpp.train_loop(lambda s, b: (s, s), 3), make_mesh(2))(*arguments(1, 1, 1)),
            ValueError,
            "optimistic: <lambda> expects nothing: call jaxpp.expect in it, or use mpmd_jit_with_loop, which waits",
        ),
        (
            lambda: jaxpp.optimistic(jaxpp.train_loop(inside, 3), make_mesh(2))(*arguments(1, 1, 1)),
            ValueError,
            "expect: it stands inside of treduce; call it on what that returns",
        ),
        *(
            (
                lambda wrap=wrap: jaxpp.optimistic(jaxpp.train_loop(wrapped(wrap), 3), make_mesh(2))(
                    *arguments(1, 1, 1)
                ),
                ValueError,
                "expect: it stands inside of jax.jit, scan, cond or vmap, which hide the condition",
            )
            for wrap in (jax.jit, scanned, conditional, jax.checkpoint)
        ),
        (
            lambda: jaxpp.expect(True, 1, cast("Any", 2)),
            TypeError,
            "expect: otherwise is a function without arguments, found int",
        ),
        (lambda: jaxpp.expect("x", 1, lambda: 1), TypeError, "expect: the condition is of type str, not an array"),
        (lambda: jaxpp.expect(True, "a", lambda: "b"), TypeError, "expect: the usual is of type str, not an array"),
        (lambda: jaxpp.expect(1.0, 1, lambda: 2), TypeError, "expect: the condition is float32[], expected a boolean"),
        (
            lambda: jaxpp.expect(True, jnp.ones(2), lambda: jnp.ones(3)),
            TypeError,
            "expect: usually it is float32[2], otherwise float32[3]",
        ),
        (lambda: jaxpp.expect(True, [1], lambda: (1,)), ValueError, "expect: usually it is ([*]), otherwise ((*,))"),
    ],
)
def test_bad_expectations_are_refused_by_name(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make()
