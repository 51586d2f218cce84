// RUN: jaxpp-opt %s --emit-bytecode | jaxpp-opt - | filecheck %s
// RUN: jaxpp-opt %s --emit-bytecode -o %t
// RUN: jaxpp-opt %t -p inline-calls --mlir-print-debuginfo | filecheck %s --check-prefix=LOCATIONS

// Bytecode goes in and comes out; it keeps source locations, which text shows only when asked to.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.*]]: tensor<2xf32>) -> tensor<2xf32> {
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[X]], %[[X]] : tensor<2xf32>
// CHECK-NEXT: return %[[SUM]] : tensor<2xf32>
// CHECK-NEXT: }
// LOCATIONS: loc("model.py":7:3)
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32> loc("add"("model.py":7:3))
  return %0 : tensor<2xf32>
}
