// RUN: not jaxpp-opt %s --split-input-file -p inline-calls 2>&1 | filecheck %s

// A function that is declared and not defined can't be inlined.

// CHECK: callee_invalid.mlir:[[# @LINE + 3]]:8: error: call of @elsewhere, which has no body in this module
func.func private @elsewhere(tensor<f32>) -> tensor<f32>
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @elsewhere(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Without @main there is no training step.

// CHECK: callee_invalid.mlir: error: the module has no function @main
// CHECK-NEXT: give a module as JAX lowers it
func.func public @step(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// A function with branches has no one place where its body could go.

// CHECK: callee_invalid.mlir:[[# @LINE + 2]]:8: error: call of @branch, which has 2 blocks, expected one
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @branch(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @branch(%x: tensor<f32>) -> tensor<f32> {
  cf.br ^next
^next:
  return %x : tensor<f32>
}
