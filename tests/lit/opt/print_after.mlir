// RUN: jaxpp-opt %s -p inline-calls,inline-calls --print-after-all -o %t 2>&1 | filecheck %s
// RUN: jaxpp-opt %s -p inline-calls --print-after inline-calls --time-passes 2>&1 | filecheck %s --check-prefix=ONCE

// CHECK: // -----// after inline-calls //----- //
// CHECK-LABEL: func.func public @main(
// CHECK-NEXT: stablehlo.add
// CHECK: // -----// after inline-calls //----- //
// CHECK-LABEL: func.func public @main(
// CHECK-NOT: func.func private @callee

// ONCE-COUNT-1: // -----// after inline-calls //----- //
// ONCE: inline-calls {{.*}} ms
// ONCE: total {{.*}} ms  100.0 %
func.func private @callee(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = call @callee(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
