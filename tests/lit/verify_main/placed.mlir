// RUN: jaxpp-opt %s -p verify-main | filecheck %s

// Everything is a call on a mesh; what stood outside of the loop belongs to no microbatch.

// CHECK:         call @forward_0(
// CHECK-NEXT:    %{{.*}} = call @after_0(
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
  %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
  %b = call @after_0(%a) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
  return %b : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %a = stablehlo.tanh %x : tensor<f32>
  return %a : tensor<f32>
}
func.func private @after_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
  %a = stablehlo.tanh %x : tensor<f32>
  return %a : tensor<f32>
}
}
