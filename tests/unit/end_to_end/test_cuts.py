"""Steps that mark every layer, with the layers of each stage as said: the numbers, and what is refused."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end import decoder
from unit.end_to_end.compare import batch, check, feed_state, layers, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp import schedules as S
from jaxpp.hlo_passes import PassError


def scanned(w: jax.Array, microbatch: dict[str, jax.Array]) -> jax.Array:
    """A scan over all layers with a mark in its body."""
    x, _ = jax.lax.scan(lambda x, w: (jaxpp.mark_stage_end(jnp.tanh(x @ w)), None), microbatch["x"], w)
    return jnp.mean((x - microbatch["y"]) ** 2)


def checkpointed(params: Any, microbatch: dict[str, jax.Array]) -> jax.Array:
    """Each layer under jax.checkpoint, its mark inside."""
    x = microbatch["x"]
    for w in params:
        x = jax.checkpoint(lambda x, w: jaxpp.mark_stage_end(jnp.tanh(x @ w)))(x, w)
    return jnp.mean((x - microbatch["y"]) ** 2)


def siamese(params: Any, microbatch: dict[str, jax.Array]) -> jax.Array:
    """All layers applied to two inputs."""
    return jnp.mean((layers(params, microbatch["x"]) - layers(params, microbatch["y"])) ** 2)


@pytest.mark.parametrize("options", [{}, {"marks": 4}, {"loss": checkpointed}])
@pytest.mark.parametrize(("schedule", "cuts"), [(jaxpp.Std1F1B(2), [3, 2]), (jaxpp.ZeroBubble(3), (1, 3, 1))])
def test_layers_one_after_the_other(options: dict[str, Any], schedule: Any, cuts: Any) -> None:
    step = partial(sgd_step, schedule=schedule, **options)
    check(step, (weights(5), batch(4)), make_mesh(schedule.num_stages), cuts=cuts, exact="loss" not in options)


def test_a_model_applied_twice() -> None:
    step = partial(sgd_step, schedule=jaxpp.Std1F1B(2), loss=siamese)
    check(step, (weights(3), batch(4)), make_mesh(2), cuts=[1, 2])


@pytest.mark.parametrize("cuts", [[2, 2, 2], [1, 3, 2]])
def test_a_scan_over_all_layers(cuts: list[int]) -> None:
    step = partial(sgd_step, schedule=jaxpp.ZeroBubble(3), loss=scanned)
    check(step, (jnp.stack(weights(6)), batch(4)), make_mesh(3), cuts=cuts, exact=True, steps=2, feed=feed_state)


def test_several_stages_per_mesh_and_devices_per_stage() -> None:
    step = partial(sgd_step, schedule=jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2))
    specs = ([P(None, "model")] * 6, P(None, "data"))
    check(step, (weights(6), batch(4)), make_mesh(2, data=2, model=2), cuts=[1, 2, 2, 1], in_shardings=specs)


def test_each_layer_is_where_its_stage_is() -> None:
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=jaxpp.Std1F1B(2)), make_mesh(2), cuts=[3, 1])
    updated, _ = step(weights(4), batch(4))
    assert [jax.devices().index(*w.sharding.device_set) for w in updated] == [0, 0, 0, 1]


def test_what_was_found_takes_the_place_of_the_schedule() -> None:
    costs = S.Costs(forward=[1, 1, 1, 3], input_grad=[1, 1, 1, 3], weight_grad=[1, 1, 1, 3])
    found = S.partition(costs, meshes=2, microbatches=4, seconds=0.05)
    assert found.cuts == (3, 1)
    step = partial(sgd_step, schedule=jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2))
    check(step, (weights(4), batch(4)), make_mesh(2), cuts=found, exact=True)


def refused(step: Callable[..., Any], layers: int, cuts: Any) -> str:
    with pytest.raises((jaxpp.PassError, TypeError, ValueError)) as caught:
        jaxpp.mpmd_jit_with_loop(step, make_mesh(2), cuts=cuts).lower(weights(layers), batch(4)).program()
    return str(caught.value)


@pytest.mark.parametrize(("name", "cuts"), [("seq1f1b", [2, 2]), ("seq1f1b-zb", [3, 1])])
def test_layers_of_slices(name: str, cuts: list[int]) -> None:
    plan = S.make(name, meshes=2, microbatches=2, slices=3)
    step = partial(decoder.train_step, schedule=plan, slices=3)
    whole = jax.jit(partial(decoder.train_step, slices=1))
    check(step, (decoder.parameters(4), decoder.batch(2)), make_mesh(2), reference=whole, cuts=cuts)
    with pytest.raises(PassError, match="cuts 3, 3 are of 6 layers, found 4 stage marks in each slice"):
        check(step, (decoder.parameters(4), decoder.batch(2)), make_mesh(2), cuts=[3, 3])


def test_what_is_refused() -> None:
    step = partial(sgd_step, schedule=jaxpp.Std1F1B(2))
    assert refused(step, 5, [3, 4]).endswith(
        "the cuts 3, 4 are of 7 layers, found 5 stage marks\n"
        "  mark the end of every layer (mark_stage_end), and give cuts that add up to 5"
    )
    assert refused(step, 5, [1, 2, 2]).endswith(
        "the cuts are of 3 stages, the schedule 1f1b has 2\n  give the layers of each of 2 stages, or a schedule of 3"
    )
    assert "error: the cuts are of 1 stage, the schedule 1f1b has 2\n" in refused(step, 5, [5])
    assert refused(step, 5, [5, 0]) == "cuts: each stage has at least one layer, found [5, 0]"
    assert refused(step, 5, []) == "cuts: each stage has at least one layer, found []"
    assert refused(step, 5, [2.5, 2.5]).startswith(
        "cuts: expected the layers of each stage, such as [5, 5, 4, 2], found"
    )
    for wrong in ("3,2", "32", 5, [True, 4], (n for n in [2.5, 2.5])):
        assert refused(step, 5, wrong).startswith("cuts: expected the layers of each stage")


@pytest.mark.parametrize("cuts", [np.array([3, 1]), [np.int64(3), 1], range(3, 0, -2), iter([3, 1])])
def test_any_row_of_whole_numbers(cuts: Any) -> None:
    schedule = jaxpp.Std1F1B(2)
    step = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), make_mesh(2), cuts=cuts)
    assert len(step.lower(weights(4), batch(4)).program().peak_bytes) == 2
