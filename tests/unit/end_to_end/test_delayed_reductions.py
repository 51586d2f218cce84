"""Gradients are summed over the data axis once per step; what comes out is what plain `jax.jit` gives."""

# pyright: reportUnknownLambdaType=false

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end.collectives import collectives
from unit.end_to_end.compare import batch, check, feed_state, lowered, make_mesh, weights
from unit.end_to_end.compare import loss as layers_loss
from unit.end_to_end.transformer import cross_entropy

import jaxpp.api as jaxpp
from jaxpp import PassError, schedules
from jaxpp.hlo_passes.loop.delay_reductions import DelayReductions
from jaxpp.ir.errors import ProgramError
from jaxpp.ir.program import Call
from jaxpp.runtime import Event, load, measured_costs

MICROBATCHES = 4
SCHEDULES = {
    "1f1b": (jaxpp.Std1F1B(2), 2),
    "interleaved": (jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2), 4),
    "chimera": ("chimera", 2),
}
AXES: list[dict[str, Any]] = [{"data": 2}, {"model": 2}, {"data": 2, "model": 2}]
DATA = (P(), P(None, "data"))
BACKWARD, AFTER = ("backward", "all-reduce"), ("after", "all-reduce")


def gradient_step(params: Any, batch: Any, *, schedule: Any = None, loss: Any = None) -> Any:
    """(new parameters, sum of the losses): nothing but sums over the microbatches."""
    one = partial(jax.value_and_grad(loss or dense_loss), params)
    total, grads = jaxpp.treduce(one, batch, schedule=schedule, operation=jaxpp.Add)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), total


def dense_loss(params: Any, microbatch: Any) -> Any:
    """A layer with bias and scale per stage."""
    x = microbatch["x"]
    for layer in params:
        x = jaxpp.mark_stage_end(jnp.tanh(x @ layer["w"] * layer["scale"] + layer["bias"]))
    return jnp.mean((x - microbatch["y"]) ** 2)


def dense(stages: int) -> Any:
    ones = np.ones(8, np.float32)
    return [{"w": w, "scale": ones, "bias": 0.1 * ones} for w in weights(stages)]


def tied_loss(params: Any, microbatch: Any) -> Any:
    """Tokens are looked up in the table with which the last stage's logits are made."""
    x = params["table"][microbatch["tokens"]]
    for w in params["layers"]:
        x = jaxpp.mark_stage_end(x + jnp.tanh(x @ w))
    return cross_entropy(x @ params["table"].T, microbatch["labels"])


def tied(stages: int) -> tuple[Any, Any]:
    tokens, labels = np.random.default_rng(0).integers(0, 16, (2, MICROBATCHES, 4, 6)).astype(np.int32)
    table = jax.random.normal(jax.random.key(0), (16, 8))
    return {"table": table, "layers": weights(stages)}, {"tokens": tokens, "labels": labels}


def counted(step: Any, mesh: Any, *args: Any, **options: Any) -> Counter[tuple[str, str]]:
    return collectives(lowered(step, args, mesh, **options), mesh)


