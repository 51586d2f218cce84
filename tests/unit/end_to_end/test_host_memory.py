"""Parameters and optimizer states that live in the memory of the host between steps."""

import re
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from unit.end_to_end import transformer
from unit.end_to_end.compare import make_mesh

import jaxpp.api as jaxpp
from jaxpp import schedules
from jaxpp.ir.program import Call
from jaxpp.runtime import load

MESH = make_mesh(2)
HOST = NamedSharding(MESH.jax_mesh, P(), memory_kind="pinned_host")
STEP = partial(transformer.train_step, schedule=schedules.make("1f1b", meshes=2, microbatches=4))
ARGUMENTS = (transformer.state(2), transformer.batch(4))


def options(parameters: Any, moments: Any) -> dict[str, Any]:
    """Where the two parts of the state are, when the step takes and when it returns them."""
    state = (parameters, moments)
    return {"in_shardings": (state, None), "out_shardings": (state, None, None, None)}


def steps(step: Any, count: int) -> Any:
    state, batch = transformer.state(2), ARGUMENTS[1]  # a new state: a step may have been given the other
    rest: list[Any] = []
    for _ in range(count):
        state, *rest = step(state, batch)
    return state, rest


def kinds(tree: Any) -> set[str]:
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


@cache
def on_devices() -> list[Any]:
    """What three steps make whose state never leaves the devices."""
    return jax.tree.leaves(steps(jaxpp.mpmd_jit_with_loop(STEP, mpmd_mesh=MESH), 3))


@pytest.mark.parametrize("donated", [(), (0,)], ids=["kept", "donated"])
@pytest.mark.parametrize("parameters", [None, HOST], ids=["moments", "all"])
def test_the_state_is_on_the_host(parameters: Any, donated: tuple[int, ...]) -> None:
    step = jaxpp.mpmd_jit_with_loop(STEP, mpmd_mesh=MESH, donate_argnums=donated, **options(parameters, HOST))
    (weights, moments), rest = steps(step, 3)
    assert kinds(moments) == {"pinned_host"}
    assert kinds(weights) == ({"pinned_host"} if parameters else {"device"})
    assert kinds(rest) == {"device"}
    for found, expected in zip(jax.tree.leaves((weights, moments, rest)), on_devices(), strict=True):
        np.testing.assert_array_equal(found, expected)
    expected, _ = steps(transformer.PLAIN, 3)
    for one, other in zip(jax.tree.leaves((weights, moments)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_devices_have_it_for_as_long_as_they_use_it() -> None:
    """The moments come right before the optimizer, after the last task, and go right after it."""
    plain = jaxpp.mpmd_jit_with_loop(STEP, mpmd_mesh=MESH).lower(*ARGUMENTS).program()
    made = jaxpp.mpmd_jit_with_loop(STEP, mpmd_mesh=MESH, **options(None, HOST)).lower(*ARGUMENTS).program()
    assert all(less < more for less, more in zip(made.peak_bytes, plain.peak_bytes, strict=True))
    assert re.search("jaxpp.bytes = {host_peak = [0-9]+ : i64, peak = [0-9]+ : i64}", made.as_text())
    program = load(made.module)
    calls = [each for each in program.sequences[0] if isinstance(each, Call)]
    copies = [number for number, each in enumerate(calls) if program.functions[each.function].is_copy]
    last = max(number for number, each in enumerate(calls) if each.tasks)
    assert copies
    assert min(copies) > last


def test_where_a_compiled_step_says_it_is() -> None:
    compiled = jaxpp.mpmd_jit_with_loop(STEP, mpmd_mesh=MESH, **options(None, HOST)).lower(*ARGUMENTS).compile()
    (weights, moments), *_ = compiled.out_shardings
    assert {each.memory_kind for each in jax.tree.leaves(moments)} == {"pinned_host"}
    assert {each.memory_kind for each in jax.tree.leaves(weights)} == {None}
    ((taken, _), _), _ = compiled.in_shardings
    assert {each.memory_kind for each in jax.tree.leaves(taken)} == {None}


def test_stages_of_several_devices() -> None:
    mesh = make_mesh(2, data=2)
    host = NamedSharding(mesh.jax_mesh, P("data"), memory_kind="pinned_host")

    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any, x: Any) -> jax.Array:
            for w in weights:
                x = jaxpp.mark_stage_end(jax.numpy.tanh(x @ w))
            return x.sum()

        gradients = jaxpp.treduce(
            partial(jax.grad(loss), weights), batch, schedule=jaxpp.Std1F1B(2), operation=jaxpp.Add
        )
        return jax.tree.map(jax.numpy.subtract, weights, gradients)

    weights = [jax.random.normal(jax.random.key(number), (8, 8)) for number in range(2)]
    batch = np.ones((4, 4, 8), np.float32)
    sharded = jaxpp.mpmd_jit_with_loop(step, mpmd_mesh=mesh, in_shardings=(host, P(None, "data")), out_shardings=host)
    found = sharded(weights, batch)
    assert kinds(found) == {"pinned_host"}
    for one, other in zip(found, jax.jit(step)(weights, batch), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
