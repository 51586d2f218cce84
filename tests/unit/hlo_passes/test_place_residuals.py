"""What a backward computes again of its forward."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxpp
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.hlo_passes.stages.place_residuals import PlaceResiduals
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.numbered import Numbered
from jaxpp.ir.ops import MOST_RECOMPUTED
from jaxpp.ir.tasks import StageTask, read_tasks
from jaxpp.lowering import lower


def test_no_value_takes_a_long_chain_to_compute_again() -> None:
    """XLA would fuse the whole chain into each of its users: 150 steps took three times as long as plain jit."""

    def loss(weight: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(12):
            x = x + x * x * weight
        x = jaxpp.mark_stage_end(x)
        return jaxpp.mark_stage_end(jnp.mean(x**2))

    def step(weight: jax.Array, batch: jax.Array) -> Any:
        gradient = partial(jax.value_and_grad(loss), weight)
        return jaxpp.treduce(
            gradient, batch, schedule=jaxpp.schedules.Std1F1B(2), operation=(jaxpp.Concat(), jaxpp.Add)
        )

    mesh = jaxpp.MpmdMesh(jax.sharding.Mesh(np.array(jax.devices()[:2]), ("mpmd",)), "mpmd")
    module = lower(step, (jnp.ones(3), jnp.ones((2, 4, 3))), mpmd_mesh=mesh).module
    passes = mpmd()
    run_passes(module, passes[: passes.index(PlaceResiduals()) + 1])
    with module.context:
        lengths = _lengths_again(MicrobatchLoop.of(module), StageTask.backward(0))
    assert MOST_RECOMPUTED // 2 < max(lengths) <= MOST_RECOMPUTED


def _lengths_again(loop: MicrobatchLoop, backward: StageTask) -> list[int]:
    """For each operation of `backward` that depends on no gradient, how many such operations it takes."""
    ops, tasks = read_tasks(loop.body)
    lengths: dict[int, int] = {}
    late: set[int] = set()
    for number, (makers, task) in enumerate(zip(Numbered(ops).makers, tasks, strict=True)):
        if task is not None and task > StageTask.forward(0) and (task != backward or not late.isdisjoint(makers)):
            late.add(number)
        elif task == backward:
            lengths[number] = 1 + sum(lengths.get(each, 0) for each in makers)
    return list(lengths.values())
