// RUN: jaxpp-opt %s --split-input-file -p infer-placement | filecheck %s

// The operands of the addition are equally big, and the product is on mesh 0; but its result is needed on mesh 1. So it
// runs there, and the product alone is sent.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[F0:.*]] = call @forward_0(
// CHECK-NEXT:    call @forward_1(
// CHECK-NEXT:    %[[PRODUCT:.*]] = call @after_0(%[[F0]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[SUM:.*]] = call @after_1(%[[PRODUCT]], %{{.*}}) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[SUM]]
// CHECK-LABEL: func.func private @after_0(
// CHECK:         stablehlo.dot_general
// CHECK-LABEL: func.func private @after_1(
// CHECK:         stablehlo.add
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<160x160xf32>, %w: tensor<160x160xf32>) -> (tensor<160x160xf32> {jaxpp.feeds = 1 : i64}) {
    %0 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<160x160xf32>) -> tensor<160x160xf32>
    %1 = call @forward_1(%w) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<160x160xf32>) -> tensor<160x160xf32>
    %2 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [0] : (tensor<160x160xf32>, tensor<160x160xf32>) -> tensor<160x160xf32>
    %3 = stablehlo.add %2, %w : tensor<160x160xf32>
    return %3 : tensor<160x160xf32>
  }
  func.func private @forward_0(%a: tensor<160x160xf32>) -> tensor<160x160xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<160x160xf32>
    return %0 : tensor<160x160xf32>
  }
  func.func private @forward_1(%a: tensor<160x160xf32>) -> tensor<160x160xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<160x160xf32>
    return %0 : tensor<160x160xf32>
  }
}

// -----

// A product of two vectors is big: the vectors are sent to the mesh that uses it.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[F0:.*]]:2 = call @forward_0(
// CHECK-NEXT:    %[[F1:.*]] = call @forward_1(
// CHECK-NEXT:    %[[ALL:.*]] = call @after_1(%[[F0]]#0, %[[F0]]#1, %[[F1]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[ALL]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<160xf32>, %y: tensor<160xf32>, %z: tensor<160x160xf32>) -> tensor<160x160xf32> {
    %0:2 = call @forward_0(%x, %y) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<160xf32>, tensor<160xf32>) -> (tensor<160xf32>, tensor<160xf32>)
    %1 = call @forward_1(%z) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<160x160xf32>) -> tensor<160x160xf32>
    %2 = stablehlo.dot_general %0#0, %0#1, contracting_dims = [] x [] : (tensor<160xf32>, tensor<160xf32>) -> tensor<160x160xf32>
    %3 = stablehlo.dot_general %2, %1, contracting_dims = [1] x [0] : (tensor<160x160xf32>, tensor<160x160xf32>) -> tensor<160x160xf32>
    return %3 : tensor<160x160xf32>
  }
  func.func private @forward_0(%a: tensor<160xf32>, %b: tensor<160xf32>) -> (tensor<160xf32>, tensor<160xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<160xf32>
    return %0, %b : tensor<160xf32>, tensor<160xf32>
  }
  func.func private @forward_1(%a: tensor<160x160xf32>) -> tensor<160x160xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<160x160xf32>
    return %0 : tensor<160x160xf32>
  }
}
