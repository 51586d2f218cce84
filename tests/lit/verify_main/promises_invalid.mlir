// RUN: not jaxpp-opt %s --split-input-file -p verify-main 2>&1 | filecheck %s

// One function is called twice for a microbatch, the second time as if it were of another stage.

// CHECK: promises_invalid.mlir:[[# @LINE + 5]]:{{[0-9]+}}: error: phase 4: a second call of @forward_0 for microbatch 0
// CHECK-NEXT: the pass before this one broke a promise of docs/ir.md, section 4
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x: tensor<f32>) -> (tensor<f32>) {
  %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
  %b = call @forward_0(%a) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
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

// A call does not say for which microbatch it is.

// CHECK: promises_invalid.mlir:[[# @LINE + 4]]:{{[0-9]+}}: error: the call of @forward_0, which is a forward, has jaxpp.stage = 0 : i64 and no jaxpp.microbatch
// CHECK-NEXT: unroll-microbatches writes them: a number from 0 on for each task, array<i64: ...> for several
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x: tensor<f32>) -> (tensor<f32>) {
  %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
  return %a : tensor<f32>
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
