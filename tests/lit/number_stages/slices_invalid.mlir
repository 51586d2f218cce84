// RUN: not jaxpp-opt %s --split-input-file -p find-microbatch-loop,number-stages 2>&1 | filecheck %s

// Slices of the sequence, which the loop's body does not have.

// CHECK: slices_invalid.mlir:[[# @LINE + 4]]:10: error: slice 0 has 0 stage marks in its forward, the schedule seq1f1b has 2 stages
// CHECK-NEXT: mark the end of every stage in each slice, the last one too, with the loss of the slice, and use that loss: jax.value_and_grad
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = "schedule: seq1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F0.1 0F1   0F1.1 0F2   0F2.1\0Amesh 1: 1F0 1F0.1 1F1   1F1.1 1F2   1F2.1"}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
