// RUN: jaxpp-opt %s --split-input-file -p plan-buffers | filecheck %s

// A result that is sharded in another way has another buffer on each device: only @forward_0 can reuse that of its
// argument.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<2x4xf32> {jax.buffer_donor = true, jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-SAME:      -> (tensor<2x4xf32> {jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1_1:.*]] = call @forward_0_1(%[[F0_0]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[F0_1_1]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>, tf.aliasing_output = 0 : i32})
// CHECK-SAME:      -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[A]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @forward_0_1(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-SAME:      -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[A]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @mesh_0(%x: tensor<2x4xf32> {jaxpp.number = 0 : i64, jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %2 = call @forward_0_1(%1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    return %2 : tensor<2x4xf32>
  }
  func.func private @forward_0(%a: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %a : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
  func.func private @forward_0_1(%a: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %a : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}
