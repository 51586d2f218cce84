"""Accumulations that users write themselves: read in every microbatch, handed on twice, scaled, averaged, compared."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, make_mesh, weights
from unit.end_to_end.everywhere import in_turn

import jaxpp.api as jaxpp

MICROBATCHES = 4

ORDERED = ("1f1b", "zb-h1", "interleaved-1f1b", "gpipe")
"""Schedules by which each stage runs its microbatches in their order."""

add = partial(jax.tree.map, jnp.add)


def stacked_loss(params: jax.Array, microbatch: Any, factor: Any = 1.0) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jaxpp.mark_stage_end(jnp.tanh(x @ w)), None

    return factor * jnp.mean((lax.scan(layer, microbatch["x"], params)[0] - microbatch["y"]) ** 2)


def rows_loss(params: Sequence[jax.Array] | jax.Array, microbatch: Any, factor: Any = 1.0) -> jax.Array:
    """Of stacked layers that are read one after the other, or of a list."""
    x = microbatch["x"]
    for number in range(len(params)):
        x = jaxpp.mark_stage_end(jnp.tanh(x @ params[number]))
    return factor * jnp.mean((x - microbatch["y"]) ** 2)


FORMS: dict[str, Callable[[int], tuple[Callable[..., Any], Any]]] = {
    "list": lambda stages: (rows_loss, weights(stages)),
    "rows": lambda stages: (rows_loss, jnp.stack(weights(stages))),
    "scanned": lambda stages: (stacked_loss, jnp.stack(weights(stages))),
}

Body = Callable[[Callable[..., Any], Any, Any, Any], tuple[Any, Any]]
"""What a microbatch does: of `value_and_grad` of a loss, the weights, what is carried and the microbatch."""


def squares(tree: Any) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.float32(0))


def read_in_each(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    total = add(total, grads)
    return total, (value, squares(total))


def read_before(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    return add(total, grads), (value, squares(total))


def read_by_another_sum(gradient: Callable[..., Any], w: Any, sums: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    total = add(sums[0], grads)
    return (total, add(sums[1], total)), value


def handed_on_twice(gradient: Callable[..., Any], w: Any, sums: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    total = add(sums[0], grads)
    return (total, total), value


def crossed(gradient: Callable[..., Any], w: Any, sums: Any, x: Any) -> tuple[Any, Any]:
    """The two sums change places with each microbatch."""
    value, grads = gradient(w, x)
    return (add(sums[1], grads), sums[0]), value


def stacked_results(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    total = add(total, grads)
    return total, (value, total)


def maximum_that_is_read(gradient: Callable[..., Any], w: Any, largest: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    largest = jax.tree.map(jnp.maximum, largest, grads)
    return largest, (value, squares(largest))


def scaled(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    return jax.tree.map(lambda t, g: (t + g) * 0.5, total, grads), value


def scaled_before(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    """An exponential moving average."""
    value, grads = gradient(w, x)
    return jax.tree.map(lambda t, g: 0.9 * t + 0.1 * g, total, grads), value


def subtracted(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    return jax.tree.map(jnp.subtract, total, grads), value


def subtracted_from(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    return jax.tree.map(lambda t, g: g - t, total, grads), value


def running_mean(gradient: Callable[..., Any], w: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    mean, count = carry
    value, grads = gradient(w, x)
    count = count + 1.0
    return (jax.tree.map(lambda m, g: m + (g - m) / count, mean, grads), count), value


def doubled(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    return add(add(total, grads), total), value


def summed_and_largest(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    return jax.tree.map(lambda t, g: jnp.maximum(t + g, 0.01), total, grads), value


def from_python_numbers(gradient: Callable[..., Any], w: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    total, sums, largest = carry
    value, grads = gradient(w, x)
    return (total + value, add(sums, grads), jnp.maximum(largest, value)), None


def of_the_next_loss(gradient: Callable[..., Any], w: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    """The loss so far is a factor of the next one."""
    total, sums = carry
    value, grads = gradient(w, x, 1.0 + 0.1 * total)
    return (total + value, add(sums, grads)), value


def two_sums(gradient: Callable[..., Any], w: Any, sums: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    return (add(sums[0], grads), jax.tree.map(lambda t, g: t + g * g, sums[1], grads)), value


def added_twice(gradient: Callable[..., Any], w: Any, total: Any, x: Any) -> tuple[Any, Any]:
    value, grads = gradient(w, x)
    return add(add(total, grads), grads), (value, squares(grads))


def zeros(params: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, params)


BODIES: dict[str, tuple[Body, Callable[[Any], Any]]] = {
    "read in each microbatch": (read_in_each, zeros),
    "read before it is added to": (read_before, zeros),
    "read by another sum": (read_by_another_sum, lambda p: (zeros(p), zeros(p))),
    "handed on twice": (handed_on_twice, lambda p: (zeros(p), zeros(p))),
    "crossed": (crossed, lambda p: (zeros(p), jax.tree.map(jnp.ones_like, p))),
    "stacked": (stacked_results, zeros),
    "a maximum that is read": (maximum_that_is_read, zeros),
    "scaled": (scaled, zeros),
    "scaled before": (scaled_before, zeros),
    "subtracted": (subtracted, zeros),
    "subtracted from": (subtracted_from, zeros),
    "a running mean": (running_mean, lambda p: (zeros(p), jnp.float32(0))),
    "doubled": (doubled, zeros),
    "sum and maximum": (summed_and_largest, zeros),
    "from Python's numbers": (from_python_numbers, lambda p: (0.0, zeros(p), -jnp.inf)),
    "of the next loss": (of_the_next_loss, lambda p: (jnp.float32(0), zeros(p))),
    "two sums": (two_sums, lambda p: (zeros(p), zeros(p))),
    "added twice": (added_twice, zeros),
}
ANY_ORDER = "subtracted", "from Python's numbers", "two sums", "added twice"
"""What a schedule may take in any order."""


def step_of(loss: Callable[..., Any], body: Body, start: Callable[[Any], Any]) -> Callable[..., Any]:
    def step(params: Any, batch: Any) -> Any:
        gradient = jax.value_and_grad(loss)
        carried, values = lax.scan(partial(body, gradient, params), start(params), batch)
        kind = jax.tree.structure(params)
        sums = [
            each for each in (carried if isinstance(carried, tuple) else [carried]) if jax.tree.structure(each) == kind
        ]
        return jax.tree.map(lambda w, *sums: w - 0.1 * sum(sums), params, *sums), carried, values

    return step


def run(form: str, name: str, plan: str, **options: Any) -> None:
    stages, meshes = {"interleaved-1f1b": (4, 2), "dualpipe": (2, 2)}.get(plan, (4, 4))
    loss, params = FORMS[form](stages)
    step = step_of(loss, *BODIES[name])
    check(step, (params, batch(MICROBATCHES)), make_mesh(meshes), schedule=plan, **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "plan"), in_turn(BODIES, ORDERED))
def test_an_accumulation_in_the_order_of_the_microbatches(form: str, name: str, plan: str) -> None:
    run(form, name, plan)


@pytest.mark.parametrize("name", ["read in each microbatch", "read by another sum", "handed on twice"])
def test_sums_that_keep_their_order_are_equal_bit_for_bit(name: str) -> None:
    run("scanned", name, "1f1b", exact=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ANY_ORDER)
def test_sums_of_microbatches_in_two_directions(form: str, name: str) -> None:
    run(form, name, "dualpipe")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name in BODIES if name not in (*ANY_ORDER, "crossed")])
def test_in_two_directions_what_needs_an_order_is_refused(form: str, name: str) -> None:
    with pytest.raises(jaxpp.PassError, match="a stage must run the microbatches in ascending order"):
        run(form, name, "dualpipe")


def run_sharded(name: str, choice: str) -> None:
    """Two stages of two devices each, which shard weights and examples."""
    loss, params = FORMS["list"](2)
    shardings = [P(None, "data")] * 2, P(None, "data")
    options: dict[str, Any] = {"in_shardings": shardings, "gather_weights": choice, "scatter_gradients": choice}
    step = step_of(loss, *BODIES[name])
    check(step, (params, batch(MICROBATCHES)), make_mesh(2, data=2), schedule="1f1b", **options)


@pytest.mark.parametrize("choice", ["microbatch", "step"])
@pytest.mark.parametrize("name", ["read in each microbatch", "handed on twice", "subtracted", "added twice"])
def test_sums_for_sharded_weights(name: str, choice: str) -> None:
    run_sharded(name, choice)


def test_only_sums_that_nothing_reads_are_scattered_for_each_run() -> None:
    run_sharded("subtracted", "chunk")
    with pytest.raises(jaxpp.PassError, match="no gradient of a stage is scattered\n  something besides this addition"):
        run_sharded("read in each microbatch", "chunk")