@pytest.fixture
def undelayed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts the collectives of a step whose reductions wait for nothing."""

    def count(step: Any, mesh: Any, *args: Any, **options: Any) -> Counter[tuple[str, str]]:
        with monkeypatch.context() as patch:
            patch.setattr(DelayReductions, "run", lambda self, module: None)
            return collectives(jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh, **options).lower(*args), mesh)

    return count


@pytest.mark.parametrize("axes", AXES, ids=lambda axes: "-".join(axes))
@pytest.mark.parametrize("name", SCHEDULES)
def test_dense_layers(name: str, axes: dict[str, Any], undelayed: Any) -> None:
    schedule, stages = SCHEDULES[name]
    mesh = make_mesh(2, **axes)
    layer = {"w": P(None, "model"), "scale": P("model"), "bias": P("model")}
    in_shardings = ([layer] * stages if "model" in axes else P(), P(None, "data"))
    step, args = partial(gradient_step, schedule=schedule), (dense(stages), batch(MICROBATCHES))
    check(step, args, mesh, in_shardings=in_shardings, steps=2, feed=feed_state)
    before = undelayed(step, mesh, *args, in_shardings=in_shardings)
    after = counted(step, mesh, *args, in_shardings=in_shardings)
    # What is left in the backward is summed over the other axis: it goes on to the stage before.
    assert before[BACKWARD] - after[BACKWARD] == MICROBATCHES * after[AFTER] > 0
    assert after.keys() - {AFTER} <= before.keys()
    if "model" not in axes:
        assert after[BACKWARD] == 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_tied_embedding(name: str, undelayed: Any) -> None:
    schedule, stages = SCHEDULES[name]
    mesh = make_mesh(2, data=2)
    step, args = partial(gradient_step, schedule=schedule, loss=tied_loss), tied(stages)
    check(step, args, mesh, in_shardings=DATA, steps=2, feed=feed_state)
    before = undelayed(step, mesh, *args, in_shardings=DATA)
    after = counted(step, mesh, *args, in_shardings=DATA)
    assert after.keys() == {AFTER}
    assert before.keys() == {BACKWARD}
    assert before[BACKWARD] >= MICROBATCHES * after[AFTER] > 0


FSDP = ([{"w": P("data"), "scale": P(), "bias": P()}] * 2, P(None, "data"))
WEIGHT = 8 * 8 * 4
WIDE = 32


def constrained(mesh: jaxpp.MpmdMesh) -> Any:
    """`dense_loss` as one writes it for FSDP: activations sharded over their rows, whatever the weights are."""
    rows = NamedSharding(mesh.jax_mesh, P("data"))

    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"]
        for layer in params:
            x = jax.lax.with_sharding_constraint(x @ layer["w"], rows)
            x = jaxpp.mark_stage_end(jnp.tanh(x * layer["scale"] + layer["bias"]))
        return jnp.mean((x - microbatch["y"]) ** 2)

    return loss


@pytest.mark.parametrize(
    ("gather", "scatter"),
    [("microbatch", "microbatch"), ("microbatch", "step"), ("chunk", "chunk"), ("step", "step")],
)
def test_weights_sharded_over_the_data_axis(gather: str, scatter: str) -> None:
    mesh = make_mesh(2, data=2)
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=constrained(mesh))
    args = dense(2), batch(MICROBATCHES)
    options: dict[str, Any] = {"in_shardings": FSDP, "gather_weights": gather, "scatter_gradients": scatter}
    (found, _) = check(step, args, mesh, steps=2, feed=feed_state, **options)
    assert [layer["w"].sharding for layer in found] == [NamedSharding(sub, P("data")) for sub in mesh.unstack]
    run = counted(step, mesh, *args, **options)
    gathered = {kind: times for (kind, name), times in run.items() if name == "all-gather"}
    # No gradient leaves stage 0: its backward needs no weight.
    each = {"forward": 2 * MICROBATCHES, "backward": MICROBATCHES}
    assert gathered == {"microbatch": each, "chunk": {"gather": 2}, "step": {"before": 2}}[gather]
    # Scales, biases and the loss are summed once per step in any case.
    assert run[BACKWARD] == (2 * MICROBATCHES if scatter == "microbatch" else 0)
    assert run["scatter", "all-reduce"] == (2 if scatter == "chunk" else 0)
    assert run[AFTER] == (7 if scatter == "step" else 5)


def test_what_keeping_gathered_weights_and_whole_gradients_costs() -> None:
    mesh, args = make_mesh(2, data=2), (dense(2), batch(MICROBATCHES))
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=constrained(mesh))
    price = {"gather_weights": 2 * WEIGHT, "scatter_gradients": 2 * WEIGHT // 2}
    assert lowered(step, args, mesh, in_shardings=FSDP).program().once_per_step_bytes == price
    assert lowered(step, args, mesh, in_shardings=DATA).program().once_per_step_bytes == {}

    with pytest.raises(ProgramError, match=r'1,000\n  take gather_weights="microbatch", give the step smaller'):
        lowered(step, args, mesh, in_shardings=FSDP, gather_weights="chunk", memory_limit=1000).program()


def test_a_choice_that_is_none() -> None:
    with pytest.raises(ValueError, match="gather_weights is 'never', expected one of microbatch, chunk, ahead, step"):
        jaxpp.mpmd_jit_with_loop(
            gradient_step, mpmd_mesh=make_mesh(2), options=jaxpp.StepOptions(gather_weights="never")
        )


def stacked_loss(params: Any, microbatch: Any) -> Any:
    """As `weights`, but in one array."""
    x = microbatch["x"]
    for stage in range(4):
        x = jaxpp.mark_stage_end(jnp.tanh(x @ params[stage]))
    return jnp.mean((x - microbatch["y"]) ** 2)


@pytest.mark.parametrize("is_stacked", [False, True], ids=["apart", "stacked"])
def test_breadth_first_gathers_once_per_run_of_a_stage(is_stacked: bool) -> None:
    """Of each of the two stages of a mesh: all forwards, all backwards. The last stage of each has both in one run.

    The backward of stage 0 needs no weight. A mesh never has the whole weights of two stages at once.
    """
    mesh = make_mesh(2, data=2)
    params = jnp.stack(weights(4, WIDE)) if is_stacked else weights(4, WIDE)
    args = params, batch(MICROBATCHES, width=WIDE)
    shardings = P(None, "data") if is_stacked else P("data"), P(None, "data")
    loss = stacked_loss if is_stacked else None
    step = partial(gradient_step, schedule=jaxpp.InterleavedGPipe(num_stages=4, mpmd_dim=2), loss=loss or layers_loss)
    programs = {
        choice: lowered(step, args, mesh, in_shardings=shardings, gather_weights=choice).program()
        for choice in ("microbatch", "chunk", "ahead", "step")
    }
    assert programs["chunk"].as_text().count("call @gather") == 2 + 3
    text = programs["ahead"].as_text()
    assert (text.count("call @gather"), len(re.findall(r"call @\w+_gather_\d", text))) == (2, 3)
    for least, peak, ahead, most in zip(*(program.peak_bytes for program in programs.values()), strict=True):
        assert least < peak <= least + 4 * WIDE**2
        assert peak <= ahead <= peak + 4 * WIDE**2
        assert peak < most
    for choice in ("chunk", "ahead"):
        check(step, args, mesh, in_shardings=shardings, gather_weights=choice)


def test_breadth_first_scatters_once_per_run_of_a_stage() -> None:
    """All backwards of each of the four stages; a mesh has whole sums of one of its two stages at a time.

    What is kept for the backwards goes to the host and is made again: that ends no run.
    """
    mesh, args = make_mesh(2, data=2), (dense(4), batch(MICROBATCHES))
    shardings = (FSDP[0] * 2, FSDP[1])
    grid = schedules.make("looped-bfs", meshes=2, microbatches=MICROBATCHES)
    step = partial(gradient_step, schedule=grid, loss=constrained(mesh))
    options: dict[str, Any] = {"in_shardings": shardings}
    programs = {
        choice: lowered(step, args, mesh, scatter_gradients=choice, **options).program()
        for choice in ("microbatch", "chunk", "step")
    }
    text = programs["chunk"].as_text()
    assert (text.count("call @zeros_"), text.count("call @scatter_")) == (4, 4)
    for least, peak, most in zip(*(program.peak_bytes for program in programs.values()), strict=True):
        assert least <= peak <= least + WEIGHT
        assert peak < most
    kept_less = partial(gradient_step, schedule=schedules.offload(schedules.recompute(grid)), loss=constrained(mesh))
    check(kept_less, args, mesh, gather_weights="ahead", scatter_gradients="chunk", **options)

    program = load(programs["chunk"].module)
    seconds = {"forward": 1.0, "backward": 2.0, "scatter": 0.25}
    events = [
        Event(number, call.kind, call.stage, call.microbatch, 0.0, 0.0, seconds.get(call.kind, 0.0))
        for number, sequence in enumerate(program.sequences)
        for call in sequence
        if isinstance(call, Call)
    ]
    found = measured_costs(program, events, unit="s")
    assert (found.gather, found.scatter) == (0, (0.5,) * 4)  # zeros, and the scatter
    times = [schedules.simulate(grid, each).makespan for each in (replace(found, scatter=0), found)]
    assert times == [
        27,
        27.5,
    ]  # one of the last stage; behind the last task of a mesh it counts as little as the update


def test_gathers_are_among_the_costs() -> None:
    """Of two stages on each mesh: one gather before the forwards of each, and one before the backwards of stage 1.

    The last stages have one run each. Beside a task a gather is what that takes longer than the others of its kind.
    """
    mesh, args = make_mesh(2, data=2), (weights(4, WIDE), batch(MICROBATCHES, width=WIDE))
    step = partial(gradient_step, schedule=jaxpp.InterleavedGPipe(num_stages=4, mpmd_dim=2), loss=layers_loss)
    found = {}
    for choice in ("microbatch", "chunk", "ahead"):
        options: dict[str, Any] = {"in_shardings": (P("data"), P(None, "data")), "gather_weights": choice}
        program = load(lowered(step, args, mesh, **options).program().module)
        events: list[Event] = []
        for number, sequence in enumerate(program.sequences):
            for call in (each for each in sequence if isinstance(each, Call)):
                seconds = {"forward": 1.0, "backward": 2.0, "gather": 0.5}.get(call.kind, 0.0)
                seconds += 0.25 * bool(program.functions[call.function].gathered)
                events.append(Event(number, call.kind, call.stage, call.microbatch, 0.0, 0.0, seconds))
        found[choice] = measured_costs(program, events, unit="s")
        if choice == "chunk":  # tasks as if of half a microbatch: a gather is once per run, whatever runs in it
            halves = [replace(each, slice=(each.microbatch or 0) % 2) for each in events]
            of_halves = measured_costs(program, halves, unit="s")
            assert (of_halves.gather, of_halves.forward) == (found[choice].gather, (2,) * 4)
    assert found["microbatch"].gather == 0
    assert found["chunk"].gather == (0.25, 0.5, 0.5, 0.5)  # the backward of stage 0 needs no weight
    assert found["ahead"].gather == (0.25, 0.375, 0.25, 0.25)
    grid = schedules.make("looped-bfs", meshes=2, microbatches=MICROBATCHES)
    every = (replace(found["chunk"], gather=0), found["ahead"], found["chunk"])
    times = [schedules.simulate(grid, each).makespan for each in every]
    # What a mesh gathers while it waits takes no time, but the first gather does.
    assert times == [27, 27.875, 28.25]


def scanned_loss(params: Any, microbatch: Any) -> Any:
    x = microbatch["x"]
    for stage in params:
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stage)
        x = jaxpp.mark_stage_end(x)
    return jnp.mean((x - microbatch["y"]) ** 2)


@pytest.mark.parametrize("option", ["gather_weights", "scatter_gradients"])
@pytest.mark.parametrize("case", ["no weight is sharded", "layers in a loop", "no activation is sharded"])
def test_why_nothing_is_gathered_or_scattered_per_chunk(case: str, option: str) -> None:
    """Shardy shards the activations of a tied embedding over their features, unless they are said to be examples."""
    of_case: dict[str, tuple[Any, tuple[Any, Any], P, str]] = {
        "no weight is sharded": (
            dense_loss,
            (dense(2), batch(MICROBATCHES)),
            P(),
            "shard weights over the axis of the ",
        ),
        "layers in a loop": (
            scanned_loss,
            ([jnp.stack(weights(2))] * 2, batch(MICROBATCHES)),
            P(None, "data"),
            "in a loop over the layers of a stage they are gathered layer by layer",
        ),
        "no activation is sharded": (
            tied_loss,
            tied(2),
            P("data"),
            "is sharded over 'data', but not the examples of the",
        ),
    }
    loss, args, sharding, hint = of_case[case]
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=loss)
    options: dict[str, Any] = {"in_shardings": (sharding, P(None, "data")), option: "chunk"}
    nothing = {
        "gather_weights": "no product of a stage gathers a weight",
        "scatter_gradients": "no gradient of a stage is scattered",
    }
    with pytest.raises(PassError, match=f"error: {option} is 'chunk', but {nothing[option]}\n  .*{hint}"):
        lowered(step, args, make_mesh(2, data=2), **options).program()


def test_gathered_casts_of_sharded_weights() -> None:
    def loss(params: Any, microbatch: Any) -> Any:
        x = microbatch["x"].astype(jnp.bfloat16)
        for w in params:
            x = jaxpp.mark_stage_end(jnp.tanh(x @ w.astype(jnp.bfloat16)))
        return jnp.mean((x.astype(jnp.float32) - microbatch["y"]) ** 2)

    mesh, args = make_mesh(2, data=2), (weights(2), batch(MICROBATCHES))
    step = partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=loss)
    options: dict[str, Any] = {"in_shardings": (P("data"), P(None, "data")), "gather_weights": "step"}
    check(step, args, mesh, tolerance=1e-2, **options)
    price = lowered(step, args, mesh, **options).program().once_per_step_bytes
    assert price["gather_weights"] == 2 * WEIGHT // 2, "the casts are gathered, not the weights"


def test_a_gradient_that_each_microbatch_needs_is_not_delayed() -> None:
    """The norm of each microbatch's gradient, and the largest entry."""

    def step(params: Any, batch: Any) -> Any:
        def one(microbatch: Any) -> Any:
            grads = jax.grad(dense_loss)(params, microbatch)
            clipped = jax.tree.map(lambda g: g / (1 + jnp.linalg.norm(g)), grads)
            return clipped, jax.tree.map(jnp.abs, grads)

        operation = (jaxpp.Add, jaxpp.Max)
        return jaxpp.treduce(one, batch, schedule=jaxpp.Std1F1B(2), operation=operation)

    mesh, args = make_mesh(2, data=2), (dense(2), batch(MICROBATCHES))
    check(step, args, mesh, in_shardings=DATA)
    assert counted(step, mesh, *args, in_shardings=DATA)[AFTER] == 0


