// RUN: not jaxpp-opt %s --split-input-file -p verify-main 2>&1 | filecheck %s

// An operation is on no mesh.

// CHECK: placed_invalid.mlir:[[# @LINE + 5]]:{{[0-9]+}}: error: phase 5: a stablehlo.negate in @main, expected constants and calls
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 5
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
  %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
  %b = stablehlo.negate %a : tensor<f32>
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

// -----

// What stood behind the loop has a microbatch.

// CHECK: placed_invalid.mlir:[[# @LINE + 5]]:{{[0-9]+}}: error: phase 5: the call of @after_0, which is no task, has a stage or a microbatch
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 5
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
  %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
  %b = call @after_0(%a) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<f32>) -> tensor<f32>
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
