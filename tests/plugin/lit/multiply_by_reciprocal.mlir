// RUN: jaxpp-opt %s -p multiply-by-reciprocal --validate | filecheck %s
// RUN: jaxpp-opt %s -p multiply-by-reciprocal{inexact} | filecheck %s --check-prefix=INEXACT

// CHECK-LABEL: @main
// CHECK: %[[QUARTER:.*]] = stablehlo.constant dense<2.500000e-01>
// CHECK-NEXT: %[[PRODUCT:.*]] = stablehlo.multiply %arg0, %[[QUARTER]]
// CHECK-NEXT: stablehlo.divide %[[PRODUCT]]
// INEXACT-NOT: stablehlo.divide
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %four = stablehlo.constant dense<4.0> : tensor<2xf32>
  %three = stablehlo.constant dense<3.0> : tensor<2xf32>
  %0 = stablehlo.divide %x, %four : tensor<2xf32>
  %1 = stablehlo.divide %0, %three : tensor<2xf32>
  return %1 : tensor<2xf32>
}
