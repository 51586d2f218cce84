// RUN: jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2}" | filecheck %s

// A loop of the user's own: nothing names it, but it is the one with a stage mark in its body; the loop behind it is some
// other loop. It carries no schedule, so that of the command line is written out. As JAX lowers fori_loop(1, 4, ...) of
// a body that uses the index, there are two counters: the index itself, from 1, and the other one, from 0 in steps of 2.
// The limit 7 of that one is carried along, unchanged, and goes.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[N:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}}) : tensor<i64>, tensor<ui32>, tensor<f32>
// CHECK-SAME:        indices = array<i64: 0, 1>, inferred, length = 3 : i64,
// CHECK-SAME:        schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0F2 {{.*}}0B0
// CHECK-SAME:        stages = 2 : i64, starts = array<i64: 1, 1>, steps = array<i64: 1, 2>}
// CHECK:         stablehlo.while(
// CHECK-NOT:     jaxpp.microbatch_loop
// CHECK:         return
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<i64>) {
  %one = stablehlo.constant dense<1> : tensor<i64>
  %first = stablehlo.constant dense<1> : tensor<ui32>
  %limit = stablehlo.constant dense<7> : tensor<ui32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %one, %n = %first, %end = %limit, %sum = %zero)
      : tensor<i64>, tensor<ui32>, tensor<ui32>, tensor<f32>
  cond {
    %2 = stablehlo.compare LT, %n, %end : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.convert %i : (tensor<i64>) -> tensor<f32>
    %3 = stablehlo.multiply %2, %x : tensor<f32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %3 : tensor<f32>
    %5 = stablehlo.multiply %4, %w : tensor<f32>
    %6 = stablehlo.add %sum, %5 : tensor<f32>
    %7 = stablehlo.add %i, %one : tensor<i64>
    %two = stablehlo.constant dense<2> : tensor<ui32>
    %8 = stablehlo.add %two, %n : tensor<ui32>
    stablehlo.return %7, %8, %end, %6 : tensor<i64>, tensor<ui32>, tensor<ui32>, tensor<f32>
  }
  %1:2 = stablehlo.while(%i = %one, %y = %x) : tensor<i64>, tensor<f32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i64>
    %2 = stablehlo.compare LT, %i, %three : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.sine %y : tensor<f32>
    %3 = stablehlo.add %i, %one : tensor<i64>
    stablehlo.return %3, %2 : tensor<i64>, tensor<f32>
  }
  return %0#3, %1#1, %0#0 : tensor<f32>, tensor<f32>, tensor<i64>
}
