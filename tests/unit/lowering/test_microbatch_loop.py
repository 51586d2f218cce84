"""`treduce` computes what a Python loop computes, and leaves a counted loop in the module."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from jaxpp.lowering import Add, Concat, Max, MpmdMesh, Op, treduce, treduce_i

M = 5
BATCH = {"x": np.arange(M * 6, dtype=np.float32).reshape(M, 2, 3), "y": np.arange(M, dtype=np.int32)}


class TextSchedule:
    """A stand-in for a schedule: what `treduce` needs of one."""

    def build(self, microbatches: int) -> str:
        return f"grid of {microbatches}"


class Last(Op):
    """A user's own operation: the result of the last microbatch."""

    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros(a.shape, a.dtype)

    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        return update


class Product(Op):
    """A user's own operation: the product over the microbatches."""

    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.ones(a.shape, a.dtype)

    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        return state * update


def slices(batch: Any, axis: int = 0) -> list[Any]:
    return [jax.tree.map(lambda leaf, i=i: np.take(leaf, i, axis), batch) for i in range(M)]


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_training_step_equals_python_loop(marked: Any, plain: Any, jit: Callable[..., Any]) -> None:
    params, batch = marked.params(), marked.batch(M)

    def step(params: Any, batch: Any) -> Any:
        return treduce(lambda mb: jax.value_and_grad(marked.loss)(params, mb), batch, operation=(Concat(), Add))

    losses, grads = jit(step)(params, batch)
    expected = [jax.value_and_grad(plain.loss)(params, mb) for mb in slices(batch)]
    np.testing.assert_allclose(losses, [loss for loss, _ in expected], rtol=1e-6)
    for k, grad in enumerate(grads):
        np.testing.assert_allclose(grad, sum(g[k] for _, g in expected), rtol=1e-5, atol=1e-6)


def test_a_pair_of_gradients_is_no_loss_with_its_gradients() -> None:
    """Of two parameters the gradients are a pair, too."""

    def gradients(microbatch: Any) -> Any:
        return jax.grad(lambda w, b: (jnp.sum(microbatch["x"] * w) + b).sum(), argnums=(0, 1))(jnp.ones(3), jnp.ones(2))

    message = (
        r"treduce: the function returns a pair that begins with float32\[3\], expected the scalar loss of \(loss, "
        r"gradients\); give operation=\(jaxpp.Concat\(\), jaxpp.Add\) to stack the first of the two and sum the "
        r"second, or operation=jaxpp.Add to sum both$"
    )
    with pytest.raises(ValueError, match=message):
        treduce(gradients, BATCH)
    summed = treduce(gradients, BATCH, operation=Add)
    assert [each.shape for each in summed] == [(3,), (2,)]


def test_default_operation_stacks_losses_and_adds_gradients(marked: Any) -> None:
    params, batch = marked.params(), marked.batch(M)
    losses, grads = treduce(lambda mb: jax.value_and_grad(marked.loss)(params, mb), batch)
    assert losses.shape == (M,)
    assert [grad.shape for grad in grads] == [(4, 4)] * 3
    assert treduce(lambda mb: mb["x"], BATCH).shape == (2, 3)


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_operations(jit: Callable[..., Any]) -> None:
    def f(batch: Any) -> Any:
        operations = {"add": Add, "max": Max(), "c0": Concat, "c1": Concat(1), "c2": Concat(-1), "last": Last, "i": Max}
        return treduce(lambda mb: dict.fromkeys(operations, mb["x"]) | {"i": mb["y"]}, batch, operation=operations)

    x = BATCH["x"]
    expected = {"add": x.sum(0), "max": x.max(0), "c0": x, "c1": x.transpose(1, 0, 2), "c2": x.transpose(1, 2, 0)}
    out = jit(f)(BATCH)
    assert out.keys() == {*expected, "last", "i"}
    for name, value in (expected | {"last": x[-1], "i": M - 1}).items():
        np.testing.assert_array_equal(out[name], value)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_max_starts_from_the_lowest_value(dtype: str) -> None:
    lowest = jnp.asarray([False] if dtype == "bool" else [-3 if dtype != "uint32" else 3], dtype)
    out = treduce(lambda mb: mb, jnp.stack([lowest, lowest]), operation=Max)
    assert out.dtype == lowest.dtype
    assert out.astype(jnp.float32) == lowest.astype(jnp.float32)


