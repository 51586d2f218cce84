// RUN: jaxpp-opt %s --split-input-file -p infer-placement | filecheck %s

// A step of gradient descent. The update of each weight runs where its gradient is made, on the mesh where the weight
// is. The learning rate, an argument, is needed on both and is on both; its product with a constant is computed twice
// rather than sent.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[W1:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %[[X:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[RATE:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0, 1>})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}, tensor<f32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[W1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[X]], %[[B1_0]]#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[RATE]], %[[B0_0]], %[[W0]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[AFTER_1:.*]] = call @after_1(%[[RATE]], %[[B1_0]]#1, %[[W1]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[AFTER_0]], %[[AFTER_1]]
// CHECK-LABEL: func.func private @after_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[CONSTANT:.*]] = stablehlo.constant dense<5.000000e-01>
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[CONSTANT]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[MUL]], %[[B]]
// CHECK-NEXT:    %[[SUB:.*]] = stablehlo.subtract %[[C]], %[[MUL_2]]
// CHECK-NEXT:    return %[[SUB]]
// CHECK-LABEL: func.func private @after_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[CONSTANT:.*]] = stablehlo.constant dense<5.000000e-01>
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[CONSTANT]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[MUL]], %[[B]]
// CHECK-NEXT:    %[[SUB:.*]] = stablehlo.subtract %[[C]], %[[MUL_2]]
// CHECK-NEXT:    return %[[SUB]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>, %rate: tensor<f32>)
      -> (tensor<f32>, tensor<f32>) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %3 = call @backward_0(%x, %2#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %half = stablehlo.constant dense<0.5> : tensor<f32>
    %4 = stablehlo.multiply %rate, %half : tensor<f32>
    %5 = stablehlo.multiply %4, %3 : tensor<f32>
    %6 = stablehlo.subtract %w0, %5 : tensor<f32>
    %7 = stablehlo.multiply %4, %2#1 : tensor<f32>
    %8 = stablehlo.subtract %w1, %7 : tensor<f32>
    return %6, %8 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0, %b : tensor<f32>, tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// What the tasks need of the batch is computed before them, on the mesh that needs it.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[W1:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %[[X:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[BEFORE_0:.*]] = call @before_0(%[[W0]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[BEFORE_0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[W1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[B1_0]]#0
// CHECK-LABEL: func.func private @before_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "before"}
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[A]]
// CHECK-NEXT:    return %[[EXPONENTIAL]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.exponential %w0 : tensor<f32>
    %1 = call @forward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    return %2#0 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0, %b : tensor<f32>, tensor<f32>
  }
}
