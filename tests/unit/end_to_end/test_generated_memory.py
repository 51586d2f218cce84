"""Generated stages that scan over layers, under generated schedules that move and make again what they keep.

JAXPP_GENERATED=300 in the environment runs as many, and not the few of the suite.
"""

# pyright: reportUnknownLambdaType=false

import os
import random
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from unit.end_to_end.compare import batch, check, make_mesh
from unit.end_to_end.test_scanned_layers import stack, step_of

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.errors import ProgramError
from jaxpp.schedules.memory import activations

LAYERS = 2


def key(number: jax.Array) -> jax.Array:
    """A key of each layer."""
    return jax.random.fold_in(jax.random.key(1), number.astype(jnp.int32))


@jax.custom_vjp
def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    """A product, with a gradient of its own that reads what nothing else does."""
    return x * scale


def scaled_backward(kept: Any, gradient: jax.Array) -> Any:
    x, scale, sine = kept
    return gradient * scale * (1 + 0 * sine), (gradient * x).sum(axis=0)


scaled.defvjp(lambda x, scale: (x * scale, (x, scale, jnp.sin(x))), scaled_backward)


def in_chunks(x: jax.Array, w: Any, i: jax.Array) -> jax.Array:
    """A loop over the rows of each layer, which also reads what they have in common."""
    mean = jnp.tanh(x.mean(axis=0) * (1 + i))

    def chunk(total: jax.Array, row: jax.Array) -> Any:
        row = jax.nn.gelu(row @ w["up"]) * jnp.cos(mean)
        return 0.5 * (total + row), (1 - jnp.tanh(row) ** 2) * total

    total, rows = jax.lax.scan(chunk, mean, x, reverse=True)
    return x + 0.1 * (rows + total)


OPERATIONS: dict[str, Callable[[jax.Array, Any, jax.Array], jax.Array]] = {
    "product": lambda x, w, i: x @ w["up"],
    "residual": lambda x, w, i: x + jnp.tanh(x @ w["down"]),
    "gelu": lambda x, w, i: jax.nn.gelu(x + w["bias"]),
    "norm": lambda x, w, i: jax.nn.standardize(x) * w["scale"] + w["shift"],
    "count": lambda x, w, i: x * (1 + i),
    "dropout": lambda x, w, i: jnp.where(jax.random.bernoulli(key(i), 0.9, x.shape), x, 0),
    "attention": lambda x, w, i: jax.nn.softmax(x @ x.T) @ x,
    "square": lambda x, w, i: x - 0.1 * x * x,
    "checkpoint": lambda x, w, i: jax.checkpoint(lambda x: jnp.sin(x @ w["out"]))(x),
    "branch": lambda x, w, i: jax.lax.cond(i > 0, lambda x: jnp.tanh(x @ w["out"]), jnp.cos, x),
    "until": lambda x, w, i: (
        x + jax.lax.while_loop(lambda y: y[0, 0] < i, lambda y: y + 0.5, 0 * jax.lax.stop_gradient(x))
    ),
    "narrow": lambda x, w, i: (x.astype(jnp.bfloat16) * 2).astype(jnp.float32) - x,
    "chunks": lambda x, w, i: in_chunks(x, w, i),
    "rule": lambda x, w, i: scaled(x, w["scale"]),
}


def stage_of(draw: random.Random) -> Callable[[jax.Array, Any], jax.Array]:
    """A scan, or its layers one by one, with a loop in each layer at times."""
    names = draw.choices(list(OPERATIONS), k=draw.randint(2, 5))
    scans, reverse, stacks, inner = (draw.random() < share for share in (0.85, 0.3, 0.3, 0.2))

    def layer(x: jax.Array, each: Any) -> Any:
        w, i = each
        for name in names:
            x = OPERATIONS[name](x, w, i)
        if inner:
            x = jax.lax.scan(lambda x, b: (jnp.sin(x + b), None), x, w["up"][:2])[0]
        return x, jnp.cos(x) if stacks else None

    def stage(x: jax.Array, w: Any) -> jax.Array:
        numbers = jnp.arange(LAYERS, dtype=jnp.float32)
        if scans:
            x, rows = jax.lax.scan(layer, x, (w, numbers), reverse=reverse)
            return x + rows.sum(axis=0) if stacks else x
        for number in range(LAYERS):
            x = layer(x, ({name: leaf[number] for name, leaf in w.items()}, numbers[number]))[0]
        return x

    return stage


def schedule_of(draw: random.Random) -> schedules.Schedule:
    """1F1B, GPipe or ZB-H1, with some of what there is to keep less."""

    def some() -> list[int]:
        return draw.sample(range(4), draw.randint(1, 4))

    plan = schedules.make(draw.choice(["1f1b", "gpipe", "zb-h1"]), meshes=4, microbatches=4)
    changes: list[Callable[[schedules.Schedule], schedules.Schedule]] = [
        schedules.evict,
        lambda plan: schedules.offload(plan, *some(), k=draw.choice([0.5, 1.0, 2.0])),
        lambda plan: schedules.recompute(plan, *some()),
    ]
    for change in draw.sample(changes, draw.randint(0, 3)):
        plan = change(plan)
    return plan


@pytest.mark.parametrize("seed", range(int(os.environ.get("JAXPP_GENERATED", "2"))))
def test_what_is_kept_less_changes_no_numbers(seed: int) -> None:
    """Nor does a donated state; peaks are those of the schedule, and a limit is kept, or refused by name."""
    draw = random.Random(seed)
    plan, stages = schedule_of(draw), [stage_of(draw) for _ in range(4)]
    step, arguments = step_of(plan, stages), ([stack(k) for k in range(4)], batch(4))
    keep = draw.choice([None, None, "inputs", "selective", 0.05, 0.3, 1.0])
    given = jax.tree.map(jnp.array, arguments)
    check(step, given, make_mesh(4), recompute=keep, donate_argnums=draw.choice([(), 0]), tolerance=1e-4)
    program = jaxpp.mpmd_jit_with_loop(step, make_mesh(4)).lower(*arguments).program()
    peaks = [int(peak) for peak in re.findall(r"jaxpp\.peak_activations = (\d+)", program.as_text())]
    assert all(found <= kept for found, kept in zip(peaks, activations(plan), strict=True))
    limit = int(draw.uniform(0.5, 1.0) * max(program.peak_bytes))
    try:
        limited = jaxpp.mpmd_jit_with_loop(step, make_mesh(4), memory_limit=limit).lower(*arguments).program()
    except ProgramError as error:
        assert f"its memory limit is {limit:,}" in str(error)  # noqa: PT017
    else:
        assert max(limited.peak_bytes) <= limit