def constants(microbatch: Any) -> Any:
    """Results that are constants, or arguments as they are; under `jax.make_jaxpr` some of them have no type."""
    numbers = {"int": 4, "float": 2.5, "size": jnp.array(microbatch["x"].size), "typed": np.float32(1.5), "none": None}
    arrays = {"numpy": np.arange(3), "outside": BATCH["x"], "argument": microbatch["y"]}
    return {**numbers, **arrays, "bool": True, "shape": microbatch["x"].shape}


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("operation", [Add, Max(), Concat(), Concat(-1), Last, Product], ids=str)
def test_constants_among_the_results(operation: Any, jit: Callable[..., Any]) -> None:
    op = operation() if isinstance(operation, type) else operation
    of_one = constants if operation is not Add else lambda mb: constants(mb) | {"bool": None}

    def loop(*values: Any) -> jax.Array:
        state = op.state(M, jax.typeof(values[0]))
        for index, value in enumerate(values):
            state = op.update(state, jnp.asarray(value), jnp.int32(index))
        return state

    expected = jax.tree.map(loop, *map(of_one, slices(BATCH)))
    found = jit(lambda batch: treduce(of_one, batch, operation=operation))(BATCH)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (jax.typeof(one), one.weak_type) == (jax.typeof(other), other.weak_type)
        np.testing.assert_array_equal(one, other)


def test_axis_and_prefix() -> None:
    x = np.arange(2 * M * 3, dtype=np.float32).reshape(2, M, 3)
    for axis in (1, -2):
        rows = {"a": x, "k": x}
        out = treduce(lambda mb: (mb["a"], {"b": mb["a"] * 2, "c": mb["k"]}), rows, axis=axis, operation=(Concat, Add))
        np.testing.assert_array_equal(out[0], x.transpose(1, 0, 2))
        np.testing.assert_allclose(out[1]["b"], 2 * x.sum(1))


def test_treduce_i_counts_in_int32() -> None:
    def f(i: jax.Array) -> jax.Array:
        assert i.dtype == jnp.int32
        return i * i

    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(lambda: treduce_i(f, 4, operation=Concat()))(), [0, 1, 4, 9])
        np.testing.assert_array_equal(treduce_i(f, 1, operation=Concat()), [0])


def test_keys_of_the_microbatches() -> None:
    def f(key: jax.Array) -> jax.Array:
        return treduce(lambda k: jax.random.normal(k, (2,)), jax.random.split(key, M), operation=Concat())

    key = jax.random.key(3)
    expected = [jax.random.normal(k, (2,)) for k in jax.random.split(key, M)]
    np.testing.assert_array_equal(jax.jit(f)(key), f(key))
    np.testing.assert_array_equal(f(key), expected)


def test_outer_transformations_use_the_plain_loop() -> None:
    def f(w: jax.Array, mark: bool) -> jax.Array:
        body = lambda mb: (jnp.sin(mb["x"] * w).sum(), mb["y"])  # noqa: E731
        if mark:
            return treduce(body, BATCH, operation=Add)[0]
        return sum(body(mb)[0] for mb in slices(BATCH))  # pyright: ignore[reportReturnType]

    w, ws = jnp.float32(0.1), jnp.linspace(0.0, 1.0, 3)
    for transform in (jax.grad, jax.jacfwd, lambda g: jax.jit(jax.grad(g)), lambda g: jax.grad(jax.checkpoint(g))):
        np.testing.assert_allclose(transform(lambda w: f(w, True))(w), transform(lambda w: f(w, False))(w), rtol=1e-4)
    np.testing.assert_allclose(jax.vmap(lambda w: f(w, True))(ws), [f(w, False) for w in ws], rtol=1e-4)


