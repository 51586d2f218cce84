"""Stages that are a graph rather than a chain: towers, forks, skips, each equal to plain `jax.jit`."""

import random
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unit.end_to_end.compare import check, feed_state, lowered, make_mesh, weights

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.schedules import Placement, Task
from jaxpp.schedules.builders.priorities import by_priority

WIDTH = 4
After = tuple[tuple[int, ...], ...]

GRAPHS: dict[str, tuple[After, tuple[int, ...]]] = {
    "two towers": (((), (), (0, 1)), (0, 1, 2)),
    "a tower of two stages": (((), (0,), (), (1, 2)), (0, 0, 1, 2)),
    "a fork": (((), (0,), (0,), (1, 2)), (0, 1, 2, 0)),
    "an encoder that every stage of a decoder reads": (((), (0,), (), (1, 2), (1, 3)), (0, 1, 2, 3, 3)),
    "two encoders and a cross encoder": (((), (0,), (), (2,), (1, 3), (4,)), (0, 1, 2, 3, 2, 3)),
    "a U-Net": (((), (0,), (1,), (1, 2), (0, 3)), (0, 1, 2, 1, 0)),
}


def loss(after: After, params: Any, microbatch: Any) -> jax.Array:
    """A stage adds up what it reads, each through a matrix; one that reads nothing takes the microbatch's."""
    made: list[Any] = []
    for stage, read in enumerate(after):
        x = sum(made[other] @ params[f"{other} to {stage}"] for other in read) if read else microbatch["x"][stage]
        y = jnp.tanh(x @ params[f"in {stage}"])
        made.append(jaxpp.mark_stage_end(y if stage < len(after) - 1 else jnp.mean((y - microbatch["y"]) ** 2)))
    return made[-1]


