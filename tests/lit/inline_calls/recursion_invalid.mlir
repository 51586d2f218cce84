// RUN: not jaxpp-opt %s --split-input-file -p inline-calls 2>&1 | filecheck %s

// A function that calls itself has no finite body. The line that is named is that of the call.

// CHECK: recursion_invalid.mlir:[[# @LINE + 3]]:8: error: @forever calls itself
// CHECK-NEXT: recursion can't be lowered
func.func private @forever(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @forever(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @forever(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// So do two that call each other.

// CHECK: recursion_invalid.mlir:[[# @LINE + 11]]:8: error: @even calls itself
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @even(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @even(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @odd(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @odd(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.negate %x : tensor<f32>
  %1 = call @even(%0) : (tensor<f32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// And @main is no exception.

// CHECK: recursion_invalid.mlir:[[# @LINE + 2]]:8: error: @main calls itself
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @main(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
