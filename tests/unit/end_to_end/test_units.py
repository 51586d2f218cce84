"""Units of stages: woven where tasks are fused, and the same numbers whether they are or not."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import assert_same, batch, make_mesh, sgd_step

import jaxpp.api as jaxpp
from jaxpp import PassError

STAGES, LAYERS, WIDTH, HIDDEN = 2, 2, 8, 16
Layer = Callable[[Any, jax.Array], jax.Array]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / shape[-2] ** 0.5


PARAMS = [
    {"up": normal(2 * k, LAYERS, WIDTH, HIDDEN), "down": normal(2 * k + 1, LAYERS, HIDDEN, WIDTH)}
    for k in range(STAGES)
]
SPECS = [{"up": P(None, None, "model"), "down": P(None, "model")}] * STAGES


def mlp(layer: Any, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ layer["up"]) @ layer["down"]


def unrolled(of_layer: Layer, stage: Any, x: jax.Array) -> jax.Array:
    for k in range(LAYERS):
        x = of_layer(jax.tree.map(lambda leaf: leaf[k], stage), x)
    return x


def scanned(of_layer: Layer, stage: Any, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, layer: (of_layer(layer, x), None), x, stage)[0]


def loss(params: Any, microbatch: Any, *, of_stage: Any, of_layer: Layer, is_marked: bool) -> jax.Array:
    mark = jaxpp.mark_unit_end if is_marked else lambda x: x
    x = microbatch["x"]
    for stage in params:
        x = jaxpp.mark_stage_end(of_stage(lambda layer, x: mark(of_layer(layer, x)), stage, x))
    return jnp.mean((x - microbatch["y"]) ** 2)


def lowered(is_marked: bool, schedule: Any = "dualpipe", of_stage: Any = unrolled, of_layer: Layer = mlp) -> Any:
    step = jaxpp.mpmd_jit_with_loop(
        partial(
            sgd_step, schedule=schedule, loss=partial(loss, of_stage=of_stage, of_layer=of_layer, is_marked=is_marked)
        ),
        mpmd_mesh=make_mesh(STAGES, model=2),
        in_shardings=(SPECS, P()),
    )
    return step.lower(PARAMS, batch(2 * STAGES, width=WIDTH))


def barriers(lowered: Any) -> int:
    return lowered.program().as_text().count("stablehlo.optimization_barrier")


@pytest.mark.parametrize("of_stage", [unrolled, scanned])
@pytest.mark.parametrize("of_layer", [mlp, jax.checkpoint(mlp)], ids=["kept", "checkpoint"])
def test_woven_tasks_have_the_bits_of_those_that_are_not(of_stage: Any, of_layer: Layer) -> None:
    """The fused task of a mesh has two units of each half, three of which wait for another one's."""
    args = PARAMS, batch(2 * STAGES, width=WIDTH)
    woven, plain = (lowered(is_marked, of_stage=of_stage, of_layer=of_layer) for is_marked in (True, False))
    assert "jaxpp.unit" not in woven.program().as_text()
    assert barriers(woven) > barriers(plain)
    found = woven.compile()(*args)
    assert_same(found, plain.compile()(*args), exact=True)
    reference = partial(sgd_step, loss=partial(loss, of_stage=of_stage, of_layer=of_layer, is_marked=True))
    assert_same(found, jax.jit(reference)(*args))
