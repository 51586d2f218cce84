// RUN: jaxpp-opt %s --pass-pipeline 'builtin.module(inline-calls,canonicalize,cse)' | filecheck %s
// RUN: jaxpp-opt %s -p inline-calls,func.func(cse) --mlir-timing -o %t 2>&1 | filecheck %s --check-prefix=TIMES
// RUN: not jaxpp-opt %s -p chlo-legalize-to-stablehlo,canonicalise 2>&1 | filecheck %s --check-prefix=UNKNOWN

// Passes of MLIR stand among ours.

// CHECK-LABEL: func.func public @main(
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add
// CHECK-NEXT: stablehlo.multiply %[[SUM]], %[[SUM]]
// CHECK-NEXT: return
// TIMES: inline-calls {{.*}} ms
// TIMES: func.func(cse) {{.*}} ms
// UNKNOWN: jaxpp-opt: error: unknown pass 'canonicalise'; known: inline-calls,
func.func private @callee(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = call @callee(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = call @callee(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}
