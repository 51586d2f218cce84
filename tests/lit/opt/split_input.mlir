// RUN: jaxpp-opt %s -p inline-calls --split-input-file | filecheck %s

// Each part is a module of its own, and so is each part of the output.

// CHECK-LABEL: func.func @main() -> tensor<f32>
func.func @main() -> tensor<f32> {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}

// CHECK: // -----
// -----

// CHECK-LABEL: func.func @main() -> tensor<i32>
func.func @main() -> tensor<i32> {
  %0 = stablehlo.constant dense<1> : tensor<i32>
  return %0 : tensor<i32>
}
