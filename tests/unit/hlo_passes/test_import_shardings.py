"""Shardings of GSPMD: their axes, and the shards that XLA makes of both forms."""

import random
from math import prod
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp.hlo_passes import run_passes
from jaxpp.hlo_passes.shardy.import_shardings import ImportShardings
from jaxpp.hlo_passes.shardy.tiles import TilesError, axes_of, axes_over, bounds_of, check_chain, read_tiles

MODULE = """
module @gspmd attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(
      %x: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
      %w: tensor<16x8xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
      -> (tensor<8x8xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"},
          tensor<8xf32> {mhlo.sharding = "{devices=[4,2]<=[2,2,2]T(2,0,1) last_tile_dim_replicate}"}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{devices=[8,1]<=[2,4]T(1,0)}"}
      : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.tanh %1 : tensor<8x8xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [1]
      : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    return %2, %3 : tensor<8x8xf32>, tensor<8xf32>
  }
}
"""


def drawn(generator: random.Random) -> tuple[str, np.ndarray]:
    """A sharding of a matrix as text, and the device of each copy of each tile."""
    sizes = [generator.choice((1, 2, 3, 4)) for _ in range(generator.randint(1, 4))]
    order = generator.sample(range(len(sizes)), len(sizes))
    devices = prod(sizes)
    rows = generator.choice([n for n in range(1, devices + 1) if devices % n == 0])
    columns = generator.choice([n for n in range(1, devices // rows + 1) if devices // rows % n == 0])
    tiles = [rows, columns, devices // rows // columns]
    numbers = np.arange(devices).reshape(sizes).transpose(order).reshape(tiles)
    lists = [",".join(map(str, each)) for each in (tiles, sizes, order)]
    return "{{devices=[{}]<=[{}]T({}) last_tile_dim_replicate}}".format(*lists), numbers


def test_each_device_has_its_tile() -> None:
    generator = random.Random(0)
    assert sum(has_its_tiles(*drawn(generator)) for _ in range(300)) > 200


def has_its_tiles(text: str, numbers: np.ndarray) -> bool:
    """Checks the tile of each device; returns False for a sharding that no mesh has."""
    try:
        tiles = read_tiles(text, 2, numbers.size)
        bounds = bounds_of(tiles) | {1, numbers.size}
        check_chain(bounds)
    except TilesError:
        return False
    axes = axes_of(bounds)
    assert prod(high // low for low, high in axes.values()) == numbers.size
    for row, column, copy in np.ndindex(numbers.shape):
        device = int(numbers[row, column, copy])
        found: list[int] = []
        for factors in tiles:
            index = 0
            for axis in axes_over(factors, axes):
                low, high = axes[axis]
                index = index * (high // low) + device % high // low
            found.append(index)
        assert found == [row, column], text
    return True


def run(text: str, arguments: list[jax.Array], shardings: list[NamedSharding]) -> list[jax.Array]:
    """The results of a module on the first eight devices."""
    executable = _compat.compile_program(text.encode(), jax.devices()[:8], {})
    shapes = zip([(8, 8), (8,)], shardings, strict=True)
    avals = [_compat.abstract_value(shape, np.float32, sharding) for shape, sharding in shapes]
    handlers: list[Any] = [_compat.result_handler(aval, each) for aval, each in zip(avals, shardings, strict=True)]
    return list(executable.execute_sharded(arguments).consume_with_handlers(handlers))


def test_xla_makes_the_same_shards() -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), ("a", "b", "c"))
    normal = np.random.default_rng(0).normal
    x, w = (normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))
    inputs, outputs = (
        [NamedSharding(mesh, PartitionSpec(*each)) for each in specs]
        for specs in ((["a"], [None, ("b", "c")]), (["a", ("b", "c")], [("c", "a")]))
    )
    arguments = [jax.device_put(each, sharding) for each, sharding in zip((x, w), inputs, strict=True)]
    with _compat.make_context() as context:
        module = ir.Module.parse(MODULE, context)
        run_passes(module, [ImportShardings()])
        imported = str(module)
    assert "mhlo.sharding" not in imported
    expected = np.tanh(x @ w)
    wanted = (expected, expected.sum(1))
    for one, other, whole in zip(*(run(text, arguments, outputs) for text in (MODULE, imported)), wanted, strict=True):
        for theirs, ours in zip(one.addressable_shards, other.addressable_shards, strict=True):
            assert (theirs.device, theirs.index) == (ours.device, ours.index)
            np.testing.assert_allclose(theirs.data, ours.data, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(ours.data, whole[ours.index], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_module_without_shardings_is_left_alone(devices: int) -> None:
    text = (
        f"module attributes {{mhlo.num_partitions = {devices} : i32}} {{\n"
        "  func.func public @main(%x: tensor<f32>) -> tensor<f32> {\n    return %x : tensor<f32>\n  }\n}\n"
    )
    with _compat.make_context() as context:
        module = ir.Module.parse(text, context)
        before = str(module)
        run_passes(module, [ImportShardings()])
        assert str(module) == before


def test_on_one_device_nothing_is_split() -> None:
    text = """
    module @m attributes {mhlo.num_partitions = 1 : i32} {
      func.func public @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[1,1]<=[1] last_tile_dim_replicate}"})
          -> tensor<4xf32> {
        %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{replicated}"} : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>
      }
    }
    """
    with _compat.make_context() as context:
        module = ir.Module.parse(text, context)
        run_passes(module, [ImportShardings()])
        executable = _compat.compile_program(str(module).encode(), jax.devices()[:1], {})
    assert "sdy.sharding" in str(module)
    assert executable.execute_sharded([jax.numpy.ones(4)]).disassemble_into_single_device_arrays()[0][0].shape == (4,)
