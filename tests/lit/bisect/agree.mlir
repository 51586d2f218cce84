// RUN: jaxpp-bisect %s -p inline-calls,canonicalize,cse | filecheck %s
// RUN: not jaxpp-bisect %s -p inline-calls --nan | filecheck %s --check-prefix=NAN
// RUN: not jaxpp-bisect %s 2>&1 | filecheck %s --check-prefix=NONE

// CHECK: agree.mlir: the results agree after 3 passes
// NAN: first NaN: @main
// NAN-NEXT: value: stablehlo.log, 1 of 4 numbers
// NAN-NEXT: line: {{.*}}agree.mlir:14:8
// NONE: jaxpp-bisect: error: give the passes, with -p or --pipeline, or a second file
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // Two of the inputs are negative.

  %sum = stablehlo.add %x, %x : tensor<4xf32>
  %0 = stablehlo.log %x : tensor<4xf32>
  return %0, %sum : tensor<4xf32>, tensor<4xf32>
}
