"""Pieces: whatever a value is put together from, its pieces and its rows say the same as the value."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jaxlib.mlir import ir

from jaxpp._compat import make_context
from jaxpp.hlo_passes.loop.inline_calls import InlineCalls
from jaxpp.hlo_passes.loop.pieces import Evaluator
from jaxpp.ir.build import erase_dead
from jaxpp.ir.functions import body_of, main_of, operations, terminator
from jaxpp.ir.ops import shape_of
from jaxpp.ir.rows import concatenation
from jaxpp.validation.cpu import Runner

ROWS, WIDTH = 4, 3
Stacks = list[jax.Array]
Change = Callable[[Stacks], jax.Array]


def rows(count: int = ROWS) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.integers(0, ROWS - 1), min_size=count, max_size=count).map(np.array)


def scattered(stacks: Stacks, where: np.ndarray) -> jax.Array:
    return jnp.zeros((ROWS, WIDTH)).at[where].add(stacks[-1])


def padded(stack: jax.Array, low: int) -> jax.Array:
    return lax.pad(stack[:2], jnp.float32(0), [(low, 2 - low, 0), (0, 0, 0)])


def windows(stacks: Stacks, row: int) -> jax.Array:
    """Two windows of two rows, where a gather clamps them."""
    numbers = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0,))
    found = lax.gather(stacks[-1], np.array([[row], [1]]), numbers, (2, WIDTH), mode="clip")
    return found.reshape(ROWS, WIDTH)


# Each makes another stack of the last ones.
CHANGES: dict[str, st.SearchStrategy[Change]] = {
    "gather": rows().map(lambda where: lambda stacks: stacks[-1][where]),
    "gather by stage": rows().map(
        lambda where: (
            lambda stacks: stacks[-1][where.reshape(2, 2)].sum(-1, keepdims=True).repeat(WIDTH, -1).reshape(ROWS, WIDTH)
        )
    ),
    "take": rows().map(lambda where: lambda stacks: jnp.take(stacks[-1], where, axis=0)),
    "scatter": rows().map(lambda where: lambda stacks: scattered(stacks, where)),
    "add at": rows().map(lambda where: lambda stacks: stacks[-1].at[where].add(stacks[0])),
    "multiply at": rows(2).map(lambda where: lambda stacks: stacks[-1].at[where].multiply(stacks[0][:2])),
    "set at": st.permutations(range(ROWS)).map(
        lambda where: lambda stacks: stacks[-1].at[np.array(where[:2])].set(stacks[0][2:])
    ),
    "set one": st.integers(-ROWS, ROWS).map(lambda row: lambda stacks: stacks[-1].at[row].set(stacks[0][row])),
    "set several": st.integers(0, 2).map(lambda row: lambda stacks: stacks[-1].at[row : row + 2].set(stacks[0][:2])),
    "take one": st.integers(0, 3).map(
        lambda row: lambda stacks: stacks[-1] + jnp.take(stacks[0], row, axis=0, mode="clip")
    ),
    "take several": st.integers(-1, 5).map(lambda row: lambda stacks: windows(stacks, row)),
    "every second": st.just(lambda stacks: jnp.concatenate([stacks[-1][::2], stacks[0][1::2]])),
    "between": st.just(lambda stacks: lax.pad(stacks[-1][:2], jnp.float32(0), [(1, 0, 1), (0, 0, 0)])),
    "pad": st.integers(0, 2).map(lambda low: lambda stacks: padded(stacks[-1], low)),
    "update": st.integers(-1, 3).map(
        lambda row: lambda stacks: lax.dynamic_update_slice(stacks[-1], stacks[0][:2], (row, 0))
    ),
    "concatenate": st.integers(0, 4).map(lambda k: lambda stacks: jnp.concatenate([stacks[-1][k:], stacks[0][:k]])),
    "reverse": st.just(lambda stacks: stacks[-1][::-1]),
    "reshape": st.just(lambda stacks: jnp.tanh(stacks[-1].reshape(2, 2, WIDTH)).reshape(ROWS, WIDTH)),
    "add": st.just(lambda stacks: stacks[-1] + stacks[len(stacks) // 2]),
    "clamp": st.just(lambda stacks: jnp.clip(jnp.maximum(stacks[-1], stacks[0]), -0.5, 0.5)),
    "select": st.just(lambda stacks: jnp.where(stacks[-1] > 0, stacks[-1], 2 * stacks[0])),
    "within rows": st.just(lambda stacks: stacks[-1] - stacks[-1].mean(axis=1, keepdims=True)),
    "products": st.just(lambda stacks: jnp.einsum("ri,rj->rj", stacks[-1], stacks[0])),
    "cast": st.just(lambda stacks: stacks[-1].astype(jnp.bfloat16).astype(jnp.float32)),
    "biased": st.just(lambda stacks: stacks[-1] * 0.5 + jnp.arange(float(WIDTH))),
    "barrier": st.just(lambda stacks: lax.optimization_barrier((stacks[-1], stacks[0]))[0]),
}


def lowered(changes: Sequence[Change]) -> ir.Module:
    """A module that makes one stack after the other; call it in a context."""

    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        stacks = [x, y]
        for change in changes:
            stacks.append(change(stacks))
        return stacks[-1]

    argument = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    module = ir.Module.parse(str(jax.jit(step, keep_unused=True).lower(argument, argument).compiler_ir("stablehlo")))
    InlineCalls().run(module)
    return module


def read_in(module: ir.Module, bounds: Callable[[Evaluator, ir.Value], Sequence[tuple[int, int]] | None]) -> bool:
    """Replace the result of `module` by what is read of it along `bounds`; False where these are None."""
    block = body_of(main_of(module))
    end, evaluator = terminator(block), Evaluator()
    value = end.operands[0]
    found = bounds(evaluator, value)
    if found is not None:
        made = [evaluator.make(value, start, size, end) for start, size in found]
        end.operands[0] = concatenation(made, 0, ir.InsertionPoint(end))
        erase_dead(block)
    return found is not None


def of_pieces(evaluator: Evaluator, value: ir.Value) -> list[tuple[int, int]] | None:
    known = evaluator.pieces(value)
    return None if known is None else [(piece.start, piece.size) for piece in known.pieces]


def of_rows(_: Evaluator, value: ir.Value) -> list[tuple[int, int]]:
    return [(row, 1) for row in range(shape_of(value)[0])]


def of_halves(_: Evaluator, value: ir.Value) -> list[tuple[int, int]]:
    return [(0, 2), (2, 2)]


def run(runner: Runner, module: ir.Module) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(2, ROWS, WIDTH)).astype(np.float32)
    return np.asarray(runner.compile(module, "main")([runner.put(each) for each in values])[0])


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(1)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(list(CHANGES.values())), min_size=2, max_size=6),
    st.sampled_from([of_pieces, of_rows, of_halves]),
)
def test_what_is_read_in_pieces_is_the_value(runner: Runner, changes: list[Change], bounds: Any) -> None:
    with make_context(), ir.Location.unknown():
        module = lowered(changes)
        expected = run(runner, module)
        if read_in(module, bounds):
            assert module.operation.verify()
            np.testing.assert_allclose(run(runner, module), expected, rtol=1e-6, atol=1e-6)


COMMUTE: list[Callable[[jax.Array], jax.Array]] = [
    lambda stack: jnp.maximum(stack, 0) + 1,
    lambda stack: jnp.clip(stack, -1, 1),
    lambda stack: jnp.where(stack > 0, stack, 0),
    lambda stack: stack - stack.mean(axis=1, keepdims=True),
    lambda stack: jnp.einsum("ri,rj->rij", stack, stack),
    lambda stack: stack.reshape(2, 2, WIDTH).transpose(0, 2, 1),
    lambda stack: stack[::-1][np.array([3, 2, 1, 0])],
]


@pytest.mark.parametrize("change", COMMUTE)
def test_the_first_row_needs_the_first_row_only(change: Callable[[jax.Array], jax.Array]) -> None:
    with make_context(), ir.Location.unknown():
        module = lowered([lambda stacks: change(jnp.concatenate([stacks[0][:2], stacks[1][2:]]))])
        assert read_in(module, lambda evaluator, value: [(0, 1)])
        first, second = body_of(main_of(module)).arguments
        assert (len(list(first.uses)) > 0, len(list(second.uses))) == (True, 0)


@pytest.mark.parametrize("length", [1000])
def test_chains_may_be_long(length: int) -> None:
    """As long as a stage has operations, and longer than Python's stack is deep."""

    def chain(stacks: Stacks) -> jax.Array:
        value = jnp.concatenate([stacks[0][:2], stacks[1][2:]])
        for _ in range(length):
            value = lax.sin(value)
        return value

    with make_context(), ir.Location.unknown():
        module = lowered([chain])
        assert read_in(module, of_pieces)
        assert [op.name for op in operations(body_of(main_of(module)))].count("stablehlo.sine") == 2 * length
