"""`mpmd_jit_by_yield`: a marked function without a loop, against plain `jax.jit`."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, layers, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp


def sample() -> dict[str, np.ndarray]:
    """One microbatch."""
    return {name: values[0] for name, values in batch(1).items()}


def forward(params: Any, microbatch: Any, marks: int | None = None) -> Any:
    """Predictions, and what hangs on them."""
    x = layers(params, microbatch["x"], marks)
    return {"mean": x.mean(), "prediction": x @ params[-1], "sign": x > 0}


def adam_step(params: Any, state: Any, microbatch: Any, marks: int | None = None) -> Any:
    """One step of clipped Adam."""
    value, grads = jax.value_and_grad(partial(loss, marks=marks))(params, microbatch)
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


def check(function: Callable[..., Any], args: Any, mesh: jaxpp.MpmdMesh, **options: Any) -> Any:
    """The results of the pipelined function, which are those of `jax.jit`."""
    found = jaxpp.mpmd_jit_by_yield(function, mpmd_mesh=mesh, **options)(*args)
    assert_same(found, jax.jit(function)(*args))
    return found


def where(mesh: jaxpp.MpmdMesh, array: jax.Array) -> tuple[int, ...] | None:
    assert isinstance(array.sharding, NamedSharding)
    assert isinstance(array.sharding.mesh, jax.sharding.Mesh)
    return mesh.mpmd_indices_for_mesh(array.sharding.mesh)


@pytest.mark.parametrize("marks", [2, 3])
def test_inference(marks: int) -> None:
    mesh = make_mesh(3, data=2)
    found = check(partial(forward, marks=marks), (weights(3), sample()), mesh)
    assert {where(mesh, each) for each in found.values()} == {(2,)}


@pytest.mark.filterwarnings("ignore:the schedule runs on . of the 4 meshes")
def test_stages_of_the_target_number() -> None:
    """Two stages on four meshes, with one mark or two."""
    mesh = make_mesh(4)
    for marks in (1, 2):
        function = partial(forward, marks=marks)
        found = check(function, (weights(2), sample()), mesh, target_num_stages=2)
        assert where(mesh, found["prediction"]) == (1,)
    assert where(mesh, check(partial(forward, marks=1), (weights(2), sample()), mesh)["prediction"]) == (0,)


def test_more_stages_than_meshes() -> None:
    mesh = make_mesh(2)
    assert where(mesh, check(forward, (weights(5), sample()), mesh, target_num_stages=5)["prediction"]) == (0,)
    assert where(mesh, check(forward, (weights(5), sample()), mesh)["prediction"]) == (1,)


@pytest.mark.parametrize("marks", [2, 3])
@pytest.mark.parametrize("explicit", [False, True])
def test_training_step_of_one_microbatch(marks: int, explicit: bool) -> None:
    """Adam with clipping by the global norm; weights and moments stay with their stages."""
    mesh = make_mesh(3, data=2, explicit=explicit)
    params = weights(3)
    state = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)).init(params)
    step = jaxpp.mpmd_jit_by_yield(partial(adam_step, marks=marks), mpmd_mesh=mesh)
    plain = jax.jit(partial(adam_step, marks=marks))
    ours = theirs = (params, state)
    for _ in range(3):
        found, expected = step(*ours, sample()), plain(*theirs, sample())
        assert_same(found, expected, tolerance=1e-4)
        ours, theirs = found[:2], expected[:2]
    for stage in range(3):
        assert where(mesh, found[0][stage]) == (stage,)  # pyright: ignore[reportPossiblyUnboundVariable]


def test_shardings_and_static_arguments() -> None:
    mesh = make_mesh(2, data=2)

    def function(power: int, params: Any, microbatch: Any, *, scale: Any) -> Any:
        return layers(params, microbatch["x"]) ** power * scale

    step = jaxpp.mpmd_jit_by_yield(
        function, mpmd_mesh=mesh, static_argnums=0, in_specs=(P(), P("data")), out_specs=P(None, "data")
    )
    args = (weights(2), sample())
    found = step(3, *args, scale=2.0)
    assert_same(found, jax.jit(function, static_argnums=0)(3, *args, scale=2.0))
    assert found.sharding.spec == P(None, "data")


def test_marks_in_jitted_functions_keys_and_donation() -> None:
    @jax.jit
    def layer(w: Any, x: Any, key: Any) -> Any:
        return jaxpp.mark_stage_end(jnp.tanh(x @ w) * jax.random.bernoulli(key, 0.5, x.shape))

    def function(params: Any, x: Any, key: Any) -> Any:
        for w in params:
            key, used = jax.random.split(key)
            x = layer(w, x, used)
        return x, key

    args = (weights(3), jnp.ones((4, 8)), jax.random.key(1))
    expected = jax.jit(function)(*args)
    donated = jnp.ones((4, 8))
    step = jaxpp.mpmd_jit_by_yield(function, mpmd_mesh=make_mesh(3), donate_argnums=1)
    assert_same(step(args[0], donated, args[2]), expected)


def tied(params: Any, x: Any) -> Any:
    """The first stage's weight is the last one's too."""

    def of_weights(params: Any) -> jax.Array:
        return jnp.sum((layers(params[1:], x @ params[0]) @ params[0].T) ** 2)

    return jax.value_and_grad(of_weights)(params)


def jitted_gradient(params: Any, x: Any) -> Any:
    """Marks of both phases inside of jitted functions, with rematerialization."""

    def layer(w: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, 2)[0]

    @jax.jit
    def of_weights(params: Any) -> jax.Array:
        hidden = x
        for w in params:
            hidden = jaxpp.mark_stage_end(jax.checkpoint(layer)(w, hidden))
        return jnp.sum(hidden**2)

    return jax.jit(jax.grad(of_weights))(params)


def passed_through(params: Any, x: Any) -> Any:
    """Arguments and numbers among the results; values of the first stage used after the last."""
    first = layers(params[:1], x)
    return params, layers(params[1:], first) + first, None, 3, jnp.argmax(first, -1), x


@pytest.mark.parametrize("function", [tied, jitted_gradient, passed_through])
def test_functions(function: Callable[..., Any]) -> None:
    check(function, (weights(4), jnp.ones((4, 8))), make_mesh(4, data=2))


def through_marks(start: Callable[[], Any], change: Callable[[Any, jax.Array], Any], params: Any, x: Any) -> jax.Array:
    """What goes through all marks beside the activation is a part of the loss."""
    carried = start()
    for w in params:
        x = jnp.tanh(x @ w)
        x, carried = jaxpp.mark_stage_end((x, change(carried, x)))
    return jnp.sum(x) + sum(jnp.sum(leaf) for leaf in jax.tree.leaves(carried))


@pytest.mark.parametrize(
    ("start", "change"),
    [
        (lambda: jnp.float32(0), lambda total, x: total + jnp.sum(x**2)),
        (lambda: jnp.float32(-jnp.inf), lambda largest, x: jnp.maximum(largest, jnp.max(x))),
        (lambda: (jnp.ones(3), jnp.int32(0)), lambda carried, x: (carried[0] * 2, carried[1] + 1)),
        (lambda: jnp.arange(8) < 2, lambda mask, x: mask),
    ],
)
@pytest.mark.parametrize(
    "of", [lambda loss: loss, jax.grad, jax.value_and_grad, lambda loss: jax.value_and_grad(jax.checkpoint(loss))]
)
def test_values_that_go_through_all_marks(of: Callable[..., Any], start: Any, change: Any) -> None:
    """Also sums, whose gradients at the marks are constants."""
    check(of(partial(through_marks, start, change)), (weights(2), jnp.ones((4, 8))), make_mesh(2))


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    """An effect of a stage, and one after all of them, happen once each."""

    def function(params: Any, x: Any) -> Any:
        jax.debug.print("first {}", x[0, 0])
        x = layers(params, x)
        jax.debug.print("last {}", x.shape[0])
        return x

    jax.block_until_ready(jaxpp.mpmd_jit_by_yield(function, mpmd_mesh=make_mesh(2))(weights(2), jnp.ones((4, 8))))
    jax.effects_barrier()
    assert sorted(capsys.readouterr().out.splitlines()) == ["first 1.0", "last 4"]


def message(function: Callable[..., Any], error: type[Exception] = ValueError, **options: Any) -> str:
    with pytest.raises(error) as caught:
        jaxpp.mpmd_jit_by_yield(function, mpmd_mesh=make_mesh(2), **options)(weights(2), sample())
    assert len(str(caught.value)) < 400
    return str(caught.value)


def test_bad_input() -> None:
    assert message(partial(loss, marks=0)) == (
        "mpmd_jit_by_yield: the function has no stage mark whose result is used; "
        "end each stage with x = jaxpp.mark_stage_end(x)"
    )
    assert message(loss, target_num_stages=4) == (
        "mpmd_jit_by_yield: target_num_stages=4, found 2 stage marks; expected 4, or 3 without the last one"
    )
    with pytest.raises(ValueError, match="has a loop over microbatches; use mpmd_jit_with_loop, or leave out treduce"):
        jaxpp.mpmd_jit_by_yield(sgd_step, mpmd_mesh=make_mesh(2))(weights(2), batch(2))
    both: dict[str, Any] = {"in_specs": P(), "in_shardings": P()}
    assert message(loss, TypeError, **both) == (
        "in_shardings and in_specs are two names of one argument; give one of them"
    )


def scanned(params: Any, microbatch: Any) -> Any:
    step: Callable[..., Any] = lambda x, w: (jaxpp.mark_stage_end(jnp.tanh(x @ w)), None)  # noqa: E731
    return lax.scan(step, microbatch["x"], jnp.stack(params))[0]


def test_the_loop_of_one_microbatch_stands_at_the_users_line() -> None:
    step = jaxpp.mpmd_jit_by_yield(partial(forward, marks=2), mpmd_mesh=make_mesh(2)).lower(weights(2), sample())
    text = step.as_text(debug_info=True)
    assert __file__ in text
    assert "/jaxpp/jit.py" not in text


def test_marks_inside_a_scan() -> None:
    arguments = weights(4), sample()
    step = jaxpp.mpmd_jit_by_yield(scanned, mpmd_mesh=make_mesh(2))
    np.testing.assert_allclose(step(*arguments), jax.jit(scanned)(*arguments), rtol=1e-5)


def test_a_mark_inside_an_endless_loop_names_its_line() -> None:
    def function(params: Any, microbatch: Any) -> Any:
        step: Callable[..., Any] = lambda x: jaxpp.mark_stage_end(jnp.tanh(x @ params[0]))  # noqa: E731
        return lax.while_loop(lambda x: jnp.sum(x) > 1, step, microbatch["x"])

    text = message(function, jaxpp.PassError, target_num_stages=1)
    assert "test_by_yield.py" in text
    assert "a stage mark inside a loop that runs an unknown number of times" in text