def module_of(function: Callable[..., Any], *args: Any) -> ir.Module:
    module = jax.jit(function).lower(*args).compiler_ir()
    assert module is not None
    return module


def test_loop_attribute_and_location(operations: Callable[..., list[Any]]) -> None:
    module = module_of(lambda b: treduce(lambda mb: mb["x"], b, schedule=TextSchedule(), operation=Add), BATCH)
    (loop,) = operations(module, "stablehlo.while")
    entry = ir.DictAttr(loop.attributes["jaxpp.microbatch_loop"])
    assert ir.IntegerAttr(entry["length"]).value == M
    assert str(entry["length"].type) == "i64"
    assert ir.StringAttr(entry["schedule"]).value == f"grid of {M}"
    assert "test_microbatch_loop.py" in str(loop.location)
    assert "lowering/microbatch_loop.py" not in str(loop.location)
    types = [str(operand.type) for operand in loop.operands]
    assert types.count("tensor<i32>") == 1, "one counter"


def test_function_is_traced_once() -> None:
    traces: list[int] = []

    def f(mb: Any) -> jax.Array:
        traces.append(1)
        return mb["x"]

    jax.jit(lambda b: treduce(f, b, operation=Add))(BATCH)
    assert len(traces) == 1


def test_explicit_axes(explicit_mesh: MpmdMesh, operations: Callable[..., list[Any]]) -> None:
    x = np.arange(M * 8, dtype=np.float32).reshape(M, 4, 2)

    def f(x: jax.Array) -> Any:
        operation = (Add, Concat(), Max, Concat(1), Add)
        return treduce(lambda mb: (mb, mb, mb, mb, mb.sum()), x, operation=operation)

    with jax.set_mesh(explicit_mesh.jax_mesh):
        placed = jax.device_put(x, jax.sharding.PartitionSpec(None, "data"))
        out = jax.jit(f)(placed)
        module = module_of(f, placed)
        (loop,) = operations(module, "stablehlo.while")
        assert "jaxpp.microbatch_loop" in loop.attributes
    assert out[1].sharding.spec[1] == "data"
    for got, expected in zip(out, (x.sum(0), x, x.max(0), x.transpose(1, 0, 2), x.sum()), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_side_effects_run_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def f(mb: jax.Array) -> jax.Array:
        jax.debug.print("{}", mb, ordered=True)
        return mb

    jax.jit(lambda b: treduce(f, b, operation=Add))(np.arange(3)).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["0", "1", "2"]


class Widening(Op):
    def state(self, n: int, a: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.zeros(a.shape, a.dtype)

    def update(self, state: jax.Array, update: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.stack([state, update])


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "sizes": (
        lambda: treduce(lambda mb: mb, {"x": np.ones((4, 2)), "y": {"z": np.ones(3)}}),
        ValueError,
        "treduce: batch['y']['z'] has 3 microbatches along axis 0, but batch['x'] has 4",
    ),
    "no axis": (
        lambda: treduce(lambda mb: mb, {"x": np.ones(4)}, axis=1),
        ValueError,
        "treduce: batch['x'] has shape (4,), so no microbatch axis 1",
    ),
    "no array": (lambda: treduce(lambda mb: mb, {}), ValueError, "treduce: the batch holds no array"),
    "empty": (
        lambda: treduce(lambda mb: mb, np.ones((0, 2))),
        ValueError,
        "treduce: the batch is empty: batch has size 0 along axis 0",
    ),
    "not an array": (
        lambda: treduce(lambda mb: mb, {"x": np.ones(4), "name": "train"}),
        TypeError,
        "treduce: batch['name'] is of type str, not an array",
    ),
    "float0": (
        lambda: treduce(lambda mb: mb, np.zeros(4, jax.dtypes.float0)),
        TypeError,
        "treduce: batch is of type float0, not an array",
    ),
    "length": (lambda: treduce_i(lambda i: i, 0), ValueError, "treduce_i: 0 microbatches; at least 1 is needed"),
    "prefix": (
        lambda: treduce(lambda mb: (mb, mb), np.ones(4), operation=(Add, Add, Max)),
        ValueError,
        "does not fit what the function returns, ((*, *)); give one operation, or a pytree of operations that is a",
    ),
    "no operation": (
        lambda: treduce(lambda mb: (mb, mb), np.ones(4), operation=(Add, "mean")),
        TypeError,
        "treduce: the operation for result[1] is 'mean'; expected Add, Mean, Count, Max, Concat(axis) or an Op",
    ),
    "concat axis": (
        lambda: treduce(lambda mb: mb, np.ones(4), operation=Concat(1)),
        ValueError,
        "Concat(axis=1): a result of 0 dimensions can be stacked along 0 to 0",
    ),
    "own op": (
        lambda: treduce(lambda mb: {"a": mb}, np.ones(4, np.float32), operation=Widening()),
        TypeError,
        "Widening: the accumulator of result['a'] is float32[], its update is float32[2]",
    ),
    "add booleans": (
        lambda: treduce(lambda mb: mb > 0, np.ones(4), operation=Add),
        TypeError,
        "Add: result is bool; use Max, or convert it to a number",
    ),
    "max complex": (
        lambda: treduce(lambda mb: 1j * mb, np.ones(4, np.float32), operation=Max),
        TypeError,
        "Max: result is complex64; complex numbers have no order, reduce jnp.abs of it",
    ),
    "key": (
        lambda: treduce(lambda mb: mb, jax.random.split(jax.random.key(0), 3), operation=Concat()),
        TypeError,
        "Concat: result is key<fry>; reduce jax.random.key_data of it",
    ),
    "no schedule": (
        lambda: treduce(lambda mb: mb, np.ones(4), schedule=4),
        TypeError,
        "schedule: expected an object such as jaxpp.schedules.Std1F1B(4), a name, a file or a text, found int",
    ),
    "axis": (
        lambda: treduce(lambda mb: mb, np.ones(4), axis=1.0),  # pyright: ignore[reportArgumentType]  # the mistake
        TypeError,
        "treduce: axis must be a whole number, found 1.0",
    ),
    "whole length": (
        lambda: treduce_i(lambda i: i, 2.5),  # pyright: ignore[reportArgumentType]  # the mistake
        TypeError,
        "treduce_i: length must be a whole number, found 2.5",
    ),
    "result": (lambda: treduce(lambda mb: "loss", np.ones(4)), TypeError, "treduce: result is of type str"),
    "incomplete": (lambda: type("Half", (Op,), {"state": Add.state})(), TypeError, "instantiate abstract class Half"),
}


def test_messages_of_jax_name_the_function_of_the_user() -> None:
    def of_one(scale: float, row: jax.Array) -> jax.Array:
        return scale * row if row > 0 else -row

    for function in (partial(of_one, 1.0), partial(jax.value_and_grad(of_one), 1.0)):
        with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
            treduce(function, np.ones(4))
        assert f"tracing the function of_one at {__file__}" in str(caught.value)


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    make, kind, text = ERRORS[name]
    with pytest.raises(kind) as info:
        make()
    assert text in str(info.value)
    assert len(str(info.value)) < 400


def test_an_operation_that_jax_lowers_in_two_steps() -> None:
    """`jnp.histogram` is such a one in JAX 0.12, here in the update alone."""

    class Counts(Op):
        def state(self, n: int, a: Any) -> jax.Array:
            return jnp.zeros(4)

        def update(self, state: jax.Array, update: jax.Array, index: Any) -> jax.Array:
            return state + jnp.histogram(update, bins=4, range=(-3, 3))[0]

    x = jax.random.normal(jax.random.key(0), (4, 4, 8))
    found = jax.jit(lambda batch: treduce(lambda each: each, batch, operation=Counts))(x)
    np.testing.assert_array_equal(found, np.histogram(x, bins=4, range=(-3, 3))[0])
