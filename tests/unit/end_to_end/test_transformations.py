"""JAX's transformations around layers, stages and marks: jit, checkpoint, custom derivatives, vmap, control flow."""

# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from unit.end_to_end import compare
from unit.end_to_end.compare import batch, check, layers, lowered, make_mesh, weights
from unit.end_to_end.everywhere import PLANS, check_loss, check_step, gradient_step, in_turn, plans

import jaxpp.api as jaxpp

mark = jaxpp.mark_stage_end
policies = jax.checkpoint_policies


def squared_error(x: jax.Array, microbatch: Any) -> jax.Array:
    return jnp.mean((x - microbatch["y"]) ** 2)


def of_layers(layer: Callable[..., Any], *, marked: bool = False) -> Callable[..., Any]:
    """A loss of one layer per stage; a `marked` one has its mark inside."""

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = layer(w, x) if marked else mark(layer(w, x))
        return squared_error(x, microbatch)

    return loss


@jax.custom_jvp
def custom_jvp(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


@custom_jvp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    w, x = primals
    y = custom_jvp(w, x)
    return y, 0.5 * (1 - y**2) * (tangents[1] @ w + x @ tangents[0])


def scanned(w: jax.Array, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, scale: (jnp.tanh(x @ w * scale), x.sum()), x, jnp.arange(1.0, 3.0))[0]


def repeated(w: jax.Array, x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w), x)


def halved(w: jax.Array, x: jax.Array) -> jax.Array:
    """A `while_loop` of unknown length, without a gradient."""
    small = lax.while_loop(lambda x: jnp.sum(x**2) > 1, lambda x: 0.5 * x, lax.stop_gradient(x))
    return jnp.tanh(x @ w) + small


def switched(w: jax.Array, x: jax.Array) -> jax.Array:
    which = jnp.sum(x[0] > 0) % 3
    return lax.switch(which, [lambda w, x: jnp.tanh(x @ w), lambda w, x: x @ w, lambda _, x: x], w, x)


def bent(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sin(jnp.tanh(x @ w) @ w)


# What the same layer is compared with, however it is transformed.
BENT, SCANNED = of_layers(bent), of_layers(scanned)
LAYERS = [custom_jvp, scanned, repeated, halved, switched, jax.jit(scanned), jax.checkpoint(scanned)]


@pytest.mark.parametrize(
    ("layer", "plan"),
    in_turn(LAYERS),
    ids=["custom_jvp", "scan", "fori", "while", "switch", "jit", "checkpoint"],
)
def test_layer(layer: Callable[..., Any], plan: str) -> None:
    check_loss(of_layers(layer), plan, same_as=SCANNED if LAYERS.index(layer) in (1, 5, 6) else None)


POLICIES: dict[str, Any] = {
    "none": None,
    "nothing": policies.nothing_saveable,
    "everything": policies.everything_saveable,
    "dots": policies.dots_with_no_batch_dims_saveable,
    "names": policies.save_only_these_names("hidden"),
}


@pytest.mark.parametrize(("policy", "plan"), in_turn(POLICIES))
def test_checkpoint_around_a_stage(policy: str, plan: str) -> None:
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "hidden") @ w)

    check_loss(of_layers(jax.checkpoint(layer, policy=POLICIES[policy])), plan, same_as=BENT)


def test_checkpoint_around_an_unrolled_scan() -> None:
    """Its barrier hands on a stack of all layers, of which JAX takes a slice that is all of it."""

    @partial(jax.checkpoint, policy=policies.dots_saveable)
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, 3, unroll=True)[0]

    step = partial(compare.sgd_step, schedule=jaxpp.Std1F1B(2), loss=of_layers(layer))
    shardings = P(), P(None, "data")
    check(step, (weights(2), batch(3)), make_mesh(2, data=2), in_shardings=shardings)


def end(w: jax.Array, x: jax.Array) -> jax.Array:
    return mark(bent(w, x))


def middle(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sin(mark(jnp.tanh(x @ w)) @ w)


WRAPS: list[Any] = [jax.jit, jax.checkpoint, lambda f: jax.checkpoint(jax.jit(f))]


@pytest.mark.parametrize(("layer", "plan"), in_turn(wrap(layer) for layer in (end, middle) for wrap in WRAPS))
def test_mark_inside(layer: Callable[..., Any], plan: str) -> None:
    check_loss(of_layers(layer, marked=True), plan, same_as=BENT)


@pytest.mark.parametrize(("policy", "plan"), in_turn([None, policies.dots_saveable]))
def test_checkpoint_around_the_whole_model(policy: Any, plan: str) -> None:
    check_loss(jax.checkpoint(compare.loss, policy=policy), plan, same_as=compare.loss)


@pytest.mark.parametrize("layer", [jax.jit(middle), scanned])
def test_checkpoint_around_all_layers_of_one_trace(layer: Any) -> None:
    """Each mark has the same number: what is computed again is told from another call by what it is made of."""
    loss = jax.checkpoint(of_layers(layer, marked=layer is not scanned))
    check_loss(loss, "interleaved-1f1b", same_as=SCANNED if layer is scanned else BENT)


def test_checkpoint_around_several_stages() -> None:
    layer = jax.jit(middle)
    two = jax.checkpoint(lambda a, b, x: layer(b, layer(a, x)))

    def loss(params: Any, microbatch: Any) -> Any:
        return squared_error(two(*params[2:], two(*params[:2], microbatch["x"])), microbatch)

    check_loss(loss, "chimera", same_as=BENT)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint])
