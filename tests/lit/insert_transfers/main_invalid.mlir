// RUN: not jaxpp-opt %s --split-input-file -p insert-transfers 2>&1 | filecheck %s

// Without @main there is nothing to cut.

// CHECK: main_invalid.mlir: error: the module has no function @main
// CHECK-NEXT: give a module as JAX lowers it
func.func public @step(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
