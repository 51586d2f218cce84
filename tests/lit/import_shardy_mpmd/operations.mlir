// RUN: jaxpp-opt %s --split-input-file -p 'import-shardy-mpmd{assignment="f@m1 g@m2"}' | filecheck %s

// A named computation is on the mesh that it is assigned to. An argument without a mesh is on all meshes that use it, and
// other operations on local tensors pass on their operand. A reduction is a function on the mesh of its first operand.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0, 1>}, %[[UNUSED:.*]]: tensor<f32> {jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 0>}, tensor<f32> {jaxpp.meshes = array<i64: 0>})
// CHECK-NEXT:    %[[F:.*]] = call @f_0(%[[X]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[G:.*]] = call @g_bwd_0(%[[F]], %[[X]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[MAX:.*]] = call @reduce_max_0(%[[F]], %[[G]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[G]], %[[MAX]], %[[UNUSED]]
// CHECK:       func.func private @reduce_max_0(
// CHECK-NEXT:    stablehlo.maximum
func.func public @main(%x: tensor<f32>, %unused: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>)
    attributes {topology = #mpmd.topology<<"m1" : <["x"=1]>>, <"m2" : <["x"=1]>>>} {
  %0 = mpmd.named_computation<"f"> (%x) (%a: tensor<f32>) {
    %b = stablehlo.negate %a : tensor<f32>
    mpmd.return %b : tensor<f32>
  } : (tensor<f32>) -> tensor<f32>
  %1 = mpmd.named_tensor %0 name="residual" : tensor<f32>
  %2 = mpmd.broadcast %x : tensor<f32>
  %3 = mpmd.named_computation<"g"(1)> (%1, %2) (%a: tensor<f32>, %b: tensor<f32>) {
    %c = stablehlo.add %a, %b : tensor<f32>
    mpmd.return %c : tensor<f32>
  } : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %4 = mpmd.reduce<max> %1, %3 : (tensor<f32>, tensor<f32>) -> tensor<f32>
  return %3, %4, %unused : tensor<f32>, tensor<f32>, tensor<f32>
}

// -----

// Calls are inlined and loops unrolled; a loop that runs no iteration passes on its operands.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<ui32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:    %[[ZERO:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[A:.*]] = call @add_0(%[[X]], %[[ZERO]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[ONE:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[B:.*]] = call @add_0(%[[A]], %[[ONE]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[B]]
// CHECK-NOT:   @body
func.func public @main(%x: !mpmd.mesh_tensor<"m2", tensor<ui32>>) -> !mpmd.mesh_tensor<"m2", tensor<ui32>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=1]>>, <"m2" : <["x"=1]>>>} {
  %0 = mpmd.call @body(%x) {call_counter = 0 : ui32} : (!mpmd.mesh_tensor<"m2", tensor<ui32>>) -> !mpmd.mesh_tensor<"m2", tensor<ui32>>
  return %0 : !mpmd.mesh_tensor<"m2", tensor<ui32>>
}
func.func private @body(%x: !mpmd.mesh_tensor<"m2", tensor<ui32>>) -> !mpmd.mesh_tensor<"m2", tensor<ui32>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=1]>>, <"m2" : <["x"=1]>>>} {
  %0 = mpmd.for (%x) {iterations = 2 : ui32} (%a: !mpmd.mesh_tensor<"m2", tensor<ui32>>, %index: tensor<ui32>) {
    %1 = mpmd.assign %index : (tensor<ui32>) -> !mpmd.mesh_tensor<"m2", tensor<ui32>>
    %2 = mpmd.fragment<mesh="m2", origin=["add"]> (%a, %1) (%b: tensor<ui32>, %c: tensor<ui32>) {
      %d = stablehlo.add %b, %c : tensor<ui32>
      mpmd.return %d : tensor<ui32>
    } : (!mpmd.mesh_tensor<"m2", tensor<ui32>>, !mpmd.mesh_tensor<"m2", tensor<ui32>>) -> !mpmd.mesh_tensor<"m2", tensor<ui32>>
    mpmd.return %2 : !mpmd.mesh_tensor<"m2", tensor<ui32>>
  } : !mpmd.mesh_tensor<"m2", tensor<ui32>>
  return %0 : !mpmd.mesh_tensor<"m2", tensor<ui32>>
}
