"""Tasks of the first and the last stage in two calls: fewer programs of layers, the same numbers, costs and memory."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end import transformer
from unit.end_to_end.compare import assert_same, batch, check, lowered, make_mesh, plain_of, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp.compatibility.times import record

STAGES = 3


def loss(weights: Any, microbatch: Any) -> jax.Array:
    return transformer.loss(weights, microbatch)[0]


def arguments() -> tuple[Any, Any]:
    return transformer.parameters(STAGES), jax.tree.map(jnp.array, transformer.batch(4))


def functions(program: Any) -> list[str]:
    """The functions of the tasks of a program."""
    found = re.findall(r"func private @((?:forward|backward|input_grad|weight_grad)_\w+)", program.as_text())
    return sorted(found)


def test_the_first_and_the_last_stage_call_the_programs_of_the_layers() -> None:
    """The numbers are the same, bit for bit; a task takes the time of both its calls."""
    step, mesh, given = partial(sgd_step, schedule="1f1b", loss=loss), make_mesh(STAGES), arguments()
    whole, shared = (lowered(step, given, mesh, share_tasks=when) for when in ("never", "always"))
    layers = ["backward_1", "forward_1"]
    assert functions(whole.program()) == sorted(["backward_0", "backward_2", "forward_0", *layers])
    assert functions(shared.program()) == sorted(["backward_0_own", "backward_2_own", "forward_0_own", *layers])
    assert shared.program().peak_bytes <= whole.program().peak_bytes
    compiled = shared.compile()
    found, events = compiled.trace(*given)
    assert_same(found, plain_of(step)(*given))
    assert_same(found, whole.compile()(*given), exact=True)
    first = [each for each in events if (each.kind, each.stage, each.target) == ("forward", 0, None)]
    assert [each.microbatch for each in first] == [0, 0, 1, 1, 2, 2, 3, 3]
    by_task: dict[str, list[float]] = {}
    record(by_task, events)
    assert [len(by_task[f"forward {stage}"]) for stage in range(STAGES)] == [4] * STAGES
    times = [1e3 * (one.seconds + other.seconds) for one, other in zip(first[::2], first[1::2], strict=True)]
    assert compiled.costs(events).table()["forward"][0] == pytest.approx(sorted(times[1:])[1], rel=1e-5)


def test_halves_of_backwards_are_shared_too() -> None:
    """But no gradient of weights, which a step may leave out, and none where another task has all that it does."""
    step = partial(sgd_step, schedule="zb-h1", loss=loss)
    program = lowered(step, arguments(), make_mesh(STAGES), share_tasks="always").program()
    assert functions(program) == sorted(
        ["forward_0_own", "forward_1", "input_grad_0", "input_grad_1", "input_grad_2_own"]
        + [f"weight_grad_{stage}" for stage in range(STAGES)]
    )


def test_operations_that_only_look_alike_are_not_shared() -> None:
    """What one match after the other has led to contradicts the last one: the first stage adds an exponential."""

    def end(x: jax.Array) -> jax.Array:
        return jnp.cos(jnp.expm1(jnp.cbrt(-x)))

    def value(x: jax.Array) -> jax.Array:
        z = x * 1.5
        u, p, d = jnp.sin(x), jnp.exp(x), jnp.tanh(z)
        found = u + p, u * z, end(jnp.arctan2(u, jnp.maximum(x, z))), d, p + jnp.tanh(p)
        a, b, c, d, rest = jaxpp.mark_stage_end(found)
        for _ in range(2):
            u, t = jnp.sin(c), jnp.tanh(b)
            a, b, c, d = jaxpp.mark_stage_end((u + t, u * b, end(jnp.arctan2(u, jnp.maximum(a, d))), t))
        return jaxpp.mark_stage_end(jnp.mean(a + b + c + d + rest))

    def step(batch: jax.Array) -> Any:
        return jaxpp.treduce(value, batch, schedule="gpipe", operation=jaxpp.Concat())

    given = (jax.random.normal(jax.random.key(9), (4, 4, 8)),)
    shared = lowered(step, given, make_mesh(4), share_tasks="always")
    assert_same(shared.compile()(*given), plain_of(step)(*given))


@pytest.mark.parametrize("when", ["sometimes", "-1", "nan"])
def test_choices(when: str) -> None:
    message = f"share_tasks is {when!r}, expected auto, never, always, or a number of FLOPs such as 1e7"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        jaxpp.mpmd_jit_with_loop(sgd_step, make_mesh(STAGES), options=jaxpp.StepOptions(share_tasks=when))


def test_large_tasks_are_shared_unless_told_otherwise() -> None:
    """The product of a layer takes 2 * 32 * width * width FLOPs: each device half of them, or all of what it has."""

    def step(params: Any, batch: Any) -> Any:
        return sgd_step(params, batch, schedule="1f1b", loss=dense_loss)

    def dense_loss(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"] - microbatch["x"].mean()
        for w in params:
            x = jaxpp.mark_stage_end(x + jnp.sin(jnp.tanh(x @ w)))
        return ((x - microbatch["y"]) ** 2).mean()

    halves = (P(), P(None, "data"))
    for width, shardings, is_shared in ((512, halves, False), (640, halves, True), (512, None, True)):
        microbatches = {name: jax.ShapeDtypeStruct((4, 32, width), jnp.float32) for name in "xy"}
        given = ([jax.ShapeDtypeStruct((width, width), jnp.float32)] * STAGES, microbatches)
        options: dict[str, Any] = {"in_shardings": shardings}
        program = lowered(step, given, make_mesh(STAGES, data=2), **options).program()
        assert ("forward_2_own" in functions(program)) == is_shared
        never = lowered(step, given, make_mesh(STAGES, data=2), share_tasks="never", **options).program()
        assert "forward_2_own" not in functions(never)


def test_equal_tasks_are_divided_alike() -> None:
    """Two of five stages do more than a layer, and the same: both call the program of a layer, and one for the rest."""

    def layers(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for k, w in enumerate(params):
            x = jnp.sin(x) if k in (1, 2) else x
            x = jaxpp.mark_stage_end(jnp.tanh(jnp.cos(x @ w) @ w) @ w)
        return ((x - microbatch["y"]) ** 2).mean()

    step, given, mesh = partial(sgd_step, schedule="1f1b", loss=layers), (weights(5), batch(4)), make_mesh(5)
    program = lowered(step, given, mesh, share_tasks="always").program()
    forwards = [name for name in functions(program) if name.startswith("forward")]
    assert forwards == ["forward_0_own", "forward_1_own", "forward_3", "forward_4_own"]
    assert program.as_text().count("call @forward_1_own") == 2 * 4, "of stage 1 and of stage 2, for each microbatch"
    check(step, given, mesh, share_tasks="always")


def test_layers_whose_inputs_are_sharded_otherwise_are_not_shared() -> None:
    """Between stages activations are sharded over the model axis too; the batch that the first stage reads is not."""

    def step(params: Any, batch: Any) -> Any:
        return sgd_step(params, batch, schedule=jaxpp.Interleaved1F1B(num_stages=4, mpmd_dim=2), loss=layers)

    def layers(params: Any, microbatch: Any) -> jax.Array:
        x = microbatch["x"]
        for w, scale in params:
            x = jaxpp.mark_stage_end(jnp.tanh(x @ w * scale))
        return ((x - microbatch["y"]) ** 2).mean()

    params = [(w, jnp.ones(8)) for w in weights(4)]
    options: dict[str, Any] = {"in_shardings": ([(P(None, "model"), P("model"))] * 4, P())}
    check(step, (params, batch(4)), make_mesh(2, model=2), share_tasks="always", **options)


@pytest.mark.parametrize(("schedule", "delay"), [("1f1b", 0), ("pipedream-2bw", 1)])
def test_tasks_of_several_steps_are_shared(schedule: str, delay: int) -> None:
    """Both calls of a task stand where the schedule has the task, also where steps overlap."""

    def layers(params: Any, microbatch: Any) -> jax.Array:
        x = jnp.sin(microbatch["x"])
        for w in params:
            x = jaxpp.mark_stage_end(jnp.tanh(jnp.cos(x @ w) @ w) @ w)
        return ((x - microbatch["y"]) ** 2).mean()

    def step(state: Any, batch: Any, older: Any = None) -> Any:
        gradient = partial(jax.value_and_grad(layers), older if delay else state[0])
        losses, gradients = jaxpp.treduce(gradient, batch, schedule=schedule)
        return (jax.tree.map(jnp.subtract, state[0], gradients),), losses.mean()

    loop = jaxpp.train_loop(step, 3, delay)
    every = {name: value.reshape(3, 4, *value.shape[1:]) for name, value in batch(12).items()}
    state, mesh = (weights(STAGES),), make_mesh(STAGES)
    given = (loop.start(state) if delay else state, every)
    whole, shared = (lowered(loop, given, mesh, share_tasks=when) for when in ("never", "always"))
    assert {"forward_0", "forward_0_own"}.intersection(functions(whole.program())) == {"forward_0"}
    assert shared.program().as_text().count("call @forward_0_own") == 3 * 4
    found = shared.compile()(*given)
    assert_same(found, whole.compile()(*given), exact=True)
    assert_same(found, plain_of(loop)(*given))
