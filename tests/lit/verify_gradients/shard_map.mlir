// RUN: jaxpp-opt %s -p verify-gradients | filecheck %s

// Each device sums its own rows, and then all devices add their sums.

// CHECK: all_reduce
module attributes {mhlo.num_partitions = 2 : i32} {
sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
func.func public @main(%x: tensor<8x4xf32>, %y: tensor<8x4xf32>) -> tensor<4x4xf32> {
  %g = sdy.manual_computation(%x, %y) in_shardings=[<@mesh, [{"data"}, {}]>, <@mesh, [{"data"}, {}]>] out_shardings=[<@mesh, [{}, {}]>] manual_axes={"data"} (%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) {
    %t = stablehlo.tanh %a : tensor<4x4xf32>
    %p = stablehlo.dot_general %t, %b, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %q = stablehlo.transpose %p, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %s = "stablehlo.all_reduce"(%q) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %n = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %n : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    sdy.return %s : tensor<4x4xf32>
  } : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %g : tensor<4x4xf32>
}
}