def train_step(after: After, params: Any, batch: Any, schedule: Any) -> Any:
    gradient = partial(jax.value_and_grad(partial(loss, after)), params)
    losses, grads = jaxpp.treduce(gradient, batch, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses  # pyright: ignore[reportUnknownLambdaType]


def arguments(after: After, microbatches: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    names = [f"in {stage}" for stage in range(len(after))]
    names += [f"{other} to {stage}" for stage, read in enumerate(after) for other in read]
    batch = {"x": normal(microbatches, len(after), 3, WIDTH), "y": normal(microbatches, 3, WIDTH)}
    return {name: normal(WIDTH, WIDTH) for name in names}, batch


def ordered(placement: Placement, microbatches: int, seed: int, split: bool) -> schedules.Schedule:
    """A schedule in which each mesh prefers what it likes."""
    taste = random.Random(seed)
    likes = {(kind, stage): taste.random() for kind in (*"FBIW",) for stage in range(placement.stages)}

    def priority(task: Task) -> float:
        return likes[{"forward": "F", "backward": "B", "input_grad": "I", "weight_grad": "W"}[task.kind], task.stage]

    kinds = ("forward", "input_grad", "weight_grad") if split else ("forward", "backward")
    return by_priority("mine", placement, microbatches, priority, tasks=kinds)


def any_graph(taste: random.Random) -> After:
    """What the stages read, of three to six; the last one reads all that no other does."""
    stages = taste.randint(3, 6)
    after = [sorted(taste.sample(range(stage), taste.randint(0, min(stage, 3)))) for stage in range(stages - 1)]
    return *map(tuple, after), tuple(sorted(set(range(stages - 1)).difference(*after)))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_results_of_jit(name: str, split: bool) -> None:
    after, homes = GRAPHS[name]
    schedule = ordered(Placement.of(*homes, after=after), 3, len(name), split)
    meshes = schedule.meshes
    check(
        partial(train_step, after, schedule=schedule), arguments(after, 3), make_mesh(meshes), steps=2, feed=feed_state
    )


@pytest.mark.parametrize("seed", range(4))
def test_any_graph_in_any_order(seed: int) -> None:
    taste = random.Random(seed)
    after = any_graph(taste)
    homes = [stage % 3 for stage in range(len(after))]
    taste.shuffle(homes)
    schedule = ordered(Placement.of(*homes, after=after), 4, seed, taste.random() < 0.5)
    check(partial(train_step, after, schedule=schedule), arguments(after, 4), make_mesh(3), steps=1)


def test_a_stage_that_reads_what_the_schedule_denies() -> None:
    after = ((), (0,), (0, 1))
    schedule = ordered(Placement.of(0, 1, 2, after=[[], [], [0, 1]]), 2, 0, split=False)
    text = (
        r"test_branches\.py:\d+:\d+: error: stage 1 reads what stage 0 makes, but the schedule does not say so\n"
        "  say that stage 1 comes after stage 0, or compute it in a stage that both come after$"
    )
    step = jaxpp.mpmd_jit_with_loop(partial(train_step, after, schedule=schedule), make_mesh(3))
    with pytest.raises(jaxpp.PassError, match=text):
        step(*arguments(after, 2))


@pytest.mark.parametrize("key", ["a constant", "an argument"])
def test_what_two_towers_make_of_their_microbatch(key: str) -> None:
    """A key for dropout and a mask, which both towers read: each makes its own, and nothing of it crosses."""

    def loss(params: Any, start: jax.Array, microbatch: Any) -> jax.Array:
        first, second = jax.random.split(jax.random.fold_in(start, microbatch["i"]))
        mask = jnp.cumsum(microbatch["x"][0], 0) > 0
        made: list[jax.Array] = []
        for stage, key in enumerate((first, second)):
            x = jnp.where(mask & jax.random.bernoulli(key, 0.5, mask.shape), microbatch["x"][stage], 0)
            made.append(jaxpp.mark_stage_end(jnp.tanh(jnp.where(mask, x @ params[f"in {stage}"], x))))
        return jaxpp.mark_stage_end(jnp.mean((made[0] * made[1] @ params["in 2"] - microbatch["y"]) ** 2))

    def train_step(params: Any, batch: Any, start: jax.Array, schedule: Any) -> Any:
        gradient = partial(jax.value_and_grad(loss), params, jax.random.key(0) if key == "a constant" else start)
        losses, grads = jaxpp.treduce(gradient, batch, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), losses  # pyright: ignore[reportUnknownLambdaType]

    after, homes = GRAPHS["two towers"]
    schedule = ordered(Placement.of(*homes, after=after), 3, 1, split=True)
    params, batch = arguments(after, 3)
    given = params, batch | {"i": np.arange(3)}, jax.random.key(1)
    check(partial(train_step, schedule=schedule), given, make_mesh(3))
    first = (
        lowered(partial(train_step, schedule=schedule), given, make_mesh(3))
        .program()
        .as_text()
        .partition("@mesh_0(")[2]
        .partition("func.func public")[0]
    )
    assert first.count("stablehlo.send") == 3


def mixture(params: Any, microbatch: Any) -> Any:
    """A router and its expert, beside a stage without one, both with the weight of stage 0; auxiliary losses of all."""
    x = jnp.tanh(microbatch["x"][0] @ params["shared"])
    share = jax.nn.softmax(x @ params["router"])
    x, share = jaxpp.mark_stage_end((x, share))
    expert = jnp.where(share[:, :1] > 0.25, jnp.tanh(x @ params["expert"] @ params["shared"]), 0)
    balance = jnp.var(share.mean(0)) + jnp.mean(expert**2)
    expert = jaxpp.mark_stage_end(expert)
    plain = jnp.tanh(x @ params["shared"])
    size = jnp.mean(jnp.abs(plain))
    plain = jaxpp.mark_stage_end(plain)
    auxiliary = 0.1 * (balance + size)
    error = jaxpp.mark_stage_end(jnp.mean((share[:, :1] * expert + plain - microbatch["y"]) ** 2))
    return error + auxiliary, {"auxiliary": auxiliary, "sizes": balance * size}


@pytest.mark.parametrize(
    ("name", "homes"),
    [("zb-h1", (0, 2, 1, 0)), ("1f1b", (0, 0, 0, 1)), ("gpipe", (1, 0, 1, 2)), ("mine", (0, 2, 1, 0))],
)
def test_what_stages_make_that_nothing_orders(name: str, homes: tuple[int, ...]) -> None:
    """Sums of it, products, and a weight that several of them share; also where the schedule runs stage 2 before 1."""

    def train_step(params: Any, batch: Any, schedule: Any) -> Any:
        gradient = partial(jax.value_and_grad(mixture, has_aux=True), params)
        results, grads = jaxpp.treduce(gradient, batch, schedule=schedule, operation=(jaxpp.Concat(), jaxpp.Add))
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), results  # pyright: ignore[reportUnknownLambdaType]

    placement = Placement.of(*homes, after=[[], [0], [0], [0, 1, 2]])
    if name == "mine":
        schedule = ordered(placement, 3, 0, split=True)
    else:
        schedule = schedules.make(name, meshes=placement.meshes, microbatches=3, placement=placement)
    params = dict(zip(("shared", "router", "expert"), weights(3, WIDTH), strict=True))
    given = params, arguments(((),), 3)[1]
    check(partial(train_step, schedule=schedule), given, make_mesh(placement.meshes), steps=2, feed=feed_state)


@pytest.mark.parametrize("kept", ["recomputed", "offloaded", "on uneven meshes"])
def test_with_all_else_that_a_step_may_have(kept: str) -> None:
    after, homes = GRAPHS["a U-Net"]
    schedule = ordered(Placement.of(*homes, after=after), 3, 1, split=True)
    change = {"recomputed": schedules.recompute, "offloaded": schedules.offload}
    schedule = change[kept](schedule, 0, 1) if kept in change else schedule
    mesh = make_mesh(3)
    if kept == "on uneven meshes":
        devices = np.split(np.array(jax.devices()[:7]), (4, 6))
        mesh = jaxpp.MpmdMesh.of([jax.sharding.Mesh(each, "data") for each in devices])
    step = partial(train_step, after, schedule=schedule)
    check(step, arguments(after, 3), mesh, steps=2, feed=feed_state)
