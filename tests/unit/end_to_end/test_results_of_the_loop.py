"""What the loop returns, besides a loss and gradients of weights: metrics, other gradients, random numbers, nothing."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, layers, loss, make_mesh, weights
from unit.end_to_end.everywhere import PLANS, check_loss, check_step, gradient_step, in_turn, more_plans, plans

import jaxpp.api as jaxpp
from jaxpp import schedules

mark = jaxpp.mark_stage_end


class SumOfSquares(jaxpp.Op):
    """A user's operation, of another shape than the results."""

    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros((), a.dtype)

    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        return state + jnp.sum(update**2)


def with_activations(params: Any, microbatch: Any) -> Any:
    x, sizes = microbatch["x"], []
    for w in params:
        x = jnp.tanh(x @ w)
        sizes.append(jnp.mean(jnp.abs(x)))
        x = mark(x)
    value = jnp.mean((x - microbatch["y"]) ** 2)
    return value, {"sizes": sizes, "outputs": x, "largest": x.max(), "guess": x.argmax(-1)}


@more_plans
def test_metrics_of_all_stages(plan: str) -> None:
    """Of activations of each stage, and of the gradients of all stages, with all operations."""

    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            value_and_grad = jax.value_and_grad(with_activations, has_aux=True)
            (value, activations), grads = value_and_grad(params, microbatch)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))
            of_gradients = {
                "norm": norm,
                "worst": norm,
                "large": norm > 0.1,
                "norms": list(map(jnp.linalg.norm, grads)),
            }
            return (
                value,
                activations,
                grads,
                of_gradients | {"squares": grads, "sizes": [jnp.abs(g).sum() for g in grads]},
            )

        operations = (
            jaxpp.Concat(),
            {"sizes": jaxpp.Add, "outputs": jaxpp.Concat(1), "largest": jaxpp.Max, "guess": jaxpp.Concat()},
            jaxpp.Add,
            {
                "norm": jaxpp.Concat(),
                "worst": jaxpp.Max,
                "large": jaxpp.Max,
                "norms": jaxpp.Max,
                "squares": SumOfSquares,
                "sizes": jaxpp.Add,
            },
        )
        return jaxpp.treduce(of_one, batch, schedule=schedule, operation=operations)

    check_step(step, (weights(4), batch(4)), plan)


@pytest.mark.parametrize(("operation", "plan"), in_turn([jaxpp.Concat(), jaxpp.Max]))
def test_constants_and_arguments_among_the_results(operation: Any, plan: str) -> None:
    """`return loss, (predictions, 4)`: numbers of Python's and numpy's, arguments as they are, None."""

    def with_constants(params: Any, microbatch: Any, outside: Any) -> Any:
        x = layers(params, microbatch["x"])
        numbers = {"int": 4, "size": jnp.array(x.size), "typed": np.float32(1.5), "bool": True, "none": None}
        arrays = {"outside": outside, "weight": params[1], "sum": params[2].sum(), "input": microbatch["x"]}
        return jnp.mean((x - microbatch["y"]) ** 2), (x, numbers, arrays)

    def step(params: Any, batch: Any, outside: Any, *, schedule: Any, operation: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            return jax.value_and_grad(with_constants, has_aux=True)(params, microbatch, outside)

        operations = ((jaxpp.Concat(), operation), jaxpp.Add)
        return (*jaxpp.treduce(of_one, batch, schedule=schedule, operation=operations), 3)

    check_step(partial(step, operation=operation), (weights(4), batch(4), jnp.arange(5)), plan)


@plans
def test_gradients_clipped_for_each_microbatch(plan: str) -> None:
    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, microbatch)
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grads))
            return value, [g / jnp.maximum(norm, 0.1) for g in grads]

        return jaxpp.treduce(of_one, batch, schedule=schedule)

    check_step(step, (weights(4), batch(4)), plan)


@plans
def test_gradients_of_the_batch(plan: str) -> None:
    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            value, (grads, of_inputs) = jax.value_and_grad(loss, argnums=(0, 1))(params, microbatch)
            return value, grads, of_inputs

        operation = (jaxpp.Concat(), jaxpp.Add, jaxpp.Concat())
        return jaxpp.treduce(of_one, batch, schedule=schedule, operation=operation)

    check_step(step, (weights(4), batch(4)), plan)


def two_losses(params: Any, microbatch: Any) -> jax.Array:
    x = layers(params, microbatch["x"])
    return jnp.stack([jnp.mean((x - microbatch["y"]) ** 2), jnp.mean(jnp.abs(x))])


def weighted(function: Callable[..., Any], params: Any) -> Any:
    values, pull = jax.vjp(function, params)
    return values, pull(jnp.array([1.0, 0.3]))[0]


def one_after_the_other(function: Callable[..., Any], params: Any) -> Any:
    values, pull = jax.vjp(function, params)
    return values, (pull(jnp.array([1.0, 0.0]))[0], pull(jnp.array([0.0, 1.0]))[0])


@pytest.mark.parametrize(("differentiate", "plan"), in_turn([weighted, one_after_the_other]))
def test_several_losses(differentiate: Callable[..., Any], plan: str) -> None:
    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            return differentiate(partial(two_losses, microbatch=microbatch), params)

        return jaxpp.treduce(of_one, batch, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))

    check_step(step, (weights(4), batch(4)), plan)


