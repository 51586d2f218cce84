// RUN: not jaxpp-opt %s -p verify-gradients 2>&1 | filecheck %s

// Each device sums its own rows, and no collective adds these sums.

// CHECK: shard_map_invalid.mlir:[[# @LINE + 7]]:{{[0-9]+}}: error: result 0 of a shard_map is each device's own sum along axis 'data', expected the sum of all devices
// CHECK-NEXT: add jax.lax.psum(x, 'data'), or name the axis in out_specs
module attributes {mhlo.num_partitions = 2 : i32} {
sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
func.func public @main(%x: tensor<8x4xf32>, %y: tensor<8x4xf32>) -> tensor<4x4xf32> {
  %g = sdy.manual_computation(%x, %y) in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"data"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
    %t = stablehlo.tanh %a : tensor<4x4xf32>
    %p = stablehlo.dot_general %t, %b, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %q = stablehlo.transpose %p, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    sdy.return %q : tensor<4x4xf32>
  } : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %g : tensor<4x4xf32>
}
}
