// RUN: jaxpp-opt %s --split-input-file -p infer-placement | filecheck %s

// Before the loop a matrix is multiplied by itself: too big to do on both meshes that use it. It runs once, on mesh 0,
// whose result both take.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[M:.*]]: tensor<128x128xf32> {jaxpp.meshes = array<i64: 0{{.*}}>}, %[[X:.*]]: tensor<128x128xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<128x128xf32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[BEFORE_0:.*]] = call @before_0(%[[M]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[BEFORE_0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[BEFORE_0]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[F1_0]]
// CHECK-LABEL: func.func private @before_0(
// CHECK-SAME:      %[[A:.*]]: tensor<128x128xf32>) -> tensor<128x128xf32> attributes {jaxpp.kind = "before"}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[A]], contracting_dims = [1] x [0]
// CHECK-NEXT:    return %[[DOT]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%m: tensor<128x128xf32>, %x: tensor<128x128xf32>) -> tensor<128x128xf32> {
    %0 = stablehlo.dot_general %m, %m, contracting_dims = [1] x [0] : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    %1 = call @forward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    %2 = call @forward_1(%0, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    return %2 : tensor<128x128xf32>
  }
  func.func private @forward_0(%a: tensor<128x128xf32>, %b: tensor<128x128xf32>) -> tensor<128x128xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %b : tensor<128x128xf32>
    return %0 : tensor<128x128xf32>
  }
  func.func private @forward_1(%a: tensor<128x128xf32>, %b: tensor<128x128xf32>) -> tensor<128x128xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.add %a, %b : tensor<128x128xf32>
    return %0 : tensor<128x128xf32>
  }
}

// -----

// A small one is done on both.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[M:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 0, 1>}, %[[X:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<8xf32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[BEFORE_0:.*]] = call @before_0(%[[M]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[BEFORE_1:.*]] = call @before_1(%[[M]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[BEFORE_0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[BEFORE_1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[F1_0]]
// CHECK-LABEL: func.func private @before_0(
// CHECK-SAME:      %[[A:.*]]: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "before"}
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[A]]
// CHECK-NEXT:    return %[[EXPONENTIAL]]
// CHECK-LABEL: func.func private @before_1(
// CHECK-SAME:      %[[A:.*]]: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "before"}
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[A]]
// CHECK-NEXT:    return %[[EXPONENTIAL]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%m: tensor<8xf32>, %x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.exponential %m : tensor<8xf32>
    %1 = call @forward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %2 = call @forward_1(%0, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    return %2 : tensor<8xf32>
  }
  func.func private @forward_0(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %b : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  func.func private @forward_1(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.add %a, %b : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
