// RUN: jaxpp-reduce %s --test "grep stablehlo.cosine" -o %t
// RUN: jaxpp-opt %t | filecheck %s
// RUN: jaxpp-reduce %s --test cat --expect "stablehlo.cosine" 2>&1 | filecheck %s --check-prefix=STEPS

// CHECK: func.func @main() -> tensor<1xf32>
// CHECK-NEXT: [[ZERO:%.+]] = stablehlo.constant dense<0.000000e+00> : tensor<1xf32>
// CHECK-NEXT: [[RESULT:%.+]] = stablehlo.cosine [[ZERO]] : tensor<1xf32>
// CHECK-NEXT: return [[RESULT]] : tensor<1xf32>

// STEPS: results: 3 -> 3 operations, {{[0-9]+}} -> {{[0-9]+}} characters (
// STEPS: operations by operands: 3 -> 2 operations,
// STEPS: 3 -> 2 operations in {{[0-9]+}} tests (
func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %sum = stablehlo.add %x, %y : tensor<8xf32>
  %cosine = stablehlo.cosine %sum : tensor<8xf32>
  %tanh = stablehlo.tanh %cosine : tensor<8xf32>
  return %tanh, %sum : tensor<8xf32>, tensor<8xf32>
}
