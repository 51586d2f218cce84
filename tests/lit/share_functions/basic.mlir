// RUN: jaxpp-opt %s --split-input-file -p share-functions | filecheck %s
// RUN: jaxpp-opt %s --split-input-file -p share-functions,insert-transfers,plan-buffers,verify-program | filecheck %s --check-prefix=PROGRAM

// Mesh 0 updates a weight of its own and two like those of mesh 1: these become a function of the same text on both
// meshes. It has them in the same order, though they stand in another one, with the scalar that they share.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[E:[^:]*]]: tensor<3xf32> {{[^%]*}} %[[V:[^:]*]]: tensor<4xf32> {{[^%]*}} %[[W:[^:]*]]: tensor<5xf32> {{[^%]*}} %[[X:[^:]*]]: tensor<5xf32> {{[^%]*}} %[[Y:[^:]*]]: tensor<4xf32> {{[^%]*}} %[[R:[^:]*]]: tensor<f32>
// CHECK-NEXT:    %[[OWN:.*]] = call @after_0_own(%[[R]], %[[E]]) {jaxpp.mesh = 0 : i64} : (tensor<f32>, tensor<3xf32>) -> tensor<3xf32>
// CHECK-NEXT:    %[[S0:.*]]:2 = call @after_0_shared(%[[R]], %[[V]], %[[W]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[S1:.*]]:2 = call @after_1_shared(%[[R]], %[[Y]], %[[X]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[OWN]], %[[S0]]#0, %[[S0]]#1, %[[S1]]#1, %[[S1]]#0 :
// CHECK-LABEL: func.func private @after_0_own(
// CHECK-SAME:      attributes {jaxpp.kind = "after"}
// CHECK-LABEL: func.func private @after_0_shared(
// CHECK-SAME:      %[[R:.*]]: tensor<f32>, %[[V:.*]]: tensor<4xf32>, %[[W:.*]]: tensor<5xf32>) -> (tensor<4xf32>, tensor<5xf32>) attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[R]]
// CHECK-NEXT:    %[[B:.*]] = stablehlo.broadcast_in_dim %[[NEGATE]], dims = [] : (tensor<f32>) -> tensor<4xf32>
// CHECK-NEXT:    %[[V1:.*]] = stablehlo.multiply %[[B]], %[[V]]
// CHECK-NEXT:    %[[V2:.*]] = stablehlo.tanh %[[V1]]
// CHECK-NEXT:    %[[V3:.*]] = stablehlo.add %[[V2]], %[[V]]
// CHECK-NEXT:    %[[V4:.*]] = stablehlo.sqrt %[[V3]]
// CHECK-NEXT:    %[[B2:.*]] = stablehlo.broadcast_in_dim %[[NEGATE]], dims = [] : (tensor<f32>) -> tensor<5xf32>
// CHECK-NEXT:    %[[W1:.*]] = stablehlo.multiply %[[B2]], %[[W]]
// CHECK-NEXT:    %[[W2:.*]] = stablehlo.tanh %[[W1]]
// CHECK-NEXT:    %[[W3:.*]] = stablehlo.add %[[W2]], %[[W]]
// CHECK-NEXT:    %[[W4:.*]] = stablehlo.sqrt %[[W3]]
// CHECK-NEXT:    return %[[V4]], %[[W4]]
// CHECK-LABEL: func.func private @after_1_shared(
// CHECK-SAME:      %{{.*}}: tensor<f32>, %{{.*}}: tensor<4xf32>, %{{.*}}: tensor<5xf32>) -> (tensor<4xf32>, tensor<5xf32>)

// So it is compiled once.

// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM-NEXT:    stablehlo.create_token
// PROGRAM-NEXT:    call @after_0_own(
// PROGRAM-NEXT:    call @after_0_shared(
// PROGRAM-LABEL: func.func public @mesh_1(
// PROGRAM-NEXT:    stablehlo.create_token
// PROGRAM-NEXT:    call @after_0_shared(
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(
      %e: tensor<3xf32> {jaxpp.meshes = array<i64: 0>}, %v: tensor<4xf32> {jaxpp.meshes = array<i64: 0>},
      %w: tensor<5xf32> {jaxpp.meshes = array<i64: 0>}, %x: tensor<5xf32> {jaxpp.meshes = array<i64: 1>},
      %y: tensor<4xf32> {jaxpp.meshes = array<i64: 1>}, %r: tensor<f32> {jaxpp.meshes = array<i64: 0, 1>})
      -> (tensor<3xf32> {jaxpp.meshes = array<i64: 0>}, tensor<4xf32> {jaxpp.meshes = array<i64: 0>},
          tensor<5xf32> {jaxpp.meshes = array<i64: 0>}, tensor<5xf32> {jaxpp.meshes = array<i64: 1>},
          tensor<4xf32> {jaxpp.meshes = array<i64: 1>}) {
    %0:3 = call @after_0(%r, %e, %v, %w) {jaxpp.mesh = 0 : i64} : (tensor<f32>, tensor<3xf32>, tensor<4xf32>, tensor<5xf32>) -> (tensor<3xf32>, tensor<4xf32>, tensor<5xf32>)
    %1:2 = call @after_1(%x, %y, %r) {jaxpp.mesh = 1 : i64} : (tensor<5xf32>, tensor<4xf32>, tensor<f32>) -> (tensor<5xf32>, tensor<4xf32>)
    return %0#0, %0#1, %0#2, %1#0, %1#1 : tensor<3xf32>, tensor<4xf32>, tensor<5xf32>, tensor<5xf32>, tensor<4xf32>
  }
  func.func private @after_0(%r: tensor<f32>, %e: tensor<3xf32>, %v: tensor<4xf32>, %w: tensor<5xf32>) -> (tensor<3xf32>, tensor<4xf32>, tensor<5xf32>) attributes {jaxpp.kind = "after"} {
    %n = stablehlo.negate %r : tensor<f32>
    %be = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %bv = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %bw = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %e1 = stablehlo.multiply %be, %e : tensor<3xf32>
    %v1 = stablehlo.multiply %bv, %v : tensor<4xf32>
    %w1 = stablehlo.multiply %bw, %w : tensor<5xf32>
    %v2 = stablehlo.tanh %v1 : tensor<4xf32>
    %w2 = stablehlo.tanh %w1 : tensor<5xf32>
    %v3 = stablehlo.add %v2, %v : tensor<4xf32>
    %w3 = stablehlo.add %w2, %w : tensor<5xf32>
    %v4 = stablehlo.sqrt %v3 : tensor<4xf32>
    %w4 = stablehlo.sqrt %w3 : tensor<5xf32>
    return %e1, %v4, %w4 : tensor<3xf32>, tensor<4xf32>, tensor<5xf32>
  }
  func.func private @after_1(%x: tensor<5xf32>, %y: tensor<4xf32>, %r: tensor<f32>) -> (tensor<5xf32>, tensor<4xf32>) attributes {jaxpp.kind = "after"} {
    %n = stablehlo.negate %r : tensor<f32>
    %bx = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %x1 = stablehlo.multiply %bx, %x : tensor<5xf32>
    %x2 = stablehlo.tanh %x1 : tensor<5xf32>
    %x3 = stablehlo.add %x2, %x : tensor<5xf32>
    %x4 = stablehlo.sqrt %x3 : tensor<5xf32>
    %by = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %y1 = stablehlo.multiply %by, %y : tensor<4xf32>
    %y2 = stablehlo.tanh %y1 : tensor<4xf32>
    %y3 = stablehlo.add %y2, %y : tensor<4xf32>
    %y4 = stablehlo.sqrt %y3 : tensor<4xf32>
    return %x4, %y4 : tensor<5xf32>, tensor<4xf32>
  }
}

// -----

// What mesh 1 has in common with mesh 0 is less than half of what it computes, so a call more would save little; and the
// sum of squares is one part with all that goes into it.

