// RUN: jaxpp-opt %s --split-input-file -p infer-placement | filecheck %s

// Clipping by the global norm. Each mesh sums up the squares of its own gradient, and only that scalar crosses: the last
// mesh, which begins the next step last, adds the two and takes the root. The factor crosses back as a scalar too, before
// mesh 0 updates its weight, and is made as big as a gradient where it is used.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 0>}, %[[W1:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 1>}, %[[X:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<8xf32> {jaxpp.meshes = array<i64: 0>}, tensor<8xf32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[W1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[X]], %[[B1_0]]#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[SUM0:.*]] = call @after_0(%[[B0_0]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[SUM1:.*]] = call @after_1(%[[B1_0]]#1) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[NORM:.*]] = call @after_1_level_1(%[[SUM0]], %[[SUM1]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[NEW1:.*]] = call @after_1_level_2(%[[NORM]], %[[B1_0]]#1, %[[W1]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[NEW0:.*]] = call @after_0_level_1(%[[NORM]], %[[B0_0]], %[[W0]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[NEW0]], %[[NEW1]]
// CHECK-LABEL: func.func private @after_0(
// CHECK-SAME:      %[[A:.*]]: tensor<8xf32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[A]]
// CHECK-NEXT:    %[[REDUCE:.*]] = stablehlo.reduce(%[[MUL]] init: %[[C0]]) applies stablehlo.add across dimensions = [0]
// CHECK-NEXT:    return %[[REDUCE]]
// CHECK-LABEL: func.func private @after_1(
// CHECK-SAME:      %[[A:.*]]: tensor<8xf32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[A]]
// CHECK-NEXT:    %[[REDUCE:.*]] = stablehlo.reduce(%[[MUL]] init: %[[C0]]) applies stablehlo.add across dimensions = [0]
// CHECK-NEXT:    return %[[REDUCE]]
// CHECK-LABEL: func.func private @after_1_level_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    %[[RSQRT:.*]] = stablehlo.rsqrt %[[ADD]]
// CHECK-NEXT:    return %[[RSQRT]]
// CHECK-LABEL: func.func private @after_1_level_2(
// CHECK-LABEL: func.func private @after_0_level_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<8xf32>, %[[C:.*]]: tensor<8xf32>)
// CHECK-SAME:      -> tensor<8xf32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[BROADCAST:.*]] = stablehlo.broadcast_in_dim %[[A]], dims = []
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[BROADCAST]]
// CHECK-NEXT:    %[[SUB:.*]] = stablehlo.subtract %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[SUB]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<8xf32>, %w1: tensor<8xf32>, %x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
    %3 = call @backward_0(%x, %2#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %square0 = stablehlo.multiply %3, %3 : tensor<8xf32>
    %sum0 = stablehlo.reduce(%square0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %square1 = stablehlo.multiply %2#1, %2#1 : tensor<8xf32>
    %sum1 = stablehlo.reduce(%square1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %total = stablehlo.add %sum0, %sum1 : tensor<f32>
    %factor = stablehlo.rsqrt %total : tensor<f32>
    %factors = stablehlo.broadcast_in_dim %factor, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %4 = stablehlo.multiply %3, %factors : tensor<8xf32>
    %5 = stablehlo.subtract %w0, %4 : tensor<8xf32>
    %6 = stablehlo.multiply %2#1, %factors : tensor<8xf32>
    %7 = stablehlo.subtract %w1, %6 : tensor<8xf32>
    return %5, %7 : tensor<8xf32>, tensor<8xf32>
  }
  func.func private @forward_0(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  func.func private @backward_1(%a: tensor<8xf32>, %b: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<8xf32>
    return %0, %b : tensor<8xf32>, tensor<8xf32>
  }
  func.func private @backward_0(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
