// RUN: not jaxpp-opt %s -p hoist-loop-invariants 2>&1 | filecheck %s

// CHECK: loop_invalid.mlir:[[# @LINE + 2]]:1: error: no microbatch loop in its canonical form
// CHECK-NEXT: run find-microbatch-loop first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.sine %x : tensor<f32>
  return %0 : tensor<f32>
}