// CHECK-LABEL: func.func public @main(
// CHECK-NEXT:    call @after_0({{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    call @after_1({{.*}}) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    call @after_2({{.*}}) {jaxpp.mesh = 2 : i64}
// CHECK-NEXT:    return
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @main(
      %a: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %b: tensor<4xf32> {jaxpp.meshes = array<i64: 1>},
      %c: tensor<5xf32> {jaxpp.meshes = array<i64: 1>}, %d: tensor<4xf32> {jaxpp.meshes = array<i64: 2>},
      %e: tensor<4xf32> {jaxpp.meshes = array<i64: 2>})
      -> (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, tensor<4xf32> {jaxpp.meshes = array<i64: 1>},
          tensor<5xf32> {jaxpp.meshes = array<i64: 1>}, tensor<4xf32> {jaxpp.meshes = array<i64: 2>}) {
    %0 = call @after_0(%a) {jaxpp.mesh = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %1:2 = call @after_1(%b, %c) {jaxpp.mesh = 1 : i64} : (tensor<4xf32>, tensor<5xf32>) -> (tensor<4xf32>, tensor<5xf32>)
    %2 = call @after_2(%d, %e) {jaxpp.mesh = 2 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %0, %1#0, %1#1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<5xf32>, tensor<4xf32>
  }
  func.func private @after_0(%a: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.tanh %a : tensor<4xf32>
    %1 = stablehlo.tanh %0 : tensor<4xf32>
    %2 = stablehlo.tanh %1 : tensor<4xf32>
    %3 = stablehlo.tanh %2 : tensor<4xf32>
    %4 = stablehlo.tanh %3 : tensor<4xf32>
    %5 = stablehlo.tanh %4 : tensor<4xf32>
    %6 = stablehlo.tanh %5 : tensor<4xf32>
    %7 = stablehlo.tanh %6 : tensor<4xf32>
    return %7 : tensor<4xf32>
  }
  func.func private @after_1(%b: tensor<4xf32>, %c: tensor<5xf32>) -> (tensor<4xf32>, tensor<5xf32>) attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.tanh %b : tensor<4xf32>
    %1 = stablehlo.tanh %0 : tensor<4xf32>
    %2 = stablehlo.tanh %1 : tensor<4xf32>
    %3 = stablehlo.tanh %2 : tensor<4xf32>
    %4 = stablehlo.tanh %3 : tensor<4xf32>
    %5 = stablehlo.tanh %4 : tensor<4xf32>
    %6 = stablehlo.tanh %5 : tensor<4xf32>
    %7 = stablehlo.tanh %6 : tensor<4xf32>
    %8 = stablehlo.tanh %c : tensor<5xf32>
    %9 = stablehlo.tanh %8 : tensor<5xf32>
    %10 = stablehlo.tanh %9 : tensor<5xf32>
    %11 = stablehlo.tanh %10 : tensor<5xf32>
    %12 = stablehlo.tanh %11 : tensor<5xf32>
    %13 = stablehlo.tanh %12 : tensor<5xf32>
    %14 = stablehlo.tanh %13 : tensor<5xf32>
    %15 = stablehlo.tanh %14 : tensor<5xf32>
    %16 = stablehlo.tanh %15 : tensor<5xf32>
    return %7, %16 : tensor<4xf32>, tensor<5xf32>
  }
  func.func private @after_2(%d: tensor<4xf32>, %e: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.tanh %d : tensor<4xf32>
    %1 = stablehlo.tanh %0 : tensor<4xf32>
    %2 = stablehlo.tanh %1 : tensor<4xf32>
    %3 = stablehlo.tanh %2 : tensor<4xf32>
    %4 = stablehlo.tanh %3 : tensor<4xf32>
    %5 = stablehlo.tanh %4 : tensor<4xf32>
    %6 = stablehlo.tanh %5 : tensor<4xf32>
    %7 = stablehlo.tanh %6 : tensor<4xf32>
    %8 = stablehlo.multiply %e, %7 : tensor<4xf32>
    return %8 : tensor<4xf32>
  }
}

// -----

// Reductions and complex constants are compared too: that of mesh 2 is another one.