def test_sum_that_starts_from_something() -> None:
    class AddToOnes(jaxpp.Op):
        def state(self, n: int, a: Any) -> jax.Array:
            return jnp.ones(a.shape, a.dtype)

        def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
            return state + update

    def step(params: Any, batch: Any) -> Any:
        one = partial(jax.grad(dense_loss), params)
        return jaxpp.treduce(one, batch, schedule=jaxpp.Std1F1B(2), operation=AddToOnes)

    mesh, args = make_mesh(2, data=2), (dense(2), batch(MICROBATCHES))
    check(step, args, mesh, in_shardings=DATA)
    assert counted(step, mesh, *args, in_shardings=DATA)[AFTER] == 6


def test_batch_that_does_not_divide() -> None:
    mesh = make_mesh(2, data=2)

    def loss(params: Any, microbatch: Any) -> Any:
        sharding = NamedSharding(mesh.jax_mesh, P("data"))
        rows = jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x[:3], sharding), microbatch)
        return dense_loss(params, rows)

    check(partial(gradient_step, schedule=jaxpp.Std1F1B(2), loss=loss), (dense(2), batch(MICROBATCHES)), mesh)


def test_zero_bubble_schedule() -> None:
    mesh, args = make_mesh(2, data=2), tied(2)
    step = partial(gradient_step, schedule=jaxpp.ZeroBubble(2), loss=tied_loss)
    check(step, args, mesh, in_shardings=DATA, steps=2, feed=feed_state)
    assert counted(step, mesh, *args, in_shardings=DATA).keys() == {AFTER}
