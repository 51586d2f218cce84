// RUN: jaxpp-opt %s -p verify-main | filecheck %s

// Each task of a microbatch is called once, on its mesh.

// CHECK-COUNT-2: call @forward_0(
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x: tensor<f32>) -> (tensor<f32>) {
  %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
  %b = call @forward_0(%a) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
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
