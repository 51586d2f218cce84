"""The plan of a small GPT with two-way tensor parallelism, by the real compilers."""

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxpp
from jaxpp.targets.target import Target

sys.path.append(str(Path(__file__).parents[2] / "examples"))
gpt_model: Any = importlib.import_module("gpt_model")

CONFIG = gpt_model.Config(stages=2, layers=4, width=256, heads=4, sequence=128, dtype="bfloat16")
MICROBATCHES = 4


@pytest.fixture(scope="module")
def compiled(target: Target) -> Any:
    """A training step of a small GPT for a target."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    parameters = jax.tree.map(shape, gpt_model.init(CONFIG, 0))

    def train_step(parameters: Any, batch: jax.Array) -> Any:
        losses, gradients = jaxpp.treduce(
            partial(jax.value_and_grad(partial(gpt_model.loss, CONFIG)), parameters),
            batch,
            schedule=jaxpp.schedules.Std1F1B(2),
            operation=(jaxpp.Concat(), jaxpp.Add),
        )
        return jax.tree.map(lambda p, g: p - 1e-3 * g, parameters, gradients), jnp.mean(losses)  # pyright: ignore[reportUnknownLambdaType]

    step = jaxpp.mpmd_jit_with_loop(
        train_step,
        target.mesh((2, 1, 2), ("mpmd", "data", "model")),
        in_shardings=(gpt_model.specs(parameters), P(None, "data")),
        donate_argnums=0,
    )
    batch = jax.ShapeDtypeStruct((MICROBATCHES, 2, CONFIG.sequence + 1), np.int32)
    return step.lower(parameters, batch).compile()


def test_it_compiles_and_fits(compiled: Any) -> None:
    plan = compiled.plan
    assert plan.fits
    assert 0 < plan.step_seconds < 0.1
    assert 0 < plan.utilisation < 1
    by = "roofline" if plan.facts.platform == "cuda" else "compiler"
    assert {each.timed_by for each in plan.programs if each.products} == {by}


def test_the_account_is_that_of_the_compiler(compiled: Any) -> None:
    """Arguments and results, less aliases; a TPU pads what is smaller than a tile."""
    for each in compiled.plan.programs:
        assert abs(each.padding_bytes) <= 0.02 * each.accounted_bytes + 8192, each
