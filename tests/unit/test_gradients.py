"""The table of `CompiledStep.gradients`, and the sums that it is read from."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, loss, make_mesh, weights

import jaxpp.api as jaxpp

Update = Callable[[jax.Array, jax.Array, Any], jax.Array]


def rows(update: Update, *, loss: Callable[..., Any] = loss, mean: bool = False, **mesh: Any) -> list[list[str]]:
    """Returns the rows of the table of a step of two stages and four microbatches."""

    def step(params: Any, batch: Any) -> Any:
        operation: Any = jaxpp.Mean if mean else (jaxpp.Max(), jaxpp.Add)
        value, gradients = jaxpp.treduce(
            partial(jax.value_and_grad(loss), params), batch, schedule="1f1b", operation=operation
        )
        return jax.tree.map(lambda w, g: update(w, g, gradients), params, gradients), value

    lowered = jaxpp.mpmd_jit_with_loop(step, make_mesh(2, **mesh)).lower(weights(2), batch(4))
    text = lowered.compile().gradients()
    return [[cell.strip() for cell in line.split("  ") if cell] for line in text.partition("\n\n")[0].splitlines()[1:]]


def descended(w: jax.Array, g: jax.Array, gradients: Any) -> jax.Array:
    return w - 0.1 * g


def clipped(w: jax.Array, g: jax.Array, gradients: Any) -> jax.Array:
    norm = jnp.sqrt(sum(jnp.sum((each / 4) ** 2) for each in gradients))
    return w - 0.1 * (g / 4) * jnp.minimum(1.0, 1 / norm)


def masked(w: jax.Array, g: jax.Array, gradients: Any) -> jax.Array:
    return w - 0.1 * jnp.where(w > 0, g, 0)


def tied(params: Any, microbatch: Any) -> jax.Array:
    return loss([params[0], params[0]], microbatch) + 0 * jnp.sum(params[1])


@pytest.mark.parametrize(
    ("update", "options", "expected"),
    [
        (descended, {}, [["params[0]", "0", "4 microbatches", "-0.1"], ["params[1]", "1", "4 microbatches", "-0.1"]]),
        (
            descended,
            {"mean": True},
            [
                ["params[0]", "0", "4 microbatches", "-0.025"],
                ["params[1]", "1", "4 microbatches", "-0.025"],
                ["result[1]", "1", "4 microbatches", "0.0078125"],
            ],
        ),
        (
            clipped,
            {},
            [
                ["params[0]", "0", "4 microbatches", "-0.025 times a value"],
                ["params[1]", "1", "4 microbatches", "-0.025 times a value"],
            ],
        ),
        (
            masked,
            {},
            [
                ["params[0]", "0", "4 microbatches", "-0.1 times a value"],
                ["params[1]", "1", "4 microbatches", "-0.1 times a value"],
            ],
        ),
        (
            descended,
            {"data": 2},
            [["params[0]", "0", "4 microbatches", "-0.1"], ["params[1]", "1", "4 microbatches", "-0.1"]],
        ),
    ],
)
def test_the_table(update: Update, options: dict[str, Any], expected: list[list[str]]) -> None:
    assert rows(update, **options) == expected


@pytest.mark.parametrize("factor", [0.5, 2, 0.3])
def test_a_constant_of_the_loss_is_in_the_scale(factor: float) -> None:
    """It may be a constant of each task, or an argument of all."""

    def scaled(params: Any, microbatch: Any) -> jax.Array:
        return loss([factor * w for w in params], microbatch)

    assert {row[-1] for row in rows(descended, loss=scaled)} == {f"{-0.1 * factor:g}"}


def test_a_learning_rate_that_is_an_argument_is_a_value() -> None:
    def step(params: Any, batch: Any, rate: Any) -> Any:
        gradient = partial(jax.grad(loss), params)
        gradients = jaxpp.treduce(gradient, batch, schedule="1f1b", operation=jaxpp.Mean)
        return jax.tree.map(lambda w, g: w - rate * g, params, gradients), rate

    compiled = jaxpp.mpmd_jit_with_loop(step, make_mesh(2)).lower(weights(2), batch(4), jnp.float32(0.1)).compile()
    assert compiled.gradients().splitlines()[1].endswith("  -0.25 times a value")


def test_a_weight_of_two_stages_is_summed_over_both() -> None:
    assert rows(descended, loss=tied)[0] == ["params[0]", "0, 1", "4 microbatches", "-0.1"]


def test_a_collective_names_its_axis() -> None:
    mesh = make_mesh(2, data=2).jax_mesh

    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w)

    def mapped(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for w in params:
            x = jaxpp.mark_stage_end(layer(w, x))
        return jnp.mean((x - microbatch["y"]) ** 2)

    assert rows(descended, loss=mapped, data=2) == [
        ["params[0]", "0", "4 microbatches, data", "-0.1"],
        ["params[1]", "1", "4 microbatches, data", "-0.1"],
    ]


def test_what_is_no_sum_is_unknown() -> None:
    def step(params: Any, batch: Any) -> Any:
        gradient = jax.grad(loss)
        largest = jaxpp.treduce(partial(gradient, params), batch, schedule="1f1b", operation=jaxpp.Max())
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, largest)

    compiled = jaxpp.mpmd_jit_with_loop(step, make_mesh(2)).lower(weights(2), batch(4)).compile()
    assert compiled.gradients().splitlines()[1].split() == ["params[0]", *["unknown"] * 3]
