// RUN: jaxpp-opt %s -p share-functions | filecheck %s
// RUN: jaxpp-opt %s -p share-functions,insert-transfers,plan-buffers,verify-program | filecheck %s --check-prefix=PROGRAM

// Meshes 0 and 1 call one function, after `plan-buffers`. It stays: what mesh 2 computes like them has no other
// function to share with.

// CHECK-LABEL: func.func public @main(
// CHECK:         call @after_0(
// CHECK-NEXT:    call @after_0(
// CHECK-NEXT:    call @after_2(
// CHECK-NEXT:    return
// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM:         call @after_0(
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @main(
      %a: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %c: tensor<4xf32> {jaxpp.meshes = array<i64: 1>},
      %e: tensor<4xf32> {jaxpp.meshes = array<i64: 2>}, %f: tensor<3xf32> {jaxpp.meshes = array<i64: 2>})
      -> (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, tensor<4xf32> {jaxpp.meshes = array<i64: 1>},
          tensor<4xf32> {jaxpp.meshes = array<i64: 2>}, tensor<3xf32> {jaxpp.meshes = array<i64: 2>}) {
    %0 = call @after_0(%a) {jaxpp.mesh = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @after_0(%c) {jaxpp.mesh = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %2:2 = call @after_2(%e, %f) {jaxpp.mesh = 2 : i64} : (tensor<4xf32>, tensor<3xf32>) -> (tensor<4xf32>, tensor<3xf32>)
    return %0, %1, %2#0, %2#1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<3xf32>
  }
  func.func private @after_0(%a: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
    %r0 = stablehlo.tanh %a : tensor<4xf32>
    %r1 = stablehlo.sqrt %r0 : tensor<4xf32>
    %r2 = stablehlo.exponential %r1 : tensor<4xf32>
    %r3 = stablehlo.cosine %r2 : tensor<4xf32>
    %r4 = stablehlo.sine %r3 : tensor<4xf32>
    %r5 = stablehlo.rsqrt %r4 : tensor<4xf32>
    %r6 = stablehlo.tanh %r5 : tensor<4xf32>
    %r7 = stablehlo.logistic %r6 : tensor<4xf32>
    return %r7 : tensor<4xf32>
  }
  func.func private @after_2(%a: tensor<4xf32>, %b: tensor<3xf32>) -> (tensor<4xf32>, tensor<3xf32>) attributes {jaxpp.kind = "after"} {
    %r0 = stablehlo.tanh %a : tensor<4xf32>
    %r1 = stablehlo.sqrt %r0 : tensor<4xf32>
    %r2 = stablehlo.exponential %r1 : tensor<4xf32>
    %r3 = stablehlo.cosine %r2 : tensor<4xf32>
    %r4 = stablehlo.sine %r3 : tensor<4xf32>
    %r5 = stablehlo.rsqrt %r4 : tensor<4xf32>
    %r6 = stablehlo.tanh %r5 : tensor<4xf32>
    %r7 = stablehlo.logistic %r6 : tensor<4xf32>
    %s = stablehlo.tanh %b : tensor<3xf32>
    return %r7, %s : tensor<4xf32>, tensor<3xf32>
  }
}
