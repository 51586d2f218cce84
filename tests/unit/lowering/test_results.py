"""The operations of `treduce` as a whole: means, the count that divides them, and trees of operations."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpp.lowering import Add, Concat, Count, Max, Mean, treduce, treduce_i

M = 4
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(M, 6, 3)).astype(np.float32)
VALID = RANDOM.random((M, 6)) < 0.5
VALID[1] = False
BATCH = {"x": X, "valid": VALID}
W = np.array([0.1, 0.2, 0.3], np.float32)


def loss(w: Any, microbatch: Any) -> Any:
    """The sum of the losses of the valid rows, and their number."""
    valid = microbatch["valid"]
    return jnp.sum(jnp.sin(microbatch["x"] @ w) * valid), jnp.sum(valid)


GRADIENT = jax.value_and_grad(loss, has_aux=True)


def by_count(w: Any, batch: Any, gradient: Any = GRADIENT) -> Any:
    return treduce(partial(gradient, w), batch, operation=((Mean, Count), Mean))


def test_means_are_sums_that_are_divided_once() -> None:
    def by_hand(w: Any, batch: Any) -> Any:
        (total, count), gradient = treduce(partial(GRADIENT, w), batch, operation=Add)
        return (total / count, count), gradient / count

    found = jax.jit(by_count)(W, BATCH)
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(by_hand)(W, BATCH))
    (mean, count), gradient = found
    assert (count, count.dtype) == (VALID.sum(), jnp.int32)
    flat = jax.tree.map(lambda leaf: leaf.reshape(M * 6, *leaf.shape[2:]), BATCH)
    (total, _), expected = GRADIENT(W, flat)
    np.testing.assert_allclose(mean, total / count, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected / count, rtol=1e-5)


def test_no_valid_row_at_all_is_no_number() -> None:
    (mean, count), gradient = by_count(W, BATCH | {"valid": np.zeros_like(VALID)})
    assert count == 0
    assert np.isnan(mean)
    assert np.isnan(gradient).all()


def test_a_mean_without_a_count_divides_by_the_number_of_microbatches() -> None:
    def of_one(w: Any, microbatch: Any) -> jax.Array:
        return jnp.mean(jnp.sin(microbatch["x"] @ w))

    mean, gradient = jax.jit(lambda: treduce(partial(jax.value_and_grad(of_one), W), BATCH, operation=Mean))()
    losses, summed = jax.jit(lambda: treduce(partial(jax.value_and_grad(of_one), W), BATCH))()
    np.testing.assert_allclose(mean, losses.mean(), rtol=1e-6)
    np.testing.assert_array_equal(gradient, summed / M)
    assert treduce_i(lambda i: i, 5, operation=Mean) == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "int32", "float32", "complex64"])
def test_types_of_a_mean(dtype: str) -> None:
    """The count is larger than float16 and bfloat16 can hold; the mean is as exact as its type all the same."""
    sums, counts = np.array([3, 5, 1, 7], np.float32), np.array([70_000, 1, 0, 2], np.int32)
    batch = (jnp.asarray(sums, dtype), counts)
    mean, count = jax.jit(lambda: treduce(lambda mb: mb, batch, operation=(Mean, Count)))()
    assert count == 70_003
    expected = jnp.asarray(np.float32(16) / np.float32(70_003), dtype if jnp.dtype(dtype).kind != "i" else "float32")
    assert mean.dtype == expected.dtype
    np.testing.assert_array_equal(mean, expected)
    assert not mean.weak_type


@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32"])
def test_types_of_a_count(dtype: str) -> None:
    batch = (X[:, 0, 0], np.asarray([1, 2, 3, 4], dtype))
    mean, count = treduce(lambda mb: mb, batch, operation=(Mean, Count()))
    assert (count, count.dtype) == (10, dtype)
    np.testing.assert_allclose(mean, X[:, 0, 0].sum() / 10, rtol=1e-6)


def test_64_bits() -> None:
    with jax.enable_x64(True):
        batch = (X[:, 0].astype(np.float64), X[:, 0], np.arange(M))
        wide, narrow, count = treduce(lambda mb: mb, batch, operation=(Mean, Mean, Count))
        assert (wide.dtype, narrow.dtype, count.dtype) == (jnp.float64, jnp.float32, jnp.int64)
        np.testing.assert_array_equal(wide, batch[0].sum(0) / 6)


def test_a_tree_of_operations_for_the_metrics_of_has_aux() -> None:
    def of_one(w: Any, microbatch: Any) -> Any:
        total, count = loss(w, microbatch)
        right = (microbatch["x"][:, 0] > 0) & microbatch["valid"]
        metrics = {"tokens": count, "accuracy": right.sum(), "worst": microbatch["x"].max(), "rows": microbatch["x"]}
        return total, metrics

    operations = {"tokens": Count, "accuracy": Mean, "worst": Max, "rows": Concat(1)}
    gradient = jax.value_and_grad(of_one, has_aux=True)
    (mean, metrics), found = jax.jit(
        lambda: treduce(partial(gradient, W), BATCH, operation=((Mean, operations), Mean))
    )()
    (expected, count), of_mean = by_count(W, BATCH)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(found, of_mean, rtol=1e-6)
    assert metrics["tokens"] == count
    np.testing.assert_allclose(metrics["accuracy"], ((X[..., 0] > 0) & VALID).sum() / count, rtol=1e-6)
    assert metrics["worst"] == X.max()
    np.testing.assert_array_equal(metrics["rows"], X.transpose(1, 0, 2))


def test_has_aux_without_operations_stacks_loss_and_metrics() -> None:
    (totals, counts), gradient = treduce(partial(GRADIENT, W), BATCH)
    np.testing.assert_array_equal(counts, VALID.sum(1))
    assert (totals.shape, gradient.shape) == ((M,), (3,))


def test_a_gradient_that_holds_nothing_stays_so() -> None:
    gradient = jax.value_and_grad(lambda w, mb: (w["x"] * mb).sum(), allow_int=True)
    weights = {"x": W[0], "count": np.array([1, 2], np.int32)}
    mean, found = treduce(partial(gradient, weights), X, operation=Mean)
    np.testing.assert_allclose(mean, (W[0] * X).sum() / M, rtol=1e-5)
    assert (found["count"].shape, found["count"].dtype) == ((2,), jax.dtypes.float0)


def test_outer_transformations() -> None:
    def plain(w: Any) -> Any:
        valid = VALID[..., None]
        return jnp.sum(jnp.sin(X @ w[:, None]) * valid) / valid.sum()

    def of_treduce(w: Any) -> Any:
        return by_count(w, BATCH, lambda w, mb: (loss(w, mb), 0.0))[0][0]

    np.testing.assert_allclose(jax.grad(of_treduce)(W), jax.grad(plain)(W), rtol=1e-5)
    ws = np.stack([W, 2 * W])
    np.testing.assert_allclose(jax.vmap(of_treduce)(ws), jax.vmap(plain)(ws), rtol=1e-5)


def pair(count: Any) -> Callable[..., Any]:
    """`treduce` of a sum and this count."""
    return lambda operation: treduce(lambda mb: (mb.sum(), count(mb)), X, operation=operation)


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no scalar": (
        lambda: pair(lambda mb: jnp.ones(2, jnp.int32))((Mean, Count)),
        TypeError,
        "Count: result[1] is int32[2], expected a scalar of int32 or float32 (or of 64 bits), such as "
        "jnp.sum(mask, dtype=jnp.int32)",
    ),
    "narrow": (
        lambda: pair(lambda mb: jnp.bfloat16(3))((Mean, Count)),
        TypeError,
        "Count: result[1] is bfloat16[], expected a scalar of int32 or float32 (or of 64 bits), such as "
        "jnp.sum(mask, dtype=jnp.int32)",
    ),
    "bool": (
        lambda: pair(lambda mb: mb.sum() > 0)((Mean, Count)),
        TypeError,
        "Count: result[1] is bool[], expected a scalar of int32 or float32 (or of 64 bits), such as "
        "jnp.sum(mask, dtype=jnp.int32)",
    ),
    "mean of bool": (
        lambda: pair(lambda mb: mb > 0)(Mean),
        TypeError,
        "Mean: result[1] is bool; use Max, or convert it to a number",
    ),
    "two": (
        lambda: treduce(lambda mb: {"a": 1, "b": 2, "c": mb}, X, operation={"a": Count, "b": Count, "c": Mean}),
        ValueError,
        "treduce: 2 results have the operation Count, result['a'] and result['b']; expected one, by which each Mean is "
        "divided: give Add to the others",
    ),
    "for nothing": (
        lambda: treduce_i(lambda i: (1.0 * i, i), 3, operation=(Add, Count)),
        ValueError,
        "treduce_i: result[1] has the operation Count, and no result has Mean; give Mean to what is divided by the "
        "count, as in operation=((jaxpp.Mean, jaxpp.Count), jaxpp.Mean), or Add to the count",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    make, kind, text = ERRORS[name]
    with pytest.raises(kind) as info:
        make()
    place, _, message = str(info.value).partition(": ")
    assert place.rpartition(":")[0] == __file__
    assert message == text
