"""The bytes that small programs around the loop move, beside the fewest that any placement moves."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from unit.hlo_passes.placements import Argument, Choices, Program, bytes_moved, given, made

from jaxpp.validation import Validate

BIG = 160, 160  # 100 KiB: too big to compute twice, unless cheap
PROGRAMS: dict[str, Program] = {}


def program(meshes: int = 2, **arguments: Any) -> Callable[[Callable[..., dict[str, Any]]], None]:
    """Adds the decorated function to PROGRAMS."""

    def add(function: Callable[..., dict[str, Any]]) -> None:
        PROGRAMS[function.__name__] = Program(function, meshes, arguments)

    return add


def norm(*leaves: jax.Array) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves))


@program(
    3,
    g0=made(0, *BIG),
    g1=made(1, *BIG),
    g2=made(2, *BIG),
    w0=given((0,), *BIG),
    w1=given((1,), *BIG),
    w2=given((2,), *BIG),
)
def clipping_by_the_global_norm(g0: Any, g1: Any, g2: Any, w0: Any, w1: Any, w2: Any) -> Any:
    factor = jnp.minimum(1, 1 / norm(g0, g1, g2))
    return {"w0": w0 - g0 * factor, "w1": w1 - g1 * factor, "w2": w2 - g2 * factor}


@program(2, g0=made(0, *BIG), g1=made(1, *BIG), w0=given((0,), *BIG), w1=given((1,), *BIG))
def optax_clipping(g0: Any, g1: Any, w0: Any, w1: Any) -> Any:
    u0, u1 = jax.tree.leaves(optax.clip_by_global_norm(1.0).update((g0, g1), optax.EmptyState())[0])
    return {"w0": w0 - u0, "w1": w1 - u1}


# Names in sorted order: a norm over the leaves of a tree goes back and forth between the meshes.
@program(2, **{f"g{k}": made(k % 2, *BIG) for k in range(6)}, **{f"w{k}": given((k % 2,), *BIG) for k in range(6)})
def norm_over_layers_that_alternate(**a: Any) -> Any:
    factor = 1 / norm(*(a[f"g{k}"] for k in range(6)))
    return {f"w{k}": a[f"w{k}"] - a[f"g{k}"] * factor for k in range(6)}


@program(3, **{f"g{k}": made(k // 2, *BIG) for k in range(6)}, **{f"w{k}": given((k // 2,), *BIG) for k in range(6)})
def norm_over_layers_in_order(**a: Any) -> Any:
    factor = 1 / norm(*(a[f"g{k}"] for k in range(6)))
    return {f"w{k}": a[f"w{k}"] - a[f"g{k}"] * factor for k in range(6)}


@program(2, g0=made(0, *BIG), g1=made(1, *BIG))
def gradients_added(g0: Any, g1: Any) -> Any:
    return {"sum": g0 + g1}


@program(3, g0=made(0, *BIG), g1=made(1, *BIG), g2=made(1, *BIG))
def gradients_added_two_on_the_later_mesh(g0: Any, g1: Any, g2: Any) -> Any:
    return {"sum": g0 + g1 + g2}


@program(2, g0=made(0, *BIG), g1=made(1, *BIG))
def gradients_compared(g0: Any, g1: Any) -> Any:
    return {"largest": jnp.argmax(jnp.stack([norm(g0), norm(g1)]))}


@program(2, g0=made(0, *BIG), g1=made(1, *BIG))
def gradients_dotted(g0: Any, g1: Any) -> Any:
    return {"dot": jnp.vdot(g0, g1)}


@program(3, g0=made(0, *BIG), g1=made(1, *BIG), g2=made(2, *BIG))
def all_products_of_gradients(g0: Any, g1: Any, g2: Any) -> Any:
    grads = [g0, g1, g2]
    return {"products": jnp.stack([jnp.stack([jnp.vdot(a, b) for b in grads]) for a in grads])}


@program(3, g0=made(0, *BIG), g1=made(1, 80, 80), g2=made(2, 40, 40))
def gradients_as_one_vector(g0: Any, g1: Any, g2: Any) -> Any:
    return {"vector": jnp.concatenate([g0.ravel(), g1.ravel(), g2.ravel()])}


@program(
    3,
    g0=made(0, 40, 40),
    g1=made(1, *BIG),
    g2=made(2, 80, 80),
    w0=given((0,), 40, 40),
    w1=given((1,), *BIG),
    w2=given((2,), 80, 80),
)
def one_vector_taken_apart_again(g0: Any, g1: Any, g2: Any, w0: Any, w1: Any, w2: Any) -> Any:
    vector, as_tree = jax.flatten_util.ravel_pytree([g0, g1, g2])
    d0, d1, d2 = as_tree(vector / jnp.linalg.norm(vector))
    return {"w0": w0 - d0, "w1": w1 - d1, "w2": w2 - d2}


@program(
    2,
    g0=made(0, *BIG),
    g1=made(1, *BIG),
    w0=given((0,), *BIG),
    w1=given((1,), *BIG),
    ema0=given((), *BIG),
    ema1=given((), *BIG),
)
def moving_averages(g0: Any, g1: Any, w0: Any, w1: Any, ema0: Any, ema1: Any) -> Any:
    w0, w1 = w0 - g0, w1 - g1
    return {"w0": w0, "w1": w1, "ema0": 0.9 * ema0 + 0.1 * w0, "ema1": 0.9 * ema1 + 0.1 * w1}


def adam(g: Any, w: Any, m: Any, v: Any, count: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
    return w - (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8), m, v


@program(2, g0=made(0, *BIG), g1=made(1, *BIG), w=given((0, 1), *BIG))
def tied_weights(g0: Any, g1: Any, w: Any) -> Any:
    return {"w": w - 0.1 * (g0 + g1)}


@program(3, g0=made(0, *BIG), g1=made(1, *BIG), g2=made(2, *BIG), w=given((0, 1, 2), *BIG))
def tied_weights_of_three_meshes(g0: Any, g1: Any, g2: Any, w: Any) -> Any:
    return {"w": w - 0.1 * (g0 + g1 + g2)}


@program(
    2,
    g0=made(0, *BIG),
    g1=made(1, *BIG),
    w=given((0, 1), *BIG),
    m=given((), *BIG),
    v=given((), *BIG),
    count=given((), dtype="int32"),
)
def tied_weights_with_adam(g0: Any, g1: Any, w: Any, m: Any, v: Any, count: Any) -> Any:
    w, m, v = adam(g0 + g1, w, m, v, count + 1)
    return {"w": w, "m": m, "v": v, "count": count + 1}


@program(
    3,
    g0=made(0, *BIG),
    g1=made(1, *BIG),
    w0=given((0,), *BIG),
    w1=given((1,), *BIG),
    m0=given((), *BIG),
    m1=given((), *BIG),
    v0=given((), *BIG),
    v1=given((), *BIG),
    count=given((), dtype="int32"),
)
def adam_with_clipping(g0: Any, g1: Any, w0: Any, w1: Any, m0: Any, m1: Any, v0: Any, v1: Any, count: Any) -> Any:
    factor = jnp.minimum(1, 1 / norm(g0, g1))
    w0, m0, v0 = adam(g0 * factor, w0, m0, v0, count + 1)
    w1, m1, v1 = adam(g1 * factor, w1, m1, v1, count + 1)
    return {"w0": w0, "w1": w1, "m0": m0, "m1": m1, "v0": v0, "v1": v1, "count": count + 1}


@program(3, loss=made(2), g0=made(0, *BIG), g1=made(1, *BIG), w0=given((0,), *BIG), w1=given((1,), *BIG))
def learning_rate_from_the_loss(loss: Any, g0: Any, g1: Any, w0: Any, w1: Any) -> Any:
    rate = 0.1 * jnp.tanh(loss)
    return {"w0": w0 - rate * g0, "w1": w1 - rate * g1, "rate": rate}


@program(2, g0=made(0, *BIG), g1=made(1, *BIG), w0=given((0,), *BIG), w1=given((1,), *BIG), rate=given(()))
def learning_rate_that_is_given(g0: Any, g1: Any, w0: Any, w1: Any, rate: Any) -> Any:
    return {"w0": w0 - rate * g0, "w1": w1 - rate * g1}


@program(
    2,
    g0=made(0, *BIG),
    g1=made(1, *BIG),
    w0=given((0,), *BIG),
    w1=given((1,), *BIG),
    scale=given((0, 1)),
    good=given((), dtype="int32"),
)
def loss_scale(g0: Any, g1: Any, w0: Any, w1: Any, scale: Any, good: Any) -> Any:
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in (g0, g1)]))
    w0, w1 = jnp.where(finite, w0 - g0 / scale, w0), jnp.where(finite, w1 - g1 / scale, w1)
    scale = jnp.where(finite, jnp.where(good >= 1, scale * 2, scale), scale / 2)
    return {"w0": w0, "w1": w1, "scale": scale, "good": jnp.where(finite, good + 1, 0)}


@program(2, small=made(0, 40), other=made(0, 40), big=made(1, *BIG))
def a_big_value_with_two_small_ones(small: Any, other: Any, big: Any) -> Any:
    return {"sum": jnp.sum(big[:40, :40] * jnp.sin(small) + jnp.cos(other))}


@program(2, a=made(0, 400), b=made(0, 400), big=made(1, 400, 400))
def an_outer_product_meets_a_big_value(a: Any, b: Any, big: Any) -> Any:
    return {"all": jnp.outer(a, b) @ big}


@program(2, a=made(0, 400, 4), b=made(0, 4, 400), big=made(1, 400, 400), w=given((1,), 400, 400))
def a_product_of_low_rank_updates_a_weight(a: Any, b: Any, big: Any, w: Any) -> Any:
    return {"w": w - big - a @ b}


@program(2, x=made(0, *BIG), y=made(1, *BIG), w=given((1,), *BIG))
def a_sum_is_needed_elsewhere(x: Any, y: Any, w: Any) -> Any:
    return {"w": w + jnp.sum(jnp.tanh(x)) * y}


@program(2, x=made(0, *BIG), y=made(0, *BIG), w=given((1,), *BIG))
def two_values_become_one_before_they_move(x: Any, y: Any, w: Any) -> Any:
    return {"w": jnp.tanh(x) @ y + w}


@program(2, x=made(0, *BIG), y=made(1, *BIG), w=given((1,), *BIG))
def a_chain_that_ends_where_its_result_is_needed(x: Any, y: Any, w: Any) -> Any:
    """Where operands tie, what follows decides."""
    both = x @ y
    return {"w": jnp.tanh(jnp.tanh(both) @ y) + w}


@program(2, x=made(0, *BIG), y=made(1, *BIG))
def a_diamond(x: Any, y: Any) -> Any:
    both = jnp.tanh(x) @ x
    return {"w": jnp.sin(both) @ y + jnp.cos(both) @ y}


@program(3, x=made(0, *BIG), w0=given((0,), *BIG), w1=given((1,), *BIG), w2=given((2,), *BIG))
def a_value_used_on_three_meshes(x: Any, w0: Any, w1: Any, w2: Any) -> Any:
    y = jnp.tanh(x) @ x
    return {"w0": w0 + y, "w1": w1 + y, "w2": w2 + y}


@program(3, x=made(0, 160), w0=given((0,), *BIG), w1=given((1,), *BIG), w2=given((2,), *BIG))
def an_expanding_operation_used_on_three_meshes(x: Any, w0: Any, w1: Any, w2: Any) -> Any:
    y = jnp.tanh(jnp.broadcast_to(x, BIG) * x[:, None])
    return {"w0": w0 + y, "w1": w1 + y, "w2": w2 + y}


@program(2, s=made(0), t=made(0), w=given((1,), *BIG))
def scalars_made_big_and_multiplied(s: Any, t: Any, w: Any) -> Any:
    return {"w": w + jnp.full(BIG, s) * jnp.full(BIG, t)}


@program(2, x=made(0, *BIG), y=made(1, *BIG), w0=given((0,), *BIG), w1=given((1,), *BIG))
def two_scalars_from_one(x: Any, y: Any, w0: Any, w1: Any) -> Any:
    """What is made of the scalar is made on both meshes, since both have it anyway."""
    size = norm(x, y)
    large, factor = size > 1, 1 / size
    return {"w0": jnp.where(large, x * factor, w0), "w1": jnp.where(large, y * factor, w1), "size": size}


@program(2, x=made(0, *BIG), w0=given((0,), *BIG), w1=given((1,), *BIG))
def a_value_and_what_is_made_of_it_on_both_meshes(x: Any, w0: Any, w1: Any) -> Any:
    y = 2 * x
    return {"w0": w0 * x + y, "w1": w1 * x + y}


@program(3, x=made(0, *BIG), tied=given((0, 1), *BIG), w2=given((2,), *BIG))
def a_norm_of_a_tied_weight_used_on_a_third_mesh(x: Any, tied: Any, w2: Any) -> Any:
    return {"tied": tied - x, "w2": w2 / norm(tied)}


@program(2, x=made(0, *BIG), count=given((), dtype="int32"), scale=given((0, 1)), y=made(1, *BIG))
def counters(x: Any, count: Any, scale: Any, y: Any) -> Any:
    return {"count": count + 1, "scale": scale * 0.9, "x": x * count, "y": y * count}


@program(2, w0=given((0,), *BIG), w1=given((1,), *BIG))
def weights_scaled_by_their_common_norm_before_the_loop(w0: Any, w1: Any) -> Any:
    size = norm(w0, w1)
    return {"mesh 0": w0 / size, "mesh 1": w1 / size}


@program(2, m=given((), *BIG), w0=given((0,), *BIG))
def a_product_before_the_loop_used_on_both_meshes(m: Any, w0: Any) -> Any:
    return {"mesh 0": m @ m, "mesh 1": m @ m.T, "w0": w0 * 0.9}


@program(2, m=given((0,), *BIG), w=given((1,), *BIG))
def a_mask_made_of_a_value_of_another_mesh(m: Any, w: Any) -> Any:
    return {"mesh 1": jnp.where(jnp.mean(m, 0) > 0, w, 0)}


@program(3, g0=made(0, *BIG), g1=made(1, *BIG), g2=made(2, *BIG), w=given((2,), *BIG))
def a_sum_for_the_last_mesh(g0: Any, g1: Any, g2: Any, w: Any) -> Any:
    return {"w": w - 0.1 * (g0 + g1 + g2)}


@program(2, g=made(0, *BIG), w=given((0,), *BIG), slow=given((1,), *BIG))
def a_copy_of_a_weight_on_another_mesh(g: Any, w: Any, slow: Any) -> Any:
    w = w - 0.1 * g
    return {"w": w, "slow": slow + 0.5 * (w - slow)}


@program(2, x=made(0, 1, 160), y=made(1, *BIG), w=given((0,), 1, 160))
def a_vector_goes_there_and_back(x: Any, y: Any, w: Any) -> Any:
    return {"w": w + jnp.tanh(x @ y)}


@program(2, x=made(0, *BIG), y=made(1, *BIG), state=given((), *BIG))
def a_state_that_belongs_where_it_is_updated(x: Any, y: Any, state: Any) -> Any:
    state = 0.9 * state + x @ jnp.tanh(x)
    return {"state": state, "y": y * jnp.sum(state)}


@program(2, x=made(0, 40, 40), y=made(1, *BIG), state=given((), *BIG))
def a_state_that_is_bigger_than_what_updates_it(x: Any, y: Any, state: Any) -> Any:
    return {"state": state.at[:40, :40].add(x) + y}


# Two products of gradients stay where these are, beside a third that is sent: to save two scalars no product moves.
SCALARS_MORE = {"all_products_of_gradients": 8}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fewest_bytes_move(name: str) -> None:
    module = PROGRAMS[name].module()
    fewest = Choices.of(module).fewest()
    assert bytes_moved(module, Validate()) == fewest + SCALARS_MORE.get(name, 0)


@pytest.mark.parametrize("name", ["gradients_added", "counters", "a_sum_is_needed_elsewhere", "tied_weights"])
def test_the_optimum_is_that_of_trying_all(name: str) -> None:
    choices = Choices.of(PROGRAMS[name].module())
    assert choices.fewest() == choices.by_trying_all()


SHAPES = [(), (40,), (1, 160), BIG]
STEPS: list[Callable[[jax.Array, jax.Array], jax.Array]] = [
    lambda x, y: x + y,
    lambda x, y: x @ y if x.shape == BIG else x * y,
    lambda x, y: jnp.tanh(x),
    lambda x, y: jnp.abs(x),
    lambda x, y: jnp.sum(x),
    lambda x, y: jnp.mean(x, 0, keepdims=True) if x.ndim == 2 else x * 2,
    lambda x, y: jnp.full(BIG, x.ravel()[0]),
]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A few values of tasks, a few arguments that come back, and a few operations on any of them."""
    meshes = draw(st.integers(2, 4))
    shape, mesh = st.sampled_from(SHAPES), st.integers(0, meshes - 1)
    arguments: dict[str, Argument] = {}
    for k in range(draw(st.integers(1, 4))):
        arguments[f"g{k}"] = made(draw(mesh), *draw(shape))
    for k in range(draw(st.integers(0, 3))):
        arguments[f"w{k}"] = given(tuple(sorted(draw(st.sets(mesh, max_size=2)))), *draw(shape))
    steps = draw(st.lists(st.tuples(st.sampled_from(STEPS), *[st.integers(0, 63)] * 2), min_size=2, max_size=9))

    def function(**values: jax.Array) -> dict[str, jax.Array]:
        found = [values[name] for name in arguments]
        for step, first, second in steps:
            x = found[first % len(found)]
            same = [value for value in found if value.shape == x.shape]
            found.append(step(x, same[second % len(same)]))
        state = {
            name: next(value for value in reversed(found) if value.shape == argument.shape)
            for name, argument in arguments.items()
            if not argument.made
        }
        return state | {"last": found[-1], "last but one": found[-2]}

    return Program(function, meshes, arguments)


@settings(deadline=None, max_examples=100, derandomize=True)
@for_all(programs())
def test_any_program_moves_few_bytes(program: Program) -> None:
    """On two meshes the fewest but for a few scalars; on more, where these are NP-hard to find, at most twice as many.

    A counter that several meshes have may be kept on another that uses it: then even fewer.
    """
    module = program.module()
    fewest = Choices.of(module).fewest()
    assert bytes_moved(module) <= (1 if program.meshes == 2 else 2) * fewest + 16


@settings(deadline=None, max_examples=10, derandomize=True)
@for_all(programs())
def test_any_program_computes_the_same(program: Program) -> None:
    bytes_moved(program.module(), Validate())
