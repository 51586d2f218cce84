"""`jaxpp.compare`: rounding is told from a parameter that is wrong."""

# pyright: reportUnknownLambdaType=false

import itertools
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from unit.end_to_end.compare import batch, loss, make_mesh, sgd_step, weights

import jaxpp.api as jaxpp
from jaxpp.comparing import Comparison, ResultComparison
from jaxpp.validation.widen import widen


def narrow(dtype: Any, params: Any, microbatch: Any) -> Any:
    """The loss in this dtype, with dropout of random numbers of it, which are made of their bits."""
    x = microbatch["x"].astype(dtype)
    for w in params:
        x = jnp.tanh(x @ w.astype(dtype)) * dtype(1.25)
        x = jaxpp.mark_stage_end(x + 0.1 * jax.random.normal(jax.random.key(0), x.shape, dtype))
    return jnp.mean((x.astype(jnp.float32) - microbatch["y"]) ** 2)


def constrained(params: Any, microbatch: Any) -> Any:
    return loss(params, jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, P("data")), microbatch))


def made(of_one: Any = loss, data: int = 1, schedule: Any = "1f1b", **options: Any) -> Any:
    step = partial(sgd_step, schedule=schedule, loss=of_one)
    return jaxpp.mpmd_jit_with_loop(step, make_mesh(2, data=data), **options)


class Beside:
    """A step beside plain `jax.jit` of another function."""

    def __init__(self, step: Any, change: Any) -> None:
        self.step, self.change = step, change

    def to_compare(self, args: Any) -> Any:
        plain, lowered = self.step.to_compare(args)
        return jax.jit(lambda *args: self.change(plain(*args)), keep_unused=True), lowered


def wrong(result: Any) -> Any:
    (first, second), losses = result
    return [first, second * 1.001], losses


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_types_round(dtype: Any) -> None:
    params = weights(2)
    step = made(partial(narrow, dtype), donate_argnums=0)
    found = jaxpp.compare(step, params, batch(2))
    assert found.is_rounding, found
    assert str(found).startswith("rounding: ")
    assert not any(w.is_deleted() for w in params)
    for each in found.results:
        assert each.at_float32 is not None
        assert each.at_float32 < 1e-6 < 1e-5 < (each.of_jit or 0.0)
    assert [(each.name, each.stages, each.meshes) for each in found.results] == [
        ("params[0]", (0,), (0,)),
        ("params[1]", (1,), (1,)),
        ("result[1]", (1,), (1,)),
    ]


def test_a_narrow_step_with_a_wrong_parameter() -> None:
    """It is a tenth of what bfloat16 rounds: only float32 tells."""
    found = jaxpp.compare(Beside(made(partial(narrow, jnp.bfloat16)), wrong), weights(2), batch(2))
    first, second, _ = found.results
    assert first.is_rounding
    assert not second.is_rounding
    assert str(found).startswith("differs, in 1 of 3 results:\n  params[1] of stage 1: ")


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "auto"])
def test_float32(schedule: str) -> None:
    step = made(schedule=schedule)
    found = jaxpp.compare(step, weights(2), batch(2))
    assert found.is_rounding
    assert {each.at_float32 for each in found.results} == {None}
    assert not jaxpp.compare(Beside(step, wrong), weights(2), batch(2)).is_rounding


@pytest.mark.parametrize("of_one", [loss, constrained])
def test_meshes_of_several_devices(of_one: Any) -> None:
    """A function that names axes of the mesh runs under plain jax.jit, on one of the meshes."""
    step = made(of_one, data=2, in_shardings=(P(), P(None, "data")))
    assert jaxpp.compare(step, weights(2), batch(2)).is_rounding


def test_integers_and_what_is_not_finite() -> None:
    def counted(state: Any, batch: Any) -> Any:
        params, count = state
        params, losses = sgd_step(params, batch, schedule="1f1b")
        return (params, count + 1), losses / 0

    step = jaxpp.mpmd_jit_with_loop(counted, make_mesh(2))
    args = (weights(2), jnp.int32(3)), batch(2)
    assert jaxpp.compare(step, *args).is_rounding
    for change in (lambda r: ((r[0][0], r[0][1] + 1), r[1]), lambda r: (r[0], 0 * r[1])):
        assert [each.is_rounding for each in jaxpp.compare(Beside(step, change), *args).results].count(False) == 1


def test_what_can_not_run_alone_is_said() -> None:
    def printing(params: Any, microbatch: Any) -> Any:
        jax.debug.callback(lambda _: None, microbatch["x"][0, 0])
        return narrow(jnp.bfloat16, params, microbatch)

    found = jaxpp.compare(made(printing), weights(2), batch(2))
    assert found.is_rounding
    assert "(not run in float32: custom call @" in str(found)


def test_a_step_that_is_not_deterministic() -> None:
    def noisy(params: Any, batch: Any) -> Any:
        params, losses = sgd_step(params, batch, schedule="1f1b")
        drawn = jax.pure_callback(lambda: np.float32(next(numbers)), jax.ShapeDtypeStruct((), jnp.float32))
        return [*params[:-1], params[-1] + drawn], losses

    numbers = itertools.count()
    found = jaxpp.compare(jaxpp.mpmd_jit_with_loop(noisy, make_mesh(2)), weights(2), batch(4))
    assert re.match(r"not deterministic, in 1 of 3 results:\n  params\[1\] of stage 1: .* between two runs", str(found))
    assert not found.is_rounding


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^compare: expected a step of mpmd_jit_with_loop, found function$"):
        jaxpp.compare(sgd_step, weights(2), batch(2))  # pyright: ignore[reportArgumentType]


def test_verdicts() -> None:
    """A scalar of bfloat16 may be tens of per cent off by rounding: where float32 agrees, and jax.jit is as far."""
    row = partial(ResultComparison, "norm", (), (1,))
    assert row(0.41, 0.1, 0.4, 0.05, 1e-7).is_rounding
    assert not row(0.41, 0.1, 0.4, 0.05, 1e-2).is_rounding
    assert not row(0.41, 1e-6, 0.4, 1e-6, 1e-7).is_rounding
    assert row(0.41, 1e-6, 0.4, 1e-6, 1e-7, most_of_jit=0.05).is_rounding, "by chance, as another result shows"
    assert str(Comparison(())) == "no results"
    assert str(row(0.0, 0.0)) == "norm of mesh 1: 0.0e+00 from jax.jit"


def test_a_module_without_narrow_types_stays() -> None:
    module = made().lower(weights(2), batch(2)).lowered.module
    before = str(module)
    assert not widen(module)
    assert str(module) == before