@pytest.mark.parametrize(("plan", "marks"), in_turn([*PLANS, *PLANS[::-1], "1f1b", "chimera"], [3, 4]))
def test_forward_only(marks: int, plan: str) -> None:
    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            x = layers(params, microbatch["x"], marks)
            right = x.argmax(-1) == microbatch["y"].argmax(-1)
            return {"loss": jnp.mean((x - microbatch["y"]) ** 2), "outputs": x, "right": right.sum()}

        operation = {"loss": jaxpp.Add, "outputs": jaxpp.Concat(), "right": jaxpp.Add}
        return jaxpp.treduce(of_one, batch, schedule=schedule, operation=operation)

    check_step(step, (weights(4), batch(4)), plan)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 5])
@pytest.mark.parametrize("plan", ["gpipe", "1f1b"])
def test_any_number_of_microbatches(plan: str, microbatches: int) -> None:
    schedule = schedules.make(plan, meshes=4, microbatches=microbatches)
    check(partial(gradient_step, schedule=schedule, loss=loss), (weights(4), batch(microbatches)), make_mesh(4))


TWO_STAGES = ("1f1b", "sharded")
KEYS: dict[str, Callable[[], jax.Array]] = {
    "raw": lambda: jax.random.PRNGKey(3),
    "typed": lambda: jax.random.key(3),
    "rbg": lambda: jax.random.key(3, impl="rbg"),
}


def dropped(x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x, 0)


@pytest.mark.parametrize(("kind", "plan"), in_turn(KEYS, TWO_STAGES))
def test_dropout_with_a_key_from_outside(kind: str, plan: str) -> None:
    key = KEYS[kind]()

    def of_one(params: Any, microbatch: Any) -> Any:
        x, bits = microbatch["x"], []
        for stage, w in enumerate(params):
            own = jax.random.fold_in(jax.random.fold_in(key, stage), microbatch["i"])
            bits.append(jax.random.bits(own, (3,)))
            x = mark(dropped(jnp.tanh(x @ w), own))
        return jnp.mean((x - microbatch["y"]) ** 2), bits

    data = {"x": P(None, "data"), "y": P(None, "data"), "i": P()}
    microbatches = batch(4) | {"i": np.arange(4, dtype=np.int32)}
    check_loss(of_one, plan, weights(2), microbatches, has_aux=True, data=data, stages=2)


@pytest.mark.parametrize(("kind", "plan"), in_turn(reversed(KEYS), TWO_STAGES))
def test_dropout_with_a_key_of_each_microbatch(kind: str, plan: str) -> None:
    def step(params: Any, batch: Any, key: jax.Array, *, schedule: Any) -> Any:
        keys = jax.random.split(key, 4)

        def of_one(params: Any, microbatch: Any) -> Any:
            x, own = microbatch["x"], microbatch["key"]
            for w in params:
                own, of_stage = jax.random.split(own)
                x = mark(dropped(jnp.tanh(x @ w), of_stage))
            return jnp.mean((x - microbatch["y"]) ** 2)

        found = gradient_step(params, batch | {"key": keys}, schedule=schedule, loss=of_one)
        return *found, jax.random.fold_in(key, 1)

    check_step(step, (weights(2), batch(4), KEYS[kind]()), plan, stages=2)


@pytest.mark.parametrize("plan", TWO_STAGES)
def test_functions_that_jax_lowers_in_two_steps(plan: str) -> None:
    """JAX 0.12 has primitives that stand for a whole function until the step is lowered."""

    def of_one(params: Any, microbatch: Any) -> Any:
        x = layers(params, microbatch["x"])
        found = jnp.histogram(x, 4)[0], jnp.searchsorted(jnp.arange(3.0), x.ravel())
        return jnp.mean((x - microbatch["y"]) ** 2), found

    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        of_params = jax.value_and_grad(of_one, has_aux=True)
        operation = (jaxpp.Concat(), jaxpp.Add())
        return jaxpp.treduce(partial(of_params, params), batch, schedule=schedule, operation=operation)

    check_step(step, (weights(2), batch(4)), plan, stages=2)


@pytest.mark.parametrize("plan", ["1f1b", "zb-h1"])
def test_gradients_of_integers_hold_nothing(plan: str) -> None:
    """With `allow_int` they are float0: no accumulator has that type, and each has the shape of one."""

    def loss(params: Any, microbatch: Any) -> Any:
        x = mark(jnp.where(params["mask"], jnp.tanh(microbatch["x"] @ params["w"][0]), 0) * params["n"])
        return mark(jnp.mean((x @ params["w"][1] - microbatch["y"]) ** 2))

    def step(params: Any, batch: Any, results: Any = 2, operation: Any = None) -> Any:
        one = partial(jax.value_and_grad(loss, allow_int=True), params)
        value, gradients = jaxpp.treduce(one, batch, schedule=plan, operation=operation)
        stacked = (4,) if isinstance(operation, jaxpp.Concat) else ()
        assert [(gradients[name].dtype, gradients[name].shape) for name in ("mask", "n")] == [
            (jax.dtypes.float0, (*stacked, 8)),
            (jax.dtypes.float0, stacked),
        ]
        w = jax.tree.map(lambda w, g: w - 0.1 * g.sum(tuple(range(len(stacked)))), params["w"], gradients["w"])
        return ({**params, "w": w}, value, gradients)[:results]

    params = {"mask": np.arange(8) > 2, "n": jnp.int32(3), "w": weights(2)}
    for operation in (None, jaxpp.Add, jaxpp.Concat()):
        check(partial(step, operation=operation), (params, batch(4)), make_mesh(2))
    with pytest.raises(TypeError) as caught:
        jaxpp.mpmd_jit_with_loop(partial(step, results=3), mpmd_mesh=make_mesh(2))(params, batch(4))
    assert str(caught.value) == (
        "result[2]['mask'] is float0, the gradient of an integer or a boolean: leave it out of the results"
    )
