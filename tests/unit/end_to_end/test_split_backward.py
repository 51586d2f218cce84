"""Input and weight gradients as two tasks: wherever they are cut, the results of plain `jax.jit`."""

# pyright: reportUnknownLambdaType=false

import importlib
import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.activations import peak_activations
from unit.end_to_end import transformer
from unit.end_to_end.compare import assert_same, batch, check, feed_state, layers, lowered, make_mesh, sgd_step, weights
from unit.end_to_end.everywhere import in_turn
from unit.end_to_end.split_costs import measure
from unit.end_to_end.test_shared_weights import CASES, parameters
from unit.end_to_end.test_shared_weights import tied as tied_loss

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.runtime import load
from jaxpp.schedules.rewrites.tasks import freeze, split_backward

# (name, meshes): four stages each; of every way to split one.
SPLIT = [("zb-h1", 4), ("interleaved-zb", 2), ("zb-v", 2), ("dualpipe", 4)]


def schedule_of(name: str, meshes: int, microbatches: int = 8) -> schedules.Schedule:
    return schedules.make(name, meshes=meshes, microbatches=microbatches)


def program_of(step: Any, arguments: Any, meshes: int, **options: Any) -> str:
    return lowered(step, arguments, make_mesh(meshes), **options).program().as_text()


def tasks(program: str, kind: str, stage: int) -> int:
    return len(re.findall(rf"call @{kind}_\d\(.*jaxpp\.stage = {stage} ", program))


MODELS: list[Any] = [
    (transformer.train_step, transformer.state, transformer.batch),
    (sgd_step, weights, batch),
]


@pytest.mark.parametrize(("schedule", "model"), in_turn(SPLIT, MODELS))
def test_stages_of_several_devices(schedule: tuple[str, int], model: Any) -> None:
    (name, meshes), (step, state, data) = schedule, model
    step = partial(step, schedule=schedule_of(name, meshes))
    options: dict[str, Any] = {"in_shardings": (P(), P(None, "data")), "donate_argnums": 0}
    check(step, (state(4), data(8)), make_mesh(meshes, data=2), steps=2, feed=feed_state, **options)


@pytest.mark.parametrize(("loss", "schedule"), in_turn([*CASES, *reversed(CASES)], SPLIT))
def test_weights_of_several_stages(loss: Any, schedule: tuple[str, int]) -> None:
    name, meshes = schedule
    step = partial(sgd_step, schedule=schedule_of(name, meshes), loss=loss)
    check(step, (parameters(*CASES[loss]), batch(8)), make_mesh(meshes), steps=2, feed=feed_state)


def test_language_model_with_tied_embeddings() -> None:
    untied, moments = transformer.state(4)
    state = tuple({k: v for k, v in tree.items() if k != "head"} for tree in (untied, moments[0].trace))
    state = (state[0], (moments[0]._replace(trace=state[1]), *moments[1:]))
    step = partial(transformer.train_step, schedule=schedule_of("dualpipe", 4))
    check(step, (state, transformer.batch(8)), make_mesh(4), steps=2, feed=feed_state, reference=transformer.PLAIN)


def test_a_shared_gradient_crosses_once() -> None:
    step = partial(sgd_step, schedule=schedule_of("zb-h1", 4), loss=tied_loss)
    program = program_of(step, (parameters("shared"), batch(8)), 4)
    assert len(re.findall(r'"stablehlo\.send".*\(tensor<2x4x8xf32>, ', program)) == 2, "the sum, and the weight back"


@pytest.mark.parametrize(("name", "meshes"), SPLIT)
def test_one_mark_fewer_than_stages(name: str, meshes: int) -> None:
    step = partial(sgd_step, schedule=schedule_of(name, meshes), marks=3)
    check(step, (weights(4), batch(8)), make_mesh(meshes))


def test_the_last_stage_without_a_mark_is_split_too() -> None:
    step = partial(sgd_step, schedule=schedule_of("zb-h1", 4), marks=3)
    program = program_of(step, (weights(4), batch(8)), 4)
    assert [tasks(program, kind, 3) for kind in ("forward", "input_grad", "weight_grad")] == [0, 8, 8]


