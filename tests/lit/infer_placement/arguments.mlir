// RUN: jaxpp-opt %s --split-input-file -p infer-placement | filecheck %s

// Adam's moment of a weight: no task uses it, but the update does, so it is on the mesh of that weight, before and after
// the step.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[W1:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %[[X:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[M0:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[M1:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 1>})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}, tensor<f32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[W1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[X]], %[[B1_0]]#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[M0]], %[[B0_0]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[AFTER_1:.*]] = call @after_1(%[[M1]], %[[B1_0]]#1) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[AFTER_0]], %[[AFTER_1]]
// CHECK-LABEL: func.func private @after_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @after_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>, %m0: tensor<f32>, %m1: tensor<f32>)
      -> (tensor<f32>, tensor<f32>) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %3 = call @backward_0(%x, %2#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %4 = stablehlo.add %m0, %3 : tensor<f32>
    %5 = stablehlo.add %m1, %2#1 : tensor<f32>
    return %4, %5 : tensor<f32>, tensor<f32>
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

// A step counter, and a bias correction made of it: each mesh that uses the correction computes it, and has the counter.
// The counter of the next step is needed on both, which jaxpp.feeds says: both compute it.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[W1:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %[[X:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[N:.*]]: tensor<i32> {jaxpp.meshes = array<i64: 0, 1>})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}, tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<i32> {jaxpp.feeds = 3 : i64, jaxpp.meshes = array<i64: 0, 1>})
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[W1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[X]], %[[B1_0]]#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[N]], %[[B0_0]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[AFTER_0_1:.*]] = call @after_0_1(%[[N]]) {jaxpp.meshes = array<i64: 0, 1>}
// CHECK-NEXT:    %[[AFTER_1:.*]] = call @after_1(%[[N]], %[[B1_0]]#1) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[AFTER_0]], %[[AFTER_1]], %[[AFTER_0_1]]
// CHECK-LABEL: func.func private @after_0(
// CHECK-SAME:      %[[A:.*]]: tensor<i32>, %[[B:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[C1]]
// CHECK-NEXT:    %[[CONVERT:.*]] = stablehlo.convert %[[ADD]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[CONVERT]]
// CHECK-NEXT:    return %[[MUL]]
// CHECK-LABEL: func.func private @after_0_1(
// CHECK-SAME:      %[[A:.*]]: tensor<i32>) -> tensor<i32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[C1]]
// CHECK-NEXT:    return %[[ADD]]
// CHECK-LABEL: func.func private @after_1(
// CHECK-SAME:      %[[A:.*]]: tensor<i32>, %[[B:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[C1]]
// CHECK-NEXT:    %[[CONVERT:.*]] = stablehlo.convert %[[ADD]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[CONVERT]]
// CHECK-NEXT:    return %[[MUL]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>, %n: tensor<i32>)
      -> (tensor<f32>, tensor<f32>, tensor<i32> {jaxpp.feeds = 3 : i64}) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %3 = call @backward_0(%x, %2#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %4 = stablehlo.add %n, %one : tensor<i32>
    %5 = stablehlo.convert %4 : (tensor<i32>) -> tensor<f32>
    %6 = stablehlo.multiply %3, %5 : tensor<f32>
    %7 = stablehlo.multiply %2#1, %5 : tensor<f32>
    return %6, %7, %4 : tensor<f32>, tensor<f32>, tensor<i32>
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

// jaxpp.feeds takes a result to where the next step needs it: mesh 1 computes what will be the weight of mesh 0.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[W1:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %[[X:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.feeds = 0 : i64, jaxpp.meshes = array<i64: 0>})
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[W1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[AFTER_1:.*]] = call @after_1(%[[B1_0]]#1) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[AFTER_1]]
// CHECK-LABEL: func.func private @after_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:    return %[[NEGATE]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>) -> (tensor<f32> {jaxpp.feeds = 0 : i64}) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %4 = stablehlo.negate %2#1 : tensor<f32>
    return %4 : tensor<f32>
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

// -----

// A hint that names no argument, or makes no sense, is no hint: the results are where they are computed.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[W1:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %[[X:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.feeds = -1 : i64, jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.feeds = 3 : i64, jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.feeds = 9 : i64, jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[W1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[B1_0]]#0, %[[B1_0]]#0, %[[B1_0]]#0
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>)
      -> (tensor<f32> {jaxpp.feeds = -1 : i64}, tensor<f32> {jaxpp.feeds = 3 : i64}, tensor<f32> {jaxpp.feeds = 9 : i64}) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    return %2#0, %2#0, %2#0 : tensor<f32>, tensor<f32>, tensor<f32>
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

// -----

// An argument that nothing uses is on no mesh, unless it is returned; a result that is one is where it is, or on mesh 0.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[W1:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 1>}, %[[X:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %[[UNUSED:.*]]: tensor<f32> {jaxpp.meshes = array<i64>}, %[[RETURNED:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 0>})
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[W0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B1_0:.*]]:2 = call @backward_1(%[[W1]], %[[F0_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[B1_0]]#0, %[[W1]], %[[RETURNED]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>, %unused: tensor<f32>, %returned: tensor<f32>)
      -> (tensor<f32>, tensor<f32>, tensor<f32>) {
    %1 = call @forward_0(%w0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2:2 = call @backward_1(%w1, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    return %2#0, %w1, %returned : tensor<f32>, tensor<f32>, tensor<f32>
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
