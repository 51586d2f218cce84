"""What a step sends: activations, their gradients, what concerns shared weights, and scalars; nothing else."""

# pyright: reportUnknownLambdaType=false

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from jaxlib.mlir import ir
from unit.end_to_end import transformer
from unit.end_to_end.compare import batch, loss, make_mesh, weights
from unit.end_to_end.test_stacked_layers import loss as loss_of_stacked
from unit.end_to_end.test_stacked_layers import stacked
from unit.end_to_end.transfers import carried, sends

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp._compat import make_context
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.pipelines import mpmd
from jaxpp.step import ProgramModule

GPT = Path(__file__).parents[2] / "lit" / "Inputs" / "gpt.mlir"
MICROBATCHES = 4
# (name, meshes), four stages each; chimera has each stage on two meshes.
SCHEDULES = [("1f1b", 4), ("zb-h1", 4), ("interleaved-1f1b", 2), ("chimera", 4)]


def plain_update(state: Any, grads: Any, losses: Any, optimizer: Any) -> Any:
    params, moments = state
    updates, moments = optimizer.update(grads, moments, params)
    return optax.apply_updates(params, updates), moments


def with_moving_average(state: Any, grads: Any, losses: Any, optimizer: Any) -> Any:
    inner, mean = state
    inner = plain_update(inner, grads, losses, optimizer)
    return inner, optax.incremental_update(inner[0], mean, 0.1)


def with_loss_scale(state: Any, grads: Any, losses: Any, optimizer: Any) -> Any:
    """Skips the step by a `cond` over the whole state."""
    inner, scale, good = state
    grads = jax.tree.map(lambda g: g / scale, grads)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
    inner = lax.cond(finite, lambda: plain_update(inner, grads, losses, optimizer), lambda: inner)
    scale = jnp.where(finite, jnp.where(good >= 1, scale * 2, scale), scale / 2)
    return inner, scale, jnp.where(finite, good + 1, 0)


CLIPPED = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 20)))
UPDATES: dict[str, tuple[Any, Any, Any]] = {
    "adamw": (plain_update, CLIPPED, lambda inner: inner),
    "moving average": (with_moving_average, CLIPPED, lambda inner: (inner, inner[0])),
    "loss scale": (with_loss_scale, CLIPPED, lambda inner: (inner, jnp.float32(8), jnp.int32(0))),
    "if finite": (plain_update, optax.apply_if_finite(CLIPPED, 3), lambda inner: inner),
    "every second step": (plain_update, optax.MultiSteps(CLIPPED, 2), lambda inner: inner),
}


def program_of(params: Any, loss: Any, data: Any, update: str, schedule: str, meshes: int) -> ProgramModule:
    change, optimizer, wrap = UPDATES[update]

    def step(state: Any, data: Any) -> Any:
        inner = state if change is plain_update else state[0]
        plan = schedules.make(schedule, meshes=meshes, microbatches=MICROBATCHES)
        losses, grads = jaxpp.treduce(partial(jax.value_and_grad(loss), inner[0]), data, schedule=plan)
        return change(state, grads, losses, optimizer), losses

    state = wrap((params, optimizer.init(params)))
    return jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(meshes)).lower(state, data).program()


@pytest.mark.parametrize(
    ("update", "schedule", "meshes"),
    [("adamw", *each) for each in SCHEDULES]
    + [(update, *each) for update in list(UPDATES)[1:] for each in (SCHEDULES[0], SCHEDULES[-1])],
)
def test_the_state_stays_where_it_is(update: str, schedule: str, meshes: int) -> None:
    found = carried(program_of(weights(4), loss, batch(MICROBATCHES), update, schedule, meshes))
    assert found.pop("activation") == found.pop("gradient") == MICROBATCHES * 3
    assert found.pop("scalar") <= 6 * meshes
    # Each stage has two homes, and the losses come from both of the last.
    assert found == ({"shared gradient": 4 + 1, "shared weight": 4} if schedule == "chimera" else {})


def tied_loss(params: Any, microbatch: Any) -> Any:
    return transformer.loss(params, microbatch)[0]


@pytest.mark.parametrize(
    ("update", "schedule", "meshes"),
    [("adamw", *SCHEDULES[0]), ("adamw", *SCHEDULES[2]), ("loss scale", *SCHEDULES[1])],
)
def test_a_language_model_with_tied_embeddings(update: str, schedule: str, meshes: int) -> None:
    params = {name: leaf for name, leaf in transformer.parameters(4).items() if name != "head"}
    found = carried(program_of(params, tied_loss, transformer.batch(MICROBATCHES), update, schedule, meshes))
    assert found.pop("activation") == found.pop("gradient") == MICROBATCHES * 3
    assert found.pop("scalar") <= 6 * meshes
    assert found == {"shared gradient": 1, "shared weight": 1}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_between_neighbours_go_an_activation_and_its_gradient(schedule: str) -> None:
    """Of a GPT of two stages with a tied embedding: one of each per microbatch, 2 x 4 x 8 numbers."""
    with make_context():
        module = ir.Module.parse(GPT.read_text(encoding="utf-8"))
        run_passes(module, mpmd(schedule, 2))
    found = [
        send for send in sends(ProgramModule(module)) if send.microbatch >= 0 and not send.carries.startswith("shared")
    ]
    between = {("activation", k, 0, 1, 256) for k in range(4)} | {("gradient", k, 1, 0, 256) for k in range(4)}
    assert Counter((s.carries, s.microbatch, s.source, s.target, s.bytes) for s in found) == Counter(between)
    rest = carried(ProgramModule(module)) - Counter({"activation": 4, "gradient": 4})
    assert rest.pop("scalar") <= 6
    assert rest == {"shared gradient": 1, "shared weight": 1}


@pytest.mark.parametrize("update", ["if finite", "every second step"])
def test_a_conditional_over_stacked_layers(update: str) -> None:
    """The state of each layer stays with its stage, though all layers are rows of one array."""
    found = carried(program_of(stacked(4), loss_of_stacked, batch(MICROBATCHES, rows=3), update, "1f1b", 4))
    assert found.pop("activation") == found.pop("gradient") == MICROBATCHES * 3
    assert set(found) == {"scalar"}