def test_stages_without_weights() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = jaxpp.mark_stage_end(jnp.tanh(microbatch["x"] @ params[0]))
        x = jaxpp.mark_stage_end(jnp.sin(x) * x)
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = partial(sgd_step, schedule=jaxpp.ZeroBubble(3), loss=loss)
    check(step, (weights(1), batch(4)), make_mesh(3), steps=2, feed=feed_state)
    program = program_of(step, (weights(1), batch(4)), 3)
    kinds = ("input_grad", "weight_grad")
    assert [tasks(program, kind, stage) for stage in (1, 2) for kind in kinds] == [4, 0, 4, 0]


def test_layers_behind_calls_and_checkpoints() -> None:
    @jax.custom_vjp
    def scaled(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    scaled.defvjp(lambda x, w: (x @ w, (x, w)), lambda saved, d: (d @ saved[1].T, saved[0].T @ d))

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for w in params:
            x = jax.jit(jax.checkpoint(lambda x, w: jnp.tanh(x @ w) @ w))(x, w)
            x = jaxpp.mark_stage_end(scaled(jax.nn.relu(x), w))
        return jnp.mean((x - microbatch["y"]) ** 2)

    step = partial(sgd_step, schedule=jaxpp.ZeroBubble(3), loss=loss)
    check(step, (weights(3), batch(4)), make_mesh(3), steps=2, feed=feed_state)


def test_norms_of_gradients_and_a_running_mean() -> None:
    def step(params: Any, batch: Any) -> Any:
        def one(microbatch: Any) -> Any:
            value, gradients = jax.value_and_grad(squares)(params, microbatch)
            return value, gradients, [jnp.linalg.norm(g) for g in gradients]

        operation = (jaxpp.Concat(), jaxpp.Add, jaxpp.Max)
        return jaxpp.treduce(one, batch, schedule=jaxpp.ZeroBubble(3), operation=operation)

    check(step, (weights(3), batch(4)), make_mesh(3))

    def scan(params: Any, batch: Any) -> Any:
        def one(carry: Any, microbatch: Any) -> Any:
            value, gradients = jax.value_and_grad(squares)(params, microbatch)
            return jax.tree.map(lambda mean, g: 0.9 * mean + 0.1 * g, carry, gradients), value

        return jax.lax.scan(one, params, batch)

    check(scan, (weights(3), batch(4)), make_mesh(3), schedule=jaxpp.ZeroBubble(3))


def squares(params: Any, microbatch: Any) -> Any:
    return jnp.mean((layers(params, microbatch["x"]) - microbatch["y"]) ** 2)


@pytest.mark.parametrize("marks", [2, 3])
def test_frozen_stages(marks: int) -> None:
    schedule = freeze(schedules.make("1f1b", meshes=3, microbatches=4), 0, 2)
    args = (weights(3), batch(4))
    step = partial(sgd_step, schedule=schedule, marks=marks)
    found, losses = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=make_mesh(3))(*args)
    expected, expected_losses = sgd_step(*args)
    assert_same([*found, losses], [args[0][0], expected[1], args[0][2], expected_losses])


