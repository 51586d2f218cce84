// RUN: jaxpp-opt %s --split-input-file -p unroll-microbatches | filecheck %s

// A loop with two counters: one from 0 in steps of 1, the other, of another type, from 3 in steps of 2. Each microbatch
// has the constants of its own, and the results are what the counters are after the last one.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<8xf32>) -> (tensor<f32>, tensor<i64>, tensor<i32>)
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[C0_2:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[C3:.*]] = stablehlo.constant dense<3>
// CHECK-NEXT:    %[[C0_3:.*]] = stablehlo.constant dense<0>
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]], %[[C0_3]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[X]], %[[C1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[C3_2:.*]] = stablehlo.constant dense<3>
// CHECK-NEXT:    %[[F1_0:.*]] = call @forward_1(%[[F0_0]], %[[C3_2]], %[[C0_2]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C5:.*]] = stablehlo.constant dense<5>
// CHECK-NEXT:    %[[F1_1:.*]] = call @forward_1(%[[F0_1]], %[[C5]], %[[F1_0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C2:.*]] = stablehlo.constant dense<2>
// CHECK-NEXT:    %[[C7:.*]] = stablehlo.constant dense<7>
// CHECK-NEXT:    return %[[F1_1]], %[[C7]], %[[C2]]
func.func public @main(%x: tensor<8xf32>) -> (tensor<f32>, tensor<i64>, tensor<i32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %three = stablehlo.constant dense<3> : tensor<i64>
  %0:3 = stablehlo.while(%i = %first, %sum = %zero, %n = %three) : tensor<i32>, tensor<f32>, tensor<i64>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1\0Amesh 1: .   1F0 1F1", stages = 2 : i64,
          indices = array<i64: 0, 2>, starts = array<i64: 0, 3>, steps = array<i64: 1, 2>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %i) {jaxpp.stage = 0 : i64} : (tensor<8xf32>, tensor<i32>) -> tensor<f32>
    %b = func.call @forward_1(%a, %n, %sum) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<i64>, tensor<f32>) -> tensor<f32>
    %two = stablehlo.constant dense<2> : tensor<i64>
    %next_n = stablehlo.add %n, %two : tensor<i64>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %b, %next_n : tensor<i32>, tensor<f32>, tensor<i64>
  }
  return %0#1, %0#2, %0#0 : tensor<f32>, tensor<i64>, tensor<i32>
}
func.func private @forward_0(%x: tensor<8xf32>, %i: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<8xf32>, tensor<i32>) -> tensor<1xf32>
  %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>, %n: tensor<i64>, %sum: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.convert %n : (tensor<i64>) -> tensor<f32>
  %1 = stablehlo.multiply %a, %0 : tensor<f32>
  %2 = stablehlo.add %sum, %1 : tensor<f32>
  return %2 : tensor<f32>
}

// -----

// Numbers of 64 bits wrap around like others: after 2 to the 63 less 1 comes 2 to the 63.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.constant dense<9223372036854775807> : tensor<ui64>
// CHECK:         %[[FIRST:.*]] = stablehlo.constant dense<9223372036854775807> : tensor<ui64>
// CHECK:         call @forward_0(%[[FIRST]], %{{.*}}) {{.*}}jaxpp.microbatch = 0
// CHECK:         %[[SECOND:.*]] = stablehlo.constant dense<9223372036854775808> : tensor<ui64>
// CHECK:         call @forward_0(%[[SECOND]], %{{.*}}) {{.*}}jaxpp.microbatch = 1
// CHECK:         %[[LAST:.*]] = stablehlo.constant dense<9223372036854775809> : tensor<ui64>
// CHECK:         return %{{.*}}, %[[LAST]]
func.func public @main() -> (tensor<f32>, tensor<ui64>) {
  %first = stablehlo.constant dense<9223372036854775807> : tensor<ui64>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%n = %first, %sum = %zero) : tensor<ui64>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: gpipe\0Aplacement: 0\0Amesh 0: 0F0 0F1", stages = 1 : i64,
          indices = array<i64: 0>, starts = array<i64: 9223372036854775807>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<9223372036854775809> : tensor<ui64>
    %1 = stablehlo.compare LT, %n, %limit : (tensor<ui64>, tensor<ui64>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%n, %sum) {jaxpp.stage = 0 : i64} : (tensor<ui64>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<ui64>
    %next = stablehlo.add %n, %one : tensor<ui64>
    stablehlo.return %next, %a : tensor<ui64>, tensor<f32>
  }
  return %0#1, %0#0 : tensor<f32>, tensor<ui64>
}
func.func private @forward_0(%n: tensor<ui64>, %sum: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.convert %n : (tensor<ui64>) -> tensor<f32>
  %1 = stablehlo.add %sum, %0 : tensor<f32>
  return %1 : tensor<f32>
}
