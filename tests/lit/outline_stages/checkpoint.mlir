// RUN: jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages | filecheck %s

// jax.checkpoint: behind a barrier (one that is no mark) the forward of stage 1 stands a second time, for the backward.
// It stays there, and only the input of the stage is kept for it.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>) -> (tensor<f32>, tensor<f32>)
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[LOSS:.*]] = %{{.*}}, %[[G:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]], %[[W]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]]:2 = func.call @forward_1(%[[F0]], %[[W]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      %[[B2:.*]]:2 = func.call @backward_2(%[[LOSS]], %[[F1]]#0) {jaxpp.stage = 2 : i64}
// CHECK-NEXT:      %[[B1:.*]] = func.call @backward_1(%[[F1]]#1, %[[B2]]#1, %[[W]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      %[[B0:.*]] = func.call @backward_0(%[[B1]], %[[X]], %[[G]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[B2]]#0, %[[B0]]
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MUL]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[MUL]]
// CHECK-NEXT:    %[[SINE:.*]] = stablehlo.sine %[[EXPONENTIAL]]
// CHECK-NEXT:    %[[BARRIER:.*]] = stablehlo.optimization_barrier %[[A]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[BARRIER]], %[[B]]
// CHECK-NEXT:    return %[[SINE]], %[[MUL_2]]
// CHECK-LABEL: func.func private @backward_2(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 2 : i64}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[B]]
// CHECK-NEXT:    return %[[ADD]], %[[NEGATE]]
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[A]]
// CHECK-NEXT:    %[[COSINE:.*]] = stablehlo.cosine %[[A]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[COSINE]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[MUL]], %[[EXPONENTIAL]]
// CHECK-NEXT:    %[[MUL_3:.*]] = stablehlo.multiply %[[MUL_2]], %[[C]]
// CHECK-NEXT:    return %[[MUL_3]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %loss = %zero, %g = %zero) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 3 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.multiply %x, %w : tensor<f32>
    %2 = stablehlo.tanh %1 : tensor<f32>
    %3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %2 : tensor<f32>
    %4 = stablehlo.multiply %3, %w : tensor<f32>
    %5 = stablehlo.exponential %4 : tensor<f32>
    %6 = stablehlo.sine %5 : tensor<f32>
    %7 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %6 : tensor<f32>
    %8 = stablehlo.add %loss, %7 : tensor<f32>
    %9 = stablehlo.negate %7 : tensor<f32>
    %10 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "backward", name = ""}} %9 : tensor<f32>
    %11 = stablehlo.optimization_barrier %3 : tensor<f32>
    %12 = stablehlo.multiply %11, %w : tensor<f32>
    %13 = stablehlo.exponential %12 : tensor<f32>
    %14 = stablehlo.cosine %12 : tensor<f32>
    %15 = stablehlo.multiply %10, %14 : tensor<f32>
    %16 = stablehlo.multiply %15, %13 : tensor<f32>
    %17 = stablehlo.multiply %16, %w : tensor<f32>
    %18 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %17 : tensor<f32>
    %19 = stablehlo.multiply %18, %x : tensor<f32>
    %20 = stablehlo.add %g, %19 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %8, %20 : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<f32>, tensor<f32>
}
