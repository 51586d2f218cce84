// RUN: not jaxpp-opt %s -p multiply-by-reciprocal 2>&1 | filecheck %s

// CHECK: multiply_by_reciprocal_invalid.mlir:[[# @LINE + 4]]:8: error: division by the constant 0
// CHECK-NEXT: divide by another number
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %0 = stablehlo.divide %x, %zero : tensor<2xf32>
  return %0 : tensor<2xf32>
}