def test_towers_of_one_trace_are_different_stages(wrap: Any) -> None:
    tower = jax.jit(lambda w, x: mark(jnp.tanh(x @ w)))

    def loss(w: Any, microbatch: Any) -> Any:
        return jnp.mean((tower(w, microbatch["x"][:2]) - tower(w, microbatch["x"][2:])) ** 2)

    step = partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=wrap(loss))
    check(step, (weights(1)[0], batch(4)), make_mesh(2))


def test_checkpoint_sends_no_more() -> None:
    """Each stage computes again from its own boundary on: no weight goes to another stage."""

    def sent(loss: Any) -> list[str]:
        step = partial(gradient_step, schedule=jaxpp.Std1F1B(4), loss=loss)
        program = lowered(step, (weights(4), batch(4)), make_mesh(4)).program()
        return sorted(re.findall(r'stablehlo\.send".*\((tensor<[^>]*>)', program.as_text()))

    assert sent(jax.checkpoint(compare.loss)) == sent(compare.loss)


def test_mark_inside_a_custom_vjp() -> None:
    @jax.custom_vjp
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return mark(jnp.tanh(x @ w))

    def forward(w: jax.Array, x: jax.Array) -> Any:
        y = mark(jnp.tanh(x @ w))
        return y, (w, x, y)

    def backward(kept: Any, gradient: jax.Array) -> Any:
        w, x, y = kept
        gradient = gradient * (1 - y**2)
        return x.T @ gradient, gradient @ w.T

    layer.defvjp(forward, backward)
    check_loss(of_layers(layer, marked=True), "1f1b", same_as=compare.loss)


@pytest.mark.parametrize(("depth", "plan"), in_turn([1, 2], PLANS[::-1]))
def test_vmap_around_a_marked_function(depth: int, plan: str) -> None:
    def one(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((layers(params, x) - y) ** 2)

    def loss(params: Any, microbatch: Any) -> Any:
        mapped = partial(one, params)
        for _ in range(depth):
            mapped = jax.vmap(mapped)
        x, y = (microbatch[name] if depth == 1 else microbatch[name].reshape(2, 2, 8) for name in "xy")
        return jnp.mean(mapped(x, y))

    check_loss(loss, plan, same_as=compare.loss)


def over_weights(step: Any, params: Any, batch: Any) -> Any:
    return jax.vmap(step, (0, None))([jnp.stack([w, 0.5 * w]) for w in params], batch)


def over_the_batch(step: Any, params: Any, batch: Any) -> Any:
    return jax.vmap(step, (None, 1))(params, jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf], 1), batch))


def over_both(step: Any, params: Any, batch: Any) -> Any:
    mean = lambda params, batch: jax.lax.pmean(step(params, batch), "models")  # noqa: E731
    return jax.vmap(lambda scale: jax.vmap(mean, axis_name="models")(*jax.tree.map(scaled(scale), (params, batch))))(
        jnp.arange(1.0, 3.0)
    )


def scaled(scale: jax.Array) -> Callable[[Any], jax.Array]:
    return lambda leaf: jnp.stack([scale * leaf, leaf - scale])


def over_nothing(step: Any, params: Any, batch: Any) -> Any:
    return jax.vmap(lambda scale: (scale, step(params, batch)))(jnp.arange(2.0))


@pytest.mark.parametrize(
    ("mapped", "plan"), in_turn([over_weights, over_the_batch, over_both, over_nothing], PLANS[::-1])
)
def test_vmap_around_the_loop(mapped: Callable[..., Any], plan: str) -> None:
    """The loop keeps its schedule, whatever is mapped."""

    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        return mapped(partial(gradient_step, schedule=schedule, loss=compare.loss), params, batch)

    check_step(step, (weights(4), batch(4)), plan)


def test_vmap_around_a_collective_in_the_loop() -> None:
    def step(params: Any, batch: Any) -> Any:
        def of_one(params: Any, microbatch: Any) -> Any:
            return jax.lax.pmean(compare.loss(params, microbatch), "models")

        return compare.sgd_step(params, batch, schedule=jaxpp.Std1F1B(2), loss=of_one)

    check(partial(over_named, step), (weights(2), batch(4)), make_mesh(2))


def over_named(step: Any, params: Any, batch: Any) -> Any:
    return jax.vmap(step, (0, None), axis_name="models")([jnp.stack([w, 0.5 * w]) for w in params], batch)


@plans
def test_gradient_of_every_example(plan: str) -> None:
    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            value_and_grad = jax.value_and_grad(lambda params, x, y: jnp.mean((layers(params, x) - y) ** 2))
            values, grads = jax.vmap(value_and_grad, (None, 0, 0))(params, microbatch["x"], microbatch["y"])
            norms = jnp.sqrt(sum(jnp.sum(g**2, (1, 2)) for g in grads))
            return values, [jnp.einsum("nij,n->ij", g, 1 / jnp.maximum(norms, 0.1)) for g in grads]

        return jaxpp.treduce(of_one, batch, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))

    check_step(step, (weights(4), batch(4)), plan)


def jitted(loss: Any, params: Any) -> Any:
    return jax.jit(jax.value_and_grad(jax.jit(loss)))(params)


def linearized(loss: Any, params: Any) -> Any:
    value, tangent = jax.linearize(loss, params)
    return value, jax.linear_transpose(tangent, params)(jnp.ones_like(value))[0]


@pytest.mark.parametrize(("differentiate", "plan"), in_turn([jitted, linearized]))
def test_other_ways_to_a_gradient(differentiate: Callable[..., Any], plan: str) -> None:
    def step(params: Any, batch: Any, *, schedule: Any) -> Any:
        def of_one(microbatch: Any) -> Any:
            return differentiate(lambda params: compare.loss(params, microbatch), params)

        return jaxpp.treduce(of_one, batch, schedule=schedule)

    check_step(step, (weights(4), batch(4)), plan)
