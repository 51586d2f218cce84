"""The FLOPs of modules as JAX writes them."""

# pyright: reportUnknownLambdaType=false

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from jaxpp._compat import make_context, own_copy
from jaxpp.ir.flops import matrix_flops, products_of

X, WS, SQUARE = (np.ones(shape, np.float32) for shape in ((8, 32), (10, 32, 32), (8, 8)))
LAYER = 2 * 8 * 32 * 32


def layers(ws: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]


def shard_mapped(x: Any) -> Any:
    """Over four shards, each on two devices that do the same."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
    return jax.shard_map(lambda x: x @ x.T @ x, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "a batched product": (lambda x: jnp.einsum("bij,bjk->bik", x, x), (WS,), 10 * 2 * 32**3),
    "a scan": (layers, (WS, X), 10 * LAYER),
    "its gradient": (jax.grad(lambda *args: layers(*args).sum(), (0, 1)), (WS, X), 3 * 10 * LAYER),
    "a scan in a scan": (
        lambda ws, x: jax.lax.scan(lambda x, _: (layers(ws, x), None), x, None, 3)[0],
        (WS, X),
        30 * LAYER,
    ),
    "a loop": (lambda x: jax.lax.fori_loop(2, 9, lambda _, x: x @ x, x), (SQUARE,), 7 * 2 * 8**3),
    "a loop of unknown length": (lambda n, x: jax.lax.fori_loop(0, n, lambda _, x: x @ x, x), (3, SQUARE), 2 * 8**3),
    "a condition": (lambda p, x: jax.lax.cond(p, lambda x: x @ x @ x, jnp.tanh, x), (True, SQUARE), 2 * 2 * 8**3),
    "a convolution": (
        lambda x, kernel: jax.lax.conv(x, kernel, (1, 1), "SAME"),
        (np.ones((2, 3, 8, 8), np.float32), np.ones((5, 3, 3, 3), np.float32)),
        2 * (2 * 5 * 8 * 8) * (3 * 3 * 3),
    ),
    "a shard_map": (shard_mapped, (X,), 4 * 2 * (2 * 2 * 2 * 32)),
    "no product": (jnp.tanh, (X,), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_flops(name: str) -> None:
    function, arguments, expected = CASES[name]
    buffer = io.BytesIO()
    lowered: Any = jax.jit(function).lower(*arguments).compiler_ir()
    lowered.operation.write_bytecode(buffer)
    assert matrix_flops(buffer.getvalue()) == expected


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "devices"),
    [
        ("{}, {}", "{}, {}", "{}, {}", 1),
        ('{"a"}, {}', "{}, {}", '{"a"}, {}', 4),
        ('{"a"}, {}', '{}, {"b"}', '{"a"}, {"b"}', 8),
        ('{}, {"a"}', "{}, {}", "{}, {}", 4),  # the contracted dimension
        ('{"a"}, {}', '{}, {"a"}', '{"a"}, {}', 4),  # what is gathered first: an axis counts once
        ('{"a":(1)2}, {}', '{}, {"a":(2)2}', '{"a":(1)2}, {"a":(2)2}', 4),
        ('{"a":(1)2}, {}', '{}, {"a"}', '{"a":(1)2}, {}', 4),
    ],
)
def test_what_each_device_multiplies(lhs: str, rhs: str, result: str, devices: int) -> None:
    module = f"""
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      func.func @main(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{lhs}]>}},
                      %b: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{rhs}]>}}) -> tensor<8x8xf32> {{
        %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
          {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{result}]>]>}}
          : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
        return %c : tensor<8x8xf32>
      }}"""
    whole = 2 * 8**3
    with make_context():
        parsed = ir.Module.parse(module)
        assert products_of(parsed) == {"f32": whole}
        assert products_of(parsed, per_device=True) == {"f32": whole // devices}


def test_each_device_runs_the_body_of_a_shard_map_once() -> None:
    lowered: Any = jax.jit(shard_mapped).lower(X).compiler_ir()
    module = own_copy(lowered)
    with module.context:
        assert products_of(module, per_device=True) == {"f32": 2 * (2 * 2 * 2 * 32)}
