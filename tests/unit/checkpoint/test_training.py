"""A training that was saved goes on elsewhere as if nothing had happened."""

# pyright: reportUnknownLambdaType=false

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from unit.checkpoint.training import STEPS, batch, bits, first_state, pipeline, run, train_step

import jaxpp
from jaxpp import checkpoint

SAVED = 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any, list[float]]:
    """Trained on four meshes, saved on the way: where, the step, the state in the end, all losses."""
    directory = tmp_path_factory.mktemp("checkpoints")
    step = pipeline(jaxpp.schedules.Std1F1B(4), 4, slice(8), 4)
    state, losses = first_state(), []
    with checkpoint.Saver(directory, keep=1) as saver:
        for number in range(STEPS):
            state, value = step(state, batch(number))
            losses.append(float(value))
            if number < SAVED:
                saver.save(number + 1, state)  # written while the next steps run in the memory of this state
    assert checkpoint.all_steps(directory) == [SAVED]
    return directory, step, bits(state), losses


def test_on_the_same_meshes_every_bit_is_the_same(undisturbed: Any) -> None:
    directory, step, expected, losses = undisturbed
    state = checkpoint.restore(directory, step.in_shardings[0][0])
    wanted = jax.tree.map(lambda leaf: leaf.sharding, step.in_shardings[0][0])
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == wanted
    found, found_losses = run(step, state, SAVED)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert found_losses == losses[SAVED:]


@pytest.mark.parametrize("where", ["two stages", "four stages on two other meshes", "plain jit"])
def test_elsewhere_the_training_is_the_same(where: str, undisturbed: Any) -> None:
    directory, _, expected, losses = undisturbed
    if where == "plain jit":
        step = jax.jit(partial(train_step, jaxpp.schedules.Std1F1B(4), 4), donate_argnums=0)
        like = jax.eval_shape(first_state)
    else:
        schedule, stages, devices = {
            "two stages": (jaxpp.schedules.Std1F1B(2), 2, slice(8)),
            "four stages on two other meshes": (
                jaxpp.schedules.Interleaved1F1B(num_stages=4, mpmd_dim=2),
                4,
                slice(4, 8),
            ),
        }[where]
        step = pipeline(schedule, stages, devices, 2)
        like = step.in_shardings[0][0]
    found, found_losses = run(step, checkpoint.restore(directory, like), SAVED)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)
    np.testing.assert_allclose(found_losses, losses[SAVED:], rtol=1e-5)
