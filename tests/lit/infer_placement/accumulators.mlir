// RUN: jaxpp-opt %s --split-input-file -p infer-placement | filecheck %s

// The two sums start from one zero. Each is added to in place, so each has a buffer of its own, made on its mesh before
// the tasks.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 0>}, %[[Y:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 1>})
// CHECK-SAME:      -> (tensor<8xf32> {jaxpp.meshes = array<i64: 0>}, tensor<8xf32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[BEFORE_0:.*]] = call @before_0() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[BEFORE_1:.*]] = call @before_1() {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[BEFORE_0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[F0_0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[BEFORE_1]], %[[Y]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[F1_1:.*]] = call @forward_1(%[[F1_0]], %[[Y]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[F0_1]], %[[F1_1]]
// CHECK-LABEL: func.func private @before_0(
// CHECK-SAME:      ) -> tensor<8xf32> attributes {jaxpp.kind = "before"}
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[BROADCAST:.*]] = stablehlo.broadcast_in_dim %[[C0]], dims = []
// CHECK-NEXT:    return %[[BROADCAST]]
// CHECK-LABEL: func.func private @before_1(
// CHECK-SAME:      ) -> tensor<8xf32> attributes {jaxpp.kind = "before"}
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[BROADCAST:.*]] = stablehlo.broadcast_in_dim %[[C0]], dims = []
// CHECK-NEXT:    return %[[BROADCAST]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %1 = call @forward_0(%zeros, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %2 = call @forward_0(%1, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %3 = call @forward_1(%zeros, %y) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %4 = call @forward_1(%3, %y) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    return %2, %4 : tensor<8xf32>, tensor<8xf32>
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

// -----

// The same with two sums on one mesh, which start from one constant: two buffers.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<8xf32> {jaxpp.meshes = array<i64: 0>}, tensor<8xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK-NEXT:    %[[BEFORE_0:.*]]:2 = call @before_0() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[F0_0:.*]]:2 = call @forward_0(%[[BEFORE_0]]#0, %[[BEFORE_0]]#1, %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]]:2 = call @forward_0(%[[F0_0]]#0, %[[F0_0]]#1, %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[F0_1]]#0, %[[F0_1]]#1
// CHECK-LABEL: func.func private @before_0(
// CHECK-SAME:      ) -> (tensor<8xf32>, tensor<8xf32>) attributes {jaxpp.kind = "before"}
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    return %[[C0]], %[[C0]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
    %zeros = stablehlo.constant dense<0.0> : tensor<8xf32>
    %1:2 = call @forward_0(%zeros, %zeros, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
    %2:2 = call @forward_0(%1#0, %1#1, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
    return %2#0, %2#1 : tensor<8xf32>, tensor<8xf32>
  }
  func.func private @forward_0(%a: tensor<8xf32>, %b: tensor<8xf32>, %c: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %c : tensor<8xf32>
    %1 = stablehlo.subtract %b, %c : tensor<8xf32>
    return %0, %1 : tensor<8xf32>, tensor<8xf32>
  }
}

// -----

// What every microbatch takes in the same place is no accumulator: a constant stays one, as does the microbatch index.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<8xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[C1_2:.*]] = stablehlo.constant dense<1.000000e+00>
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]], %[[C1_2]], %[[C0]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[F0_0]], %[[C1_2]], %[[C1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[F0_1]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %i0 = stablehlo.constant dense<0> : tensor<i32>
    %i1 = stablehlo.constant dense<1> : tensor<i32>
    %ones = stablehlo.constant dense<1.0> : tensor<8xf32>
    %1 = call @forward_0(%x, %ones, %i0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>, tensor<i32>) -> tensor<8xf32>
    %2 = call @forward_0(%1, %ones, %i1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<8xf32>, tensor<i32>) -> tensor<8xf32>
    return %2 : tensor<8xf32>
  }
  func.func private @forward_0(%a: tensor<8xf32>, %b: tensor<8xf32>, %c: tensor<i32>) -> tensor<8xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %b : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
