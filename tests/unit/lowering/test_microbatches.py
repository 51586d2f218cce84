"""`treduce` with `microbatches`: the rows of a batch become microbatches, and none of them is lost."""

# pyright: reportUnknownLambdaType=false

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpp.lowering import Add, Concat, treduce

M, ROWS = 4, 12
BATCH = {"x": np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3), "y": np.arange(ROWS)}


def taken(batch: Any, **options: Any) -> Any:
    """The microbatches as `treduce` hands them to its function, stacked."""
    return jax.jit(lambda each: treduce(lambda mb: mb, each, operation=Concat(), **options))(batch)


def test_row_r_goes_to_microbatch_r_modulo_their_number() -> None:
    found = taken(BATCH, microbatches=M)
    np.testing.assert_array_equal(found["y"], [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]])
    np.testing.assert_array_equal(found["x"], np.stack([BATCH["x"][k::M] for k in range(M)]))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_any_axis_of_rows(axis: int) -> None:
    x = np.moveaxis(BATCH["x"], 0, axis)
    expected = [np.take(x, range(k, ROWS, M), axis) for k in range(M)]
    np.testing.assert_array_equal(taken(x, microbatches=M, axis=axis), expected)


@pytest.mark.parametrize("count", [1, 3, ROWS])
def test_concat_1_gives_the_order_of_the_rows_back(count: int) -> None:
    found = treduce(lambda mb: mb["x"] + 1, BATCH, operation=Concat(1), microbatches=count)
    assert found.shape == (ROWS // count, count, 2, 3)
    np.testing.assert_array_equal(found.reshape(ROWS, 2, 3), BATCH["x"] + 1)


def test_random_keys_of_the_rows() -> None:
    def noise(keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)

    keys = jax.random.split(jax.random.key(0), ROWS)
    with jax.debug_key_reuse(True):
        found = jax.jit(lambda keys: treduce(noise, keys, operation=Concat(1), microbatches=M))(keys)
    np.testing.assert_array_equal(found.reshape(ROWS, 3), noise(keys))


def test_outer_transformations() -> None:
    def f(w: jax.Array) -> jax.Array:
        return treduce(lambda mb: jnp.sin(mb["x"] * w).sum(), BATCH, operation=Add, microbatches=M)

    def plain(w: jax.Array) -> jax.Array:
        return jnp.sin(BATCH["x"] * w).sum()

    np.testing.assert_allclose(jax.grad(f)(0.1), jax.grad(plain)(0.1), rtol=1e-4)
    ws = jnp.linspace(0.0, 1.0, 3)
    np.testing.assert_allclose(jax.vmap(f)(ws), jax.vmap(plain)(ws), rtol=1e-4)


def both(**leaves: Any) -> Callable[..., Any]:
    return lambda **options: treduce(lambda mb: mb, leaves, operation=Concat(), **options)


ONE = both(x=np.ones((10, 2)))

ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "indivisible": (
        lambda: ONE(microbatches=4),
        ValueError,
        "treduce: the batch has 10 rows along axis 0, which 4 microbatches can't share equally; expected 8 or 12 rows: "
        "leave out rows, or add rows that a mask leaves out of the loss",
    ),
    "too few": (
        lambda: ONE(microbatches=4, axis=-1),
        ValueError,
        "treduce: the batch has 2 rows along axis -1, which 4 microbatches can't share equally; expected 4 rows: leave "
        "out rows, or add rows that a mask leaves out of the loss",
    ),
    "none": (lambda: ONE(microbatches=0), ValueError, "treduce: 0 microbatches; at least 1 is needed"),
    "negative": (lambda: ONE(microbatches=-2), ValueError, "treduce: -2 microbatches; at least 1 is needed"),
    "no whole number": (
        lambda: ONE(microbatches=2.5),
        TypeError,
        "treduce: microbatches must be a whole number, found 2.5",
    ),
    "a truth value": (
        lambda: ONE(microbatches=True),
        TypeError,
        "treduce: microbatches must be a whole number, found True",
    ),
    "sizes": (
        lambda: both(x=np.ones((8, 2)), y=np.ones(12))(microbatches=4),
        ValueError,
        "treduce: batch['y'] has 12 rows along axis 0, but batch['x'] has 8",
    ),
    "keys of the microbatches": (
        lambda: both(key=jax.random.split(jax.random.key(0), 4), x=np.ones((8, 2)))(microbatches=4),
        ValueError,
        "treduce: batch['x'] has 8 rows along axis 0, but batch['key'] has 4; microbatches=4 splits the rows of every "
        "leaf: for random keys give one of each row, jax.random.split(key, rows)",
    ),
    "no axis": (
        lambda: both(x=np.ones((8, 2)), y=np.ones(8))(microbatches=2, axis=1),
        ValueError,
        "treduce: batch['y'] has shape (8,), so no axis 1 of rows",
    ),
    "empty": (
        lambda: both(x=np.ones((0, 2)))(microbatches=2),
        ValueError,
        "treduce: the batch is empty: batch['x'] has size 0 along axis 0",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    make, kind, text = ERRORS[name]
    with pytest.raises(kind) as info:
        make()
    place, found, message = str(info.value).partition(": treduce")
    assert place.startswith(f"{__file__}:")
    assert found + message == f": {text}"


@pytest.mark.parametrize(
    ("axis", "shape", "other"), [(0, (4, 2, 3), 1), (1, (2, 4, 3), 2), (-1, (2, 3, 4), -2), (-3, (4, 2, 3), -4)]
)
def test_a_batch_that_may_be_split_already(axis: int, shape: tuple[int, ...], other: int) -> None:
    x = np.arange(24, dtype=np.float32).reshape(shape)
    message = (
        f"treduce: microbatches=4 of the 4 rows along axis {axis} have one row each (batch is "
        f"float32[{','.join(map(str, shape))}]); if the axis has microbatches already, leave out microbatches=4; if "
        f"one row each is right, jnp.expand_dims(leaf, {other}) for each leaf instead of microbatches=4 silences this "
        "warning"
    )
    with pytest.warns(UserWarning, match=rf"^{re.escape(__file__)}:\d+: {re.escape(message)}$"):
        found = treduce(lambda mb: mb, x, operation=Concat(), axis=axis, microbatches=4)
    as_told = treduce(lambda mb: mb, jnp.expand_dims(x, other), operation=Concat(), axis=axis)
    np.testing.assert_array_equal(as_told, found)


@pytest.mark.parametrize(
    "shapes",
    [[(4, 9)], [(4, 2, 3), (4,)], [(8, 2, 3)], [(4, 9), (4, 9)]],
    ids=["one sequence each", "a label for each row", "two rows each", "sequences with targets"],
)
def test_rows_that_are_rows(shapes: list[tuple[int, ...]]) -> None:
    treduce(lambda mb: mb, [np.ones(shape) for shape in shapes], operation=Add, microbatches=4)  # a warning fails


def of_tokens(microbatch: Any) -> jax.Array:
    rows, _ = microbatch["x"].shape
    return jnp.sum(microbatch["x"]) / rows


@pytest.mark.parametrize(
    ("shape", "count", "note"),
    [
        (
            (6, 3),
            None,
            "jaxpp: treduce took the 6 entries along axis 0 of the batch for microbatches, so its function got the "
            "microbatch['x'] as float32[3]; if they are rows, give treduce microbatches=N",
        ),
        (
            (6, 2, 3),
            2,
            "jaxpp: treduce split axis 0 of the batch into 2 microbatches, so its function got the microbatch['x'] as "
            "float32[3,2,3]; if the axis has microbatches already, leave out microbatches=2",
        ),
    ],
)
def test_a_function_that_expects_another_batch(shape: tuple[int, ...], count: int | None, note: str) -> None:
    with pytest.raises(ValueError, match="values to unpack") as caught:
        treduce(of_tokens, {"x": jnp.ones(shape)}, operation=Add, microbatches=count)
    assert note in caught.value.__notes__


@pytest.mark.parametrize(
    "fails", [lambda microbatch: bool(microbatch["x"].sum()), lambda _: {}["x"], lambda _: treduce(of_tokens, {})]
)
def test_an_error_that_is_not_of_a_shape_has_no_such_note(fails: Callable[[Any], Any]) -> None:
    with pytest.raises((jax.errors.JAXTypeError, KeyError, ValueError, TypeError, jax.errors.JAXIndexError)) as caught:
        treduce(fails, {"x": jnp.ones((6, 3), int)}, operation=Add)
    assert not [note for note in getattr(caught.value, "__notes__", ()) if note.startswith("jaxpp")]
