"""Which results come back as arguments."""

# pyright: reportUnknownLambdaType=false

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpp.lowering.feeds import match_state

W = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}
LOSS = jnp.zeros(())
STATE = {"params": W, "mu": W, "nu": W, "step": jnp.zeros((), jnp.int32)}

CASES: dict[str, tuple[tuple[Any, ...], tuple[int, ...], Any, dict[int, int]]] = {
    # arguments, donated ones, results, {result leaf: argument leaf}
    "state among others": ((LOSS, STATE), (1,), (STATE, LOSS), {k: k + 1 for k in range(7)}),
    "the result itself": ((STATE,), (), STATE, {k: k for k in range(7)}),
    "order": ((W, STATE), (), (LOSS, STATE, W), {1 + k: 2 + k for k in range(7)} | {8: 0, 9: 1}),
    "each argument once": ((W,), (), (W, W), {0: 0, 1: 1}),
    "donated first": ((W, W), (1,), (LOSS, W), {1: 2, 2: 3}),
    "nested deeper than the arguments": ((W, STATE), (), ((W, STATE), LOSS), {k: k for k in range(9)}),
    "the whole before its parts": ((STATE,), (), ((W, LOSS), STATE), {3 + k: k for k in range(7)}),
    "a loss is no state": ((LOSS, W), (), (LOSS, W), {1: 1, 2: 2}),
    "nor a donated leaf of one": ((STATE,), (0,), (LOSS, STATE["step"]), {}),
    "one donated array is": ((W["w"], W["b"]), (0,), (LOSS, W["w"], W["b"]), {1: 0}),
    "other shape": (({"w": LOSS, "b": LOSS},), (0,), W, {}),
    "other dtype": ((jax.tree.map(lambda x: x.astype(jnp.bfloat16), W),), (0,), W, {}),
    "other structure": ((tuple(W.values()),), (0,), W, {}),
    "nothing": ((), (), (), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_match(name: str) -> None:
    args, donated_args, results, expected = CASES[name]
    in_leaves, in_tree = jax.tree.flatten((args, {}))
    out_leaves, out_tree = jax.tree.flatten(results)
    donated = [k in donated_args for k, arg in enumerate(args) for _ in jax.tree.leaves(arg)]
    assert match_state(in_tree, in_leaves, donated, out_tree, out_leaves) == expected
