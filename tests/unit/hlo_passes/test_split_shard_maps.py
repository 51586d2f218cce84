"""The parts of a `shard_map` compute as much as the whole."""

from jaxlib.mlir import ir

from jaxpp import _compat
from jaxpp.hlo_passes.base import run_passes
from jaxpp.hlo_passes.loop.find_microbatch_loop import FindMicrobatchLoop
from jaxpp.hlo_passes.loop.split_shard_maps import split_shard_maps
from jaxpp.ir.flops import FlopCounter
from jaxpp.ir.functions import main_of, nested
from jaxpp.ir.loop import MicrobatchLoop
from jaxpp.ir.shardings import MeshAxes

MODULE = """
module attributes {mhlo.num_partitions = 6 : i32} {
sdy.mesh @mesh = <["a"=2, "b"=3]>
func.func public @main(%w: tensor<4x4xf32>, %a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %x = %a) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{AXES}, {}]>, <@mesh, [{}, {}]>]
        out_shardings=[<@mesh, [{AXES}, {}]>] manual_axes={"a", "b"} (%l: tensor<SIZEx4xf32>, %v: tensor<4x4xf32>) {
      %square = stablehlo.dot_general %v, %v, contracting_dims = [1] x [0]
          : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %2 = stablehlo.dot_general %l, %square, contracting_dims = [1] x [0]
          : (tensor<SIZEx4xf32>, tensor<4x4xf32>) -> tensor<SIZEx4xf32>
      %3 = stablehlo.optimization_barrier {jaxpp.boundary} %2 : tensor<SIZEx4xf32>
      %4 = stablehlo.tanh %3 : tensor<SIZEx4xf32>
      sdy.return %4 : tensor<SIZEx4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %1 : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}
}
"""


def test_devices_that_do_the_same_count_once() -> None:
    """On six devices, of which those along one axis, or all, do the same: its parts are sharded over all of them."""
    for axes, size, devices in (('"a"', 2, 2), ("", 4, 1)):
        with _compat.make_context():
            module = ir.Module.parse(MODULE.replace("{AXES}", f"{{{axes}}}").replace("SIZE", str(size)))

            def flops(module: ir.Module = module) -> int:
                return FlopCounter(module, products_only=True).inside(main_of(module))

            whole = flops()
            run_passes(module, [FindMicrobatchLoop("gpipe", 1)])
            with ir.Location.unknown():
                split_shard_maps(MicrobatchLoop.of(module), MeshAxes.written_for(module))
            parts = [op for op in nested(main_of(module)) if op.name == "sdy.manual_computation"]
            assert len(parts) == 3
            assert flops() == whole == 3 * devices * 2 * 16 * (4 + size)
