// RUN: jaxpp-opt %s --split-input-file -p insert-transfers | filecheck %s

// A recv has the sharding that the value has where it is made, and none for its token; so have arguments and results.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32> {jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[A]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F0_0]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    return
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      ) -> (tensor<2x4xf32> {jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-SAME:        {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>, <@mesh, []>]>}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[R]]#0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[F1_0]]
module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<2x4xf32> {jaxpp.meshes = array<i64: 0>, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
      -> (tensor<2x4xf32> {jaxpp.meshes = array<i64: 1>}) {
    %1 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %2 = call @forward_1(%1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    return %2 : tensor<2x4xf32>
  }
  func.func private @forward_0(%a: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
  func.func private @forward_1(%a: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.tanh %a : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}
