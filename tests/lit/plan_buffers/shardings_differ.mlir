// RUN: jaxpp-opt %s --split-input-file -p plan-buffers | filecheck %s

// Functions that are equal but for the sharding of their arguments are two programs for XLA.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<2x4xf32> {{{.*}}}, %[[Y:.*]]: tensor<2x4xf32> {{{.*}}})
// CHECK-SAME:      attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[Y]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[F0_0]], %[[F1_0]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-SAME:      -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:    return %[[NEGATE]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
// CHECK-SAME:      -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:    return %[[NEGATE]]
module attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @mesh_0(%x: tensor<2x4xf32> {jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<2x4xf32> {jaxpp.number = 1 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
      -> (tensor<2x4xf32> {jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, tensor<2x4xf32> {jaxpp.number = 1 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %2 = call @forward_1(%y) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    return %1, %2 : tensor<2x4xf32>, tensor<2x4xf32>
  }
  func.func private @forward_0(%a: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
  func.func private @forward_1(%a: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}
