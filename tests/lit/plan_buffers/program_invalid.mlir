// RUN: not jaxpp-opt %s --split-input-file -p plan-buffers 2>&1 | filecheck %s

// Before insert-transfers there are no mesh functions.

// CHECK: program_invalid.mlir: error: the module has no mesh functions
// CHECK-NEXT: run insert-transfers first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// Only constants, calls, sends and receives stand in a mesh function.

// CHECK: program_invalid.mlir:[[# @LINE + 4]]:10: error: a mesh function has a stablehlo.tanh: only constants, calls, sends and receives are allowed
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = stablehlo.tanh %x : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// Mesh functions are those of meshes 0, 1, 2...

// CHECK: program_invalid.mlir:[[# @LINE + 2]]:3: error: a function for mesh 1, none for mesh 0
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_1(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    return %x : tensor<f32>
  }
}
