"""A marked function becomes a loop of one microbatch and what comes after it."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpp.lowering import in_one_microbatch, mark_stage_end
from jaxpp.schedules import Schedule

X = jnp.ones((2, 2))


def two_stages(x: jax.Array) -> jax.Array:
    return mark_stage_end(jnp.cos(mark_stage_end(jnp.sin(x))))


def loop_and_rest(fun: Callable[..., Any], meshes: int = 2, stages: int | None = None) -> tuple[Any, list[str]]:
    """The loop's parameters, and the names of the operations after it."""
    traced = jax.make_jaxpr(in_one_microbatch(fun, meshes, stages))(X)
    names = [eqn.primitive.name for eqn in traced.eqns]
    at = names.index("jaxpp_microbatch_loop")
    return traced.eqns[at].params, names[at + 1 :]


def operations(loop: Any) -> list[str]:
    found = [eqn.primitive.name for eqn in loop["body"].eqns]
    for eqn in loop["body"].eqns:
        if "jaxpr" in eqn.params:
            found += [inner.primitive.name for inner in eqn.params["jaxpr"].eqns]
    return found


def test_what_leads_to_a_mark_is_in_the_loop() -> None:
    def gradient(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: jnp.sum(two_stages(x)))(x) * 3 + jnp.tan(x)

    loop, rest = loop_and_rest(gradient)
    assert loop["length"] == 1
    assert {"sin", "jaxpp_mark"} <= set(operations(loop))
    assert "tan" not in operations(loop)
    assert {"tan", "mul"} <= set(rest)


@pytest.mark.parametrize(
    ("meshes", "stages", "homes"),
    [(2, None, "0 1"), (4, 2, "0 1"), (3, None, "0 1 2"), (2, 3, "0 1 0"), (1, None, "0 0")],
)
def test_stages_are_dealt_to_the_meshes(meshes: int, stages: int | None, homes: str) -> None:
    loop, _ = loop_and_rest(lambda x: jnp.exp(two_stages(x)), meshes, stages)
    assert f"placement: {homes}\n" in loop["schedule"]
    assert Schedule.parse(loop["schedule"]).microbatches == 1


def test_a_last_stage_without_a_mark_gets_one() -> None:
    """Of what does not follow from the last mark, nothing moves to the last stage."""

    def three_stages(x: jax.Array) -> Any:
        return jnp.exp(two_stages(x)), jnp.tan(x)

    loop, rest = loop_and_rest(three_stages, 3)
    assert "exp" in operations(loop)
    assert rest == ["tan"]
    assert loop_and_rest(three_stages, 2)[1] == ["exp", "tan"]


def test_the_numbers_are_the_same() -> None:
    def function(x: jax.Array) -> Any:
        return {"y": two_stages(x), "sign": x > 0, "count": 3, "none": None, "x": x}

    found = in_one_microbatch(function, 2)(X)
    assert jax.tree.structure(found) == jax.tree.structure(function(X))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(function(X)), strict=True):
        assert jnp.array_equal(one, other)
