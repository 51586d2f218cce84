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
    for up, down in zip(stage["up"], stage["down"], strict=True):
        x = of_layer({"up": up, "down": down}, x)
    return x


def scanned(of_layer: Layer, stage: Any, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, layer: (of_layer(layer, x), None), x, stage)[0]


def summed(layer: Any, x: jax.Array) -> jax.Array:
    """`mlp` on each device of a stage, with the sum over them written out."""
    return x + lax.psum(jnp.tanh(x @ layer["up"]) @ layer["down"], "model")


def mapped(of_layer: Layer, stage: Any, x: jax.Array) -> jax.Array:
    mesh = make_mesh(STAGES, model=2).jax_mesh
    return jax.shard_map(partial(unrolled, of_layer), mesh=mesh, in_specs=(SPECS[0], P()), out_specs=P())(stage, x)


def marked(x: jax.Array, is_marked: bool) -> jax.Array:
    return jaxpp.mark_unit_end(x) if is_marked else x


def loss(params: Any, microbatch: Any, *, of_stage: Any, of_layer: Layer, is_marked: bool) -> jax.Array:
    x = microbatch["x"]
    for stage in params:
        x = jaxpp.mark_stage_end(of_stage(lambda layer, x: marked(of_layer(layer, x), is_marked), stage, x))
    return jnp.mean((x - microbatch["y"]) ** 2)


def lowered(
    of_stage: Any,
    of_layer: Layer = mlp,
    is_marked: bool = True,
    schedule: str = "dualpipe",
    meshes: int = STAGES,
    recompute: Any = None,
    after: Callable[[Any], Any] = tuple,
) -> Any:
    step = partial(sgd_step, loss=partial(loss, of_stage=of_stage, of_layer=of_layer, is_marked=is_marked))
    pipelined = jaxpp.mpmd_jit_with_loop(
        lambda *args: after(step(*args, schedule=schedule)),
        make_mesh(meshes, model=2),
        in_shardings=(SPECS, P()),
        recompute=recompute,
    )
    return pipelined.lower(PARAMS, batch(2 * STAGES, width=WIDTH))


@pytest.mark.parametrize(("of_stage", "of_layer"), [(unrolled, mlp), (scanned, jax.checkpoint(mlp)), (mapped, summed)])
def test_woven_tasks_have_the_bits_of_those_that_are_not(of_stage: Any, of_layer: Layer) -> None:
    """The fused task of a mesh has two units of each half; all but the first of each wait for one of the other half."""
    args = PARAMS, batch(2 * STAGES, width=WIDTH)
    woven, plain = (lowered(of_stage, of_layer, is_marked) for is_marked in (True, False))
    texts = [each.program().as_text() for each in (woven, plain)]
    assert [text.count("jaxpp.boundary") for text in texts] == [0, 0]
    barriers = [text.count("stablehlo.optimization_barrier") for text in texts]
    assert barriers[0] == barriers[1] + 2 or of_stage is scanned  # whose checkpoints are unrolled too
    found = woven.compile()(*args)
    assert_same(found, plain.compile()(*args), exact=True)
    step = partial(sgd_step, loss=partial(loss, of_stage=of_stage, of_layer=of_layer, is_marked=True))
    assert_same(found, jax.jit(step)(*args))


@pytest.mark.parametrize("recompute", [None, "inputs"])
def test_the_pairs_of_stp_are_woven(recompute: str | None) -> None:
    """Two stages on one mesh, a pair of each."""
    program = partial(lowered, unrolled, mlp, schedule="stp", meshes=1, recompute=recompute)
    woven, plain = (program(is_marked=each).program().as_text() for each in (True, False))
    assert woven.count("stablehlo.optimization_barrier") == plain.count("stablehlo.optimization_barrier") + 2


def in_a_conditional(of_layer: Layer, stage: Any, x: jax.Array) -> jax.Array:
    return lax.cond(x.sum() > 0, partial(unrolled, of_layer, stage), lambda x: x, x)


def in_a_loop(of_layer: Layer, stage: Any, x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda x: x.sum() > 0, lambda x: lax.stop_gradient(unrolled(of_layer, stage, x)), x)


@pytest.mark.parametrize(
    ("of_stage", "error"),
    [
        (in_a_conditional, "a unit mark inside a conditional"),
        (
            in_a_loop,
            "a unit mark inside a loop that runs an unknown number of times",
        ),
    ],
)
def test_marks_where_no_unit_can_end_in_fused_tasks(of_stage: Any, error: str) -> None:
    with pytest.raises(PassError, match=rf"{error}\n.*put unit marks between two of these"):
        lowered(lambda layer, stage, x: of_stage(layer, stage, lax.stop_gradient(x))).program()


@pytest.mark.parametrize("of_stage", [scanned, mapped, in_a_conditional, in_a_loop])
def test_marks_of_tasks_that_are_not_fused_change_nothing(of_stage: Any) -> None:
    """The scan stays a scan, the shard_map whole; in the others there could be no marks of units that are woven."""

    def stage(of_layer: Layer, stage: Any, x: jax.Array) -> jax.Array:
        return of_stage(of_layer, stage, x if of_stage in (scanned, mapped) else lax.stop_gradient(x))

    of_layer = summed if of_stage is mapped else mlp
    marked, plain = (
        lowered(stage, of_layer, is_marked=each, schedule="1f1b").program().as_text() for each in (True, False)
    )
    assert marked == plain


def test_a_mark_outside_of_the_loop_changes_nothing() -> None:
    inside, both = (lowered(unrolled, after=after).program().as_text() for after in (tuple, jaxpp.mark_unit_end))
    assert inside == both