// CHECK-LABEL: func.func public @main(
// CHECK-NEXT:    call @after_0_own({{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    call @after_0_shared({{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    call @after_1_shared({{.*}}) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    call @after_2({{.*}}) {jaxpp.mesh = 2 : i64}
// CHECK-NEXT:    return
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @main(
      %e: tensor<3xf32> {jaxpp.meshes = array<i64: 0>}, %a: tensor<2x4xcomplex<f32>> {jaxpp.meshes = array<i64: 0>},
      %b: tensor<2x4xcomplex<f32>> {jaxpp.meshes = array<i64: 1>}, %c: tensor<2x4xcomplex<f32>> {jaxpp.meshes = array<i64: 2>})
      -> (tensor<3xf32> {jaxpp.meshes = array<i64: 0>}, tensor<4xcomplex<f32>> {jaxpp.meshes = array<i64: 0>},
          tensor<4xcomplex<f32>> {jaxpp.meshes = array<i64: 1>}, tensor<4xcomplex<f32>> {jaxpp.meshes = array<i64: 2>}) {
    %0:2 = call @after_0(%a, %e) {jaxpp.mesh = 0 : i64} : (tensor<2x4xcomplex<f32>>, tensor<3xf32>) -> (tensor<4xcomplex<f32>>, tensor<3xf32>)
    %1 = call @after_1(%b) {jaxpp.mesh = 1 : i64} : (tensor<2x4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
    %2 = call @after_2(%c) {jaxpp.mesh = 2 : i64} : (tensor<2x4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
    return %0#1, %0#0, %1, %2 : tensor<3xf32>, tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>
  }
  func.func private @after_0(%a: tensor<2x4xcomplex<f32>>, %e: tensor<3xf32>) -> (tensor<4xcomplex<f32>>, tensor<3xf32>) attributes {jaxpp.kind = "after"} {
    %z = stablehlo.constant dense<(0.0, 0.0)> : tensor<complex<f32>>
    %b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
    %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<2x4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
    %1 = stablehlo.add %s, %b : tensor<4xcomplex<f32>>
    %2 = stablehlo.tanh %1 : tensor<4xcomplex<f32>>
    %3 = stablehlo.tanh %2 : tensor<4xcomplex<f32>>
    %4 = stablehlo.tanh %3 : tensor<4xcomplex<f32>>
    %5 = stablehlo.tanh %4 : tensor<4xcomplex<f32>>
    %6 = stablehlo.tanh %5 : tensor<4xcomplex<f32>>
    %7 = stablehlo.tanh %6 : tensor<4xcomplex<f32>>
    %n = stablehlo.negate %e : tensor<3xf32>
    return %7, %n : tensor<4xcomplex<f32>>, tensor<3xf32>
  }
  func.func private @after_1(%a: tensor<2x4xcomplex<f32>>) -> tensor<4xcomplex<f32>> attributes {jaxpp.kind = "after"} {
    %z = stablehlo.constant dense<(0.0, 0.0)> : tensor<complex<f32>>
    %b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
    %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<2x4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
    %1 = stablehlo.add %s, %b : tensor<4xcomplex<f32>>
    %2 = stablehlo.tanh %1 : tensor<4xcomplex<f32>>
    %3 = stablehlo.tanh %2 : tensor<4xcomplex<f32>>
    %4 = stablehlo.tanh %3 : tensor<4xcomplex<f32>>
    %5 = stablehlo.tanh %4 : tensor<4xcomplex<f32>>
    %6 = stablehlo.tanh %5 : tensor<4xcomplex<f32>>
    %7 = stablehlo.tanh %6 : tensor<4xcomplex<f32>>
    return %7 : tensor<4xcomplex<f32>>
  }
  func.func private @after_2(%a: tensor<2x4xcomplex<f32>>) -> tensor<4xcomplex<f32>> attributes {jaxpp.kind = "after"} {
    %z = stablehlo.constant dense<(1.0, 0.0)> : tensor<complex<f32>>
    %b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
    %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<2x4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
    %1 = stablehlo.add %s, %b : tensor<4xcomplex<f32>>
    %2 = stablehlo.tanh %1 : tensor<4xcomplex<f32>>
    %3 = stablehlo.tanh %2 : tensor<4xcomplex<f32>>
    %4 = stablehlo.tanh %3 : tensor<4xcomplex<f32>>
    %5 = stablehlo.tanh %4 : tensor<4xcomplex<f32>>
    %6 = stablehlo.tanh %5 : tensor<4xcomplex<f32>>
    %7 = stablehlo.tanh %6 : tensor<4xcomplex<f32>>
    return %7 : tensor<4xcomplex<f32>>
  }
}