def test_a_stage_that_is_frozen_for_some_microbatches() -> None:
    """The weight gradients of stage 1 are summed over the even microbatches only."""
    whole = split_backward(schedules.make("1f1b", meshes=3, microbatches=4), 1)
    skipped = [task for task in whole if task.kind == "weight_grad" and task.microbatch % 2]
    rows = [[cell for cell in row if cell[0] not in skipped] for row in whole.cells]
    schedule = schedules.Schedule.of("partial", whole.placement, rows, skipped=skipped)
    args = (weights(3), batch(4))
    found, losses = jaxpp.mpmd_jit_with_loop(partial(sgd_step, schedule=schedule), mpmd_mesh=make_mesh(3))(*args)
    expected, expected_losses = sgd_step(*args)
    expected[1] = sgd_step(args[0], jax.tree.map(lambda leaf: leaf[::2], args[1]))[0][1]
    assert_same([*found, losses], [*expected, expected_losses])


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2", "zb-v", "dualpipe-v", "dualpipe"])
def test_peak_of_activations(name: str) -> None:
    """A microbatch counts until its weight gradient is done."""
    meshes = 4 if name[-1] in "12e" else 2
    schedule = schedule_of(name, meshes)
    step = partial(transformer.train_step, schedule=schedule)
    module = lowered(step, (transformer.state(4), transformer.batch(8)), make_mesh(meshes)).program().module
    peaks = peak_activations(load(module))
    simulated = schedules.simulate(schedule).peak_activations(released_at="W")
    share = 2 if "v" in name else 1  # the simulator counts a stage of two on a mesh as half
    assert peaks == [share * peak for peak in simulated]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1f1b", {"forward": 2, "backward": 3}),
        ("zb-h1", {"forward": 2, "input_grad": 3, "weight_grad": 3}),
        # of the whole backwards that of the first stage is always in a fused task
        ("dualpipe", {"forward": 2, "input_grad": 3, "weight_grad": 3, "backward": 2, "forward+backward": 3}),
    ],
)
def test_a_program_for_each_distinct_stage(name: str, expected: dict[str, int]) -> None:
    """The first stage, the last, and those between, which are equal; the loss of the last is in its backward."""
    step = partial(transformer.train_step, schedule=schedule_of(name, 4))
    program = program_of(step, (transformer.state(4), transformer.batch(8)), 4)
    kinds = re.findall(r'func\.func private @.* attributes \{jaxpp\.kind = "(.*?)"', program)
    assert {kind: kinds.count(kind) for kind in kinds if kind not in ("before", "after")} == expected


@pytest.mark.parametrize(("checkpoint", "layers", "share"), [(False, 3, 0.65), (True, 6, 0.7)])
def test_cost_of_a_dense_block(monkeypatch: pytest.MonkeyPatch, checkpoint: bool, layers: int, share: float) -> None:
    """The input gradient computes checkpointed blocks again, which stages of two blocks scan over."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples")
    gpt_model = importlib.import_module("gpt_model")
    model = gpt_model.Config(stages=3, layers=layers, width=128, heads=2, sequence=64)
    first, *others = measure(gpt_model, model, 4, checkpoint)
    for stage in (first, *others):
        assert stage.ratio <= 1.05
        assert stage.weight_grad < 0.55 * stage.whole
        assert stage.input_grad < share * stage.whole
        assert stage.kept <= stage.products + stage.sums
    assert np.isfinite([stage.forward for stage in others]).all()


def into_the_inner_loop(x: Any, layer: Any) -> Any:
    """Return what a loop makes of a checkpointed product: its gradient passes a barrier behind the inner loop."""
    w, inner = layer
    return jax.lax.scan(lambda h, v: (jnp.tanh(h @ v), None), jax.checkpoint(jnp.matmul)(x, w), inner)[0]


def by_a_checkpointed_weight(x: Any, layer: Any) -> Any:
    """Return what a conditional makes of a checkpointed weight: the gradient of that passes a barrier."""
    w, _ = layer
    again = jax.checkpoint(lambda w: jnp.sin(w) * w)(w)
    return jax.lax.cond(x.sum() > 0, lambda x: jnp.tanh(x @ again), lambda x: jnp.sin(x @ again @ again), x)


@pytest.mark.parametrize(("block", "products"), [(into_the_inner_loop, 2), (by_a_checkpointed_weight, 3)])
def test_a_barrier_behind_an_inner_construct(block: Any, products: int) -> None:
    """The weight gradient does not make again what the input gradient makes."""

    def scanned(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for stack in params:
            x, _ = jax.lax.scan(lambda x, layer: (block(x, layer), None), x, stack)
            x = jaxpp.mark_stage_end(x)
        return jnp.mean((x - microbatch["y"]) ** 2)

    def stack(seed: int, *shape: int) -> jax.Array:
        return jnp.asarray(np.random.default_rng(seed).normal(size=(3, *shape, 8, 8)) / 3, jnp.float32)

    params = [(stack(seed), stack(seed + 1, 2)) for seed in (0, 2)]
    step = partial(sgd_step, schedule=schedule_of("zb-h1", 2, 4), loss=scanned)
    program = program_of(step, (params, batch(4)), 2)
    (late,) = [each for each in re.split(r"func\.func ", program) if each.startswith("private @weight_grad_")][-1:]
    assert late.count("dot_general") == products
    check(step, (params, batch(4)), make_mesh(2))
