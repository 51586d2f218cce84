"""Marks change no number, under any transformation, and leave a trace in the module."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from jaxpp.lowering import MpmdMesh, mark_stage_end, pipeline_enter_stage
from jaxpp.lowering.marks import stage_numbering

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def f(x: jax.Array, mark: Callable[[Any], Any]) -> jax.Array:
    y = mark(jnp.sin(x))
    z, k = mark((y * x, jnp.arange(3)))
    return mark(jnp.sum(z * k, axis=-1) + jnp.tanh(y).sum())


def marked(x: jax.Array) -> jax.Array:
    return f(x, mark_stage_end)


def plain(x: jax.Array) -> jax.Array:
    return f(x, lambda x: x)


def total(g: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: g(x).sum()


TRANSFORMATIONS: dict[str, Callable[[Callable[[jax.Array], jax.Array]], Any]] = {
    "eager": lambda g: g(X),
    "jit": lambda g: jax.jit(g)(X),
    "grad": lambda g: jax.grad(total(g))(X),
    "jit of grad": lambda g: jax.jit(jax.grad(total(g)))(X),
    "grad of jit": lambda g: jax.grad(total(jax.jit(g)))(X),
    "value_and_grad": lambda g: jax.value_and_grad(total(g))(X),
    "vjp": lambda g: jax.vjp(g, X)[1](jnp.ones(2)),
    "jvp": lambda g: jax.jvp(g, (X,), (X + 1,)),
    "linearize": lambda g: jax.linearize(g, X)[1](X + 1),
    "linear_transpose": lambda g: jax.linear_transpose(jax.linearize(g, X)[1], X)(jnp.ones(2)),
    "vmap": lambda g: jax.vmap(g)(jnp.stack([X, X + 1])),
    "vmap of grad": lambda g: jax.vmap(jax.grad(total(g)), in_axes=1, out_axes=1)(jnp.stack([X, X + 1], 1)),
    "grad of vmap": lambda g: jax.grad(lambda x: jax.vmap(g)(x).sum())(jnp.stack([X, X + 1])),
    "checkpoint": lambda g: jax.grad(total(jax.checkpoint(g)))(X),
    "hessian": lambda g: jax.hessian(total(g))(X),
    "jacfwd": lambda g: jax.jacfwd(g)(X),
    "jacrev": lambda g: jax.jit(jax.jacrev(g))(X),
    "scan": lambda g: jax.grad(lambda x: jax.lax.scan(lambda c, _: (c * g(c).sum(), None), x, length=3)[0].sum())(X),
    "cond": lambda g: jax.grad(lambda x: jax.lax.cond(x[0, 0] < 0, g, lambda x: x[:, 0], x).sum())(X),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_marked_equals_plain(name: str) -> None:
    transformed = TRANSFORMATIONS[name]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), transformed(marked), transformed(plain))


def boundaries(text: ir.Module, operations: Callable[..., list[Any]]) -> list[tuple[int, str, str, int]]:
    """(stage, phase, name, number of operands) of every mark, in order."""
    found: list[tuple[int, str, str, int]] = []
    for op in operations(text, "stablehlo.optimization_barrier"):
        entry = ir.DictAttr(op.attributes["jaxpp.boundary"])
        phase, name = (ir.StringAttr(entry[key]).value for key in ("phase", "name"))
        found.append((ir.IntegerAttr(entry["stage"]).value, phase, name, len(op.operands)))
    return found


def module_of(g: Callable[..., Any], *args: Any) -> ir.Module:
    with stage_numbering():
        module = jax.jit(lambda *args: g(*args)).lower(*args).compiler_ir()
    assert module is not None
    return module


def test_gradient_has_the_mirrored_marks(operations: Callable[..., list[Any]]) -> None:
    def model(x: jax.Array) -> jax.Array:
        x = mark_stage_end(jnp.sin(x), name="first")
        x = pipeline_enter_stage((x * x, x), name="second")[0]
        return mark_stage_end(x.sum())

    found = boundaries(module_of(jax.value_and_grad(model), X), operations)
    assert found == [
        (0, "forward", "first", 1),
        (1, "forward", "second", 2),
        (2, "forward", "", 1),
        (2, "backward", "", 1),
        (1, "backward", "second", 1),
        (0, "backward", "first", 1),
    ]


def test_tangent_mark_is_a_forward_mark_of_the_same_stage(operations: Callable[..., list[Any]]) -> None:
    module = module_of(lambda x: jax.jvp(lambda x: jnp.sin(mark_stage_end(x * x)), (x,), (x,)), X)
    assert boundaries(module, operations) == [(0, "forward", "", 1), (0, "forward", "", 1)]


def test_location_is_the_users_line(operations: Callable[..., list[Any]]) -> None:
    (op,) = operations(module_of(lambda x: mark_stage_end(x * x), X), "stablehlo.optimization_barrier")
    assert "test_marks.py" in str(op.location)
    assert "lowering/marks.py" not in str(op.location)


def test_integers_booleans_and_keys_pass() -> None:
    def g(x: jax.Array, mark: Callable[[Any], Any]) -> jax.Array:
        tree = {"k": jax.random.key(0), "i": jnp.arange(3), "b": x > 0, "x": x, "raw": jnp.zeros(2, jnp.uint32)}
        tree = mark(tree)
        noise = jax.random.normal(tree["k"], (3,))
        return jnp.sum(jnp.where(tree["b"], tree["x"], 0) * tree["i"] * noise)

    marked, plain = (lambda x: g(x, mark_stage_end)), (lambda x: g(x, lambda x: x))
    for transform in (lambda h: h, jax.grad, lambda h: jax.jit(jax.grad(h)), jax.jit):
        np.testing.assert_allclose(transform(marked)(X), transform(plain)(X))
    keys = jax.vmap(lambda k: jax.random.uniform(mark_stage_end(k)))(jax.random.split(jax.random.key(1), 3))
    assert keys.shape == (3,)


def test_stop_gradient_leaves_no_backward_mark(operations: Callable[..., list[Any]]) -> None:
    module = module_of(jax.grad(lambda x: jnp.sum(x * mark_stage_end(jax.lax.stop_gradient(x)))), X)
    assert boundaries(module, operations) == [(0, "forward", "", 1)]


def test_python_numbers_and_weak_types() -> None:
    assert jax.typeof(mark_stage_end(1.0)).weak_type
    assert jax.jit(lambda x: mark_stage_end(x * 2))(3).dtype == jnp.int32
    with jax.enable_x64(True):
        assert mark_stage_end(np.ones(2)).dtype == np.float64


def test_explicit_sharding_stays_in_the_type(explicit_mesh: MpmdMesh) -> None:
    def g(x: jax.Array) -> jax.Array:
        y = mark_stage_end(x * 2)
        assert jax.typeof(y).sharding.spec == P("data", None)
        return y

    with jax.set_mesh(explicit_mesh.jax_mesh):
        x = jax.device_put(X, P("data"))
        np.testing.assert_array_equal(jax.jit(g)(x), X * 2)
        np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: g(x).sum()))(x), jnp.full_like(X, 2))


def test_numbering_starts_anew_and_nests() -> None:
    def stages(n: int) -> list[int]:
        jaxpr = jax.make_jaxpr(lambda x: [mark_stage_end(x) for _ in range(n)])(1.0)
        return [eqn.params["stage"] for eqn in jaxpr.eqns]

    with stage_numbering():
        assert stages(2) == [0, 1]
        with stage_numbering():
            assert stages(1) == [0]
        assert stages(1) == [2]


def test_marking_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="mark_stage_end: its argument holds no array, so it marks nothing"):
        mark_stage_end({"a": None})


def test_not_an_array_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"pipeline_enter_stage: x\['act'\] is of type str, not an array"):
        pipeline_enter_stage({"act": "gelu", "x": 1.0})
