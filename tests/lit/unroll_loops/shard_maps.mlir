// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=dualpipe meshes=2},unroll-loops" | filecheck %s

// A product, an all-to-all with the mark of a unit behind it, and what is light become a shard_map each. What one hands to
// another has an entry for each device. A constant is made where it is used. A result that is a mark or an argument has a
// shard_map of its own.

module attributes {mhlo.num_partitions = 2 : i32} {
sdy.mesh @mesh = <["mpmd"=1, "a"=2]>

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[COSINE:.*]] = sdy.manual_computation(%[[X:.*]]) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}, {}]>] manual_axes={"mpmd", "a"} (%[[L:.*]]: tensor<2x4xf32>) {
// CHECK-NEXT:      %[[C:.*]] = stablehlo.cosine %[[L]]
// CHECK-NEXT:      %[[C1:.*]] = stablehlo.reshape %[[C]] : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
// CHECK-NEXT:      sdy.return %[[C1]]
// CHECK-NEXT:    } : (tensor<4x4xf32>) -> tensor<2x2x4xf32>
// CHECK-NEXT:    %[[DOT:.*]] = sdy.manual_computation(%[[X]], %{{.*}}) in_shardings=[<@mesh, [{"a"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"a"}, {}, {}]>]
// CHECK-NEXT:      stablehlo.dot_general
// CHECK-NEXT:      stablehlo.reshape
// CHECK-NEXT:      sdy.return
// CHECK-NEXT:    }
// CHECK-NEXT:    %[[SENT:.*]] = sdy.manual_computation(%[[DOT]]) in_shardings=[<@mesh, [{"a"}, {}, {}]>] out_shardings=[<@mesh, [{"a"}, {}, {}]>]
// CHECK-NEXT:      stablehlo.reshape %{{.*}} : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:      "stablehlo.all_to_all"
// CHECK-NEXT:      stablehlo.reshape %{{.*}} : (tensor<4x2xf32>) -> tensor<1x4x2xf32>
// CHECK-NEXT:      sdy.return
// CHECK-NEXT:    } : (tensor<2x2x4xf32>) -> tensor<2x4x2xf32>
// CHECK-NEXT:    %[[MARK:.*]] = stablehlo.optimization_barrier {jaxpp.boundary} %[[SENT]] : tensor<2x4x2xf32>
// CHECK-NEXT:    %[[COSINE_MARK:.*]] = stablehlo.optimization_barrier {jaxpp.boundary} %[[COSINE]] : tensor<2x2x4xf32>
// CHECK-NEXT:    %[[Y:.*]] = sdy.manual_computation(%[[MARK]]) in_shardings=[<@mesh, [{"a"}, {}, {}]>] out_shardings=[<@mesh, [{}, {"a"}]>]
// CHECK-NEXT:      stablehlo.reshape
// CHECK-NEXT:      stablehlo.constant
// CHECK-NEXT:      stablehlo.broadcast_in_dim
// CHECK-NEXT:      stablehlo.add
// CHECK-NEXT:      sdy.return
// CHECK-NEXT:    } : (tensor<2x4x2xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:    %{{.*}} = sdy.manual_computation(%[[COSINE_MARK]]) in_shardings=[<@mesh, [{"a"}, {}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>]
// CHECK-NEXT:      stablehlo.reshape
// CHECK-NEXT:      sdy.return
// CHECK-NEXT:    }
// CHECK-NEXT:    %{{.*}} = sdy.manual_computation(%[[X]]) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>]
// CHECK-NOT:     jaxpp.boundary{{[,}]}}
// CHECK:         stablehlo.return %{{.*}}, %[[Y]]
func.func public @main(%w: tensor<4x4xf32>, %a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %x = %a) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 4 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<4> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1:3 = sdy.manual_computation(%x, %w) in_shardings=[<@mesh, [{"a"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {"a"}]>, <@mesh, [{"a"}, {}]>, <@mesh, [{"a"}, {}]>] manual_axes={"mpmd", "a"} (%l: tensor<2x4xf32>, %v: tensor<4x4xf32>) {
      %c = stablehlo.constant dense<5.0e-01> : tensor<f32>
      %half = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4x2xf32>
      %2 = stablehlo.dot_general %l, %v, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %3 = "stablehlo.all_to_all"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x4xf32>) -> tensor<4x2xf32>
      %4 = stablehlo.optimization_barrier {jaxpp.boundary} %3 : tensor<4x2xf32>
      %5 = stablehlo.add %4, %half : tensor<4x2xf32>
      %cosine = stablehlo.cosine %l : tensor<2x4xf32>
      %6 = stablehlo.optimization_barrier {jaxpp.boundary} %cosine : tensor<2x4xf32>
      sdy.return %5, %6, %l : tensor<4x2xf32>, tensor<2x4xf32>, tensor<2x4xf32>
    } : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %1#0 : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}
}
