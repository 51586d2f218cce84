// RUN: not jaxpp-opt %s --split-input-file -p infer-placement 2>&1 | filecheck %s

// Every unrolled @main can be placed; a module must have one.

// CHECK: main_invalid.mlir: error: the module has no function @main
// CHECK-NEXT: give a module as JAX lowers it
func.func public @step(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// A function of the user's has the name that a new one needs.

// CHECK: main_invalid.mlir: error: the module already has a function @after_0
// CHECK-NEXT: rename it: jaxpp needs the name
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.tanh %x : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @after_0(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}
