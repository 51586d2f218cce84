// RUN: not jaxpp-opt %s --split-input-file -p insert-transfers 2>&1 | filecheck %s

// Without @main there is nothing to cut.

// CHECK: main_invalid.mlir: error: the module has no function @main
// CHECK-NEXT: give a module as JAX lowers it
func.func public @step(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// A function of the user's has the name of a mesh's.

// CHECK: main_invalid.mlir: error: the module already has a function @mesh_0
// CHECK-NEXT: rename it: jaxpp needs the name
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    return %x : tensor<f32>
  }
  func.func private @mesh_0(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

// A module that is not placed.

// CHECK: main_invalid.mlir: error: no jaxpp.meshes, expected the number of meshes
// CHECK-NEXT: run infer-placement first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// A call on no mesh.

// CHECK: main_invalid.mlir:[[# @LINE + 4]]:10: error: the call of @f has no mesh; the meshes are 0 to 1
// CHECK-NEXT: run infer-placement first
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %0 = call @f(%x) : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @f(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

// A result on a mesh that is not there.

// CHECK: main_invalid.mlir:[[# @LINE + 3]]:3: error: result 0 of @main has jaxpp.meshes = array<i64: 2>; the meshes are 0 to 1
// CHECK-NEXT: run infer-placement first
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 2>}) {
    return %x : tensor<f32>
  }
}

// -----

// A step that calls itself.

// CHECK: main_invalid.mlir:[[# @LINE + 4]]:10: error: @main calls itself
// CHECK-NEXT: recursion can't be lowered
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %0 = call @main(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}
