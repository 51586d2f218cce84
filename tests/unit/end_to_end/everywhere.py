"""One loss function under several schedules, on meshes of one device and of two: losses, gradients, new parameters."""

# pyright: reportUnknownLambdaType=false

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, check, feed_state, make_mesh, plain_of, weights

import jaxpp.api as jaxpp
from jaxpp import schedules

STAGES, MICROBATCHES = 4, 4

# What a test takes as `plan`: the name of a schedule; `sharded` is 1f1b, with two devices for each stage.
PLANS = ("interleaved-1f1b", "sharded")
MORE_PLANS = (*PLANS, "gpipe", "1f1b", "chimera")

plans = pytest.mark.parametrize("plan", PLANS)
more_plans = pytest.mark.parametrize("plan", MORE_PLANS)


def in_turn(values: Iterable[Any], others: Sequence[Any] = PLANS) -> list[tuple[Any, Any]]:
    """Each of the values with one of the others, which take turns: half of the time that all pairs take."""
    return list(zip(values, itertools.cycle(others), strict=False))


def schedule_and_mesh(
    plan: str, stages: int = STAGES, microbatches: int = MICROBATCHES
) -> tuple[schedules.Schedule, jaxpp.MpmdMesh]:
    """The schedule of a plan, and the mesh that it runs on."""
    meshes = stages // 2 if plan == "interleaved-1f1b" else stages
    name = "1f1b" if plan == "sharded" else plan
    schedule = schedules.make(name, meshes=meshes, microbatches=microbatches)
    assert schedule.stages == stages
    return schedule, make_mesh(meshes, data=2 if plan == "sharded" else 1)


def check_step(
    step: Callable[..., Any], args: Sequence[Any], plan: str, *, data: Any = None, stages: int = STAGES, **options: Any
) -> Any:
    """Compare `step(*args, schedule=...)` with plain `jax.jit`.

    `data` has the shardings of the second argument, the batch, where each stage has two devices; else its second
    dimension is sharded.
    """
    schedule, mesh = schedule_and_mesh(plan, stages)
    if plan == "sharded":
        options["in_shardings"] = (P(), P(None, "data") if data is None else data, *(P() for _ in args[2:]))
    return check(partial(step, schedule=schedule), args, mesh, **options)


def gradient_step(params: Any, batch: Any, *, schedule: Any, loss: Callable[..., Any], has_aux: bool = False) -> Any:
    """(new parameters, what `loss` returns for each microbatch, gradients)."""
    values, grads = jaxpp.treduce(
        partial(jax.value_and_grad(loss, has_aux=has_aux), params),
        batch,
        schedule=schedule,
        operation=(jaxpp.Concat(), jaxpp.Add),
    )
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), values, grads


def check_loss(
    loss: Callable[..., Any],
    plan: str,
    params: Any = None,
    microbatches: Any = None,
    *,
    has_aux: bool = False,
    steps: int = 1,
    same_as: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Compare `gradient_step` of `loss` with plain `jax.jit`; a matrix per stage where there are no `params`.

    `same_as` is a loss with the same numbers, which several others may be compared with.
    """
    params = weights(STAGES) if params is None else params
    microbatches = batch(MICROBATCHES) if microbatches is None else microbatches
    step = partial(gradient_step, loss=loss, has_aux=has_aux)
    if same_as is not None:
        options["reference"] = plain_of(partial(step, schedule=None, loss=same_as))
    return check_step(step, (params, microbatches), plan, steps=steps, feed=feed_state, **options)
