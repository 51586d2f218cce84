"""`mark-stages` on steps of plain JAX: the program that follows computes what XLA computes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import runline

from jaxpp.tools import execute, opt

Weights = Sequence[jax.Array]


def layer(x: jax.Array, w: jax.Array, skip: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x @ w) + skip, (x * x).mean()


def in_scopes(weights: Weights, microbatch: jax.Array) -> jax.Array:
    """Recomputed layers in scopes, with a skip connection from the first, an auxiliary loss and tied weights."""
    x = skip = microbatch @ weights[-1]
    total = jnp.float32(0)
    for number, w in enumerate(weights[:-1]):
        with jax.named_scope(f"layer{number}"):
            x, loss = jax.checkpoint(layer)(x, w, skip)
            total += loss
    return jnp.mean((x @ weights[-1].T) ** 2) + total


def in_calls(weights: Weights, microbatch: jax.Array) -> jax.Array:
    """Layers that are calls of one jitted function."""
    x = microbatch
    for w in weights:
        x, _ = jax.jit(layer)(x, w, microbatch)
    return jnp.mean(x**2)


def step_of(loss: Callable[[Weights, jax.Array], jax.Array]) -> Callable[..., Any]:
    """A step over microbatches, without marks."""

    def step(weights: list[jax.Array], batch: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        def body(sums: Any, microbatch: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(weights, microbatch)), None

        zeros = (jnp.float32(0), jax.tree.map(jnp.zeros_like, weights))
        value, gradients = jax.lax.scan(body, zeros, batch)[0]
        return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    return step


@pytest.mark.parametrize(
    ("loss", "after"),
    [(in_scopes, "layer0 layer1"), (in_calls, "layer#0 layer#2"), (jax.jit(in_scopes), "layer0 layer1")],
    ids=["scopes", "calls", "jitted"],
)
def test_a_step_of_plain_jax(loss: Callable[[Weights, jax.Array], jax.Array], after: str, tmp_path: Path) -> None:
    plain, marked, program = (tmp_path / f"{name}.mlir" for name in ("plain", "marked", "program"))
    lowered = jax.jit(step_of(loss)).lower([jnp.ones((8, 8))] * 4, jnp.ones((3, 2, 8)))
    plain.write_text(lowered.as_text(debug_info=True), encoding="utf-8")
    assert runline.call(opt.main, plain, "-p", f'mark-stages{{after="{after}"}}', "-o", marked).texts == (0, "", "")
    text = marked.read_text(encoding="utf-8")
    assert [text.count(f'phase = "{phase}"') for phase in ("forward", "backward")] == [2, 2]
    pipeline = ("--pipeline", "mpmd", "--schedule", "1f1b", "--meshes", 3, "-o", program)
    assert runline.call(opt.main, marked, *pipeline).texts == (0, "", "")
    calls = program.read_text(encoding="utf-8")
    assert all(f"@backward_{stage}" in calls for stage in range(3))
    code, out, err = runline.call(execute.main, program, "--reference", plain).texts
    assert (code, out.splitlines()[-1].partition(";")[0]) == (0, "5 of 5 results agree with plain.mlir"), err
