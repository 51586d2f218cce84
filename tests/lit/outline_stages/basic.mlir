// RUN: jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages | filecheck %s

// Two stages, forward only. The mark is where the body is cut: what it needs is the task of stage 0, the rest that of
// stage 1, with the sum that goes from one microbatch to the next. The mark is gone, and each task is a function.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32>, %[[W1:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>) -> tensor<f32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]], %[[W0]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[W1]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MUL]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.multiply %x, %w0 : tensor<f32>
    %2 = stablehlo.tanh %1 : tensor<f32>
    %3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %2 : tensor<f32>
    %4 = stablehlo.multiply %3, %w1 : tensor<f32>
    %5 = stablehlo.add %sum, %4 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %5 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// Forward and backward, and a mark after the last stage too: four tasks. Each weight gradient is made and added up in
// the backward of its stage; the loss, which no mark needs, with the latest task that it depends on.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32>, %[[W1:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>, tensor<f32>)
// CHECK:         %[[LOOP:.*]]:4 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[LOSS:.*]] = %{{.*}}, %[[G0:.*]] = %{{.*}}, %[[G1:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]], %[[W0]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]]:2 = func.call @forward_1(%[[F0]], %[[W1]], %[[LOSS]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      %[[B1:.*]]:2 = func.call @backward_1(%[[F1]]#0, %[[F0]], %[[W1]], %[[G1]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      %[[B0:.*]] = func.call @backward_0(%[[B1]]#0, %[[X]], %[[G0]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]#1, %[[B0]], %[[B1]]#1
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2, %[[LOOP]]#3
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MUL]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MUL]]
// CHECK-NEXT:    %[[SINE:.*]] = stablehlo.sine %[[TANH]]
// CHECK-NEXT:    %[[COSINE:.*]] = stablehlo.cosine %[[TANH]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[SINE]]
// CHECK-NEXT:    return %[[COSINE]], %[[ADD]]
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>, %[[D:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[A]], %[[C]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[D]], %[[MUL]]
// CHECK-NEXT:    return %[[MUL_2]], %[[ADD]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.multiply %x, %w0 : tensor<f32>
    %2 = stablehlo.tanh %1 : tensor<f32>
    %3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %2 : tensor<f32>
    %4 = stablehlo.multiply %3, %w1 : tensor<f32>
    %5 = stablehlo.tanh %4 : tensor<f32>
    %6 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %5 : tensor<f32>
    %7 = stablehlo.sine %6 : tensor<f32>
    %8 = stablehlo.cosine %6 : tensor<f32>
    %9 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "backward", name = ""}} %8 : tensor<f32>
    %10 = stablehlo.multiply %9, %3 : tensor<f32>
    %11 = stablehlo.multiply %9, %w1 : tensor<f32>
    %12 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %11 : tensor<f32>
    %13 = stablehlo.multiply %12, %x : tensor<f32>
    %14 = stablehlo.add %loss, %7 : tensor<f32>
    %15 = stablehlo.add %g0, %13 : tensor<f32>
    %16 = stablehlo.add %g1, %10 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %14, %15, %16 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}

// -----

// The same step without the mark after the last stage. Nothing separates the forward of stage 1 from its backward: both
// are one task, @backward_1, and three are left.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<f32>, %[[W1:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>, tensor<f32>)
// CHECK:         %[[LOOP:.*]]:4 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[LOSS:.*]] = %{{.*}}, %[[G0:.*]] = %{{.*}}, %[[G1:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]], %[[W0]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[B1:.*]]:3 = func.call @backward_1(%[[F0]], %[[W1]], %[[LOSS]], %[[G1]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      %[[B0:.*]] = func.call @backward_0(%[[B1]]#0, %[[X]], %[[G0]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[B1]]#1, %[[B0]], %[[B1]]#2
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2, %[[LOOP]]#3
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MUL]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>, %[[D:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MUL]]
// CHECK-NEXT:    %[[SINE:.*]] = stablehlo.sine %[[TANH]]
// CHECK-NEXT:    %[[COSINE:.*]] = stablehlo.cosine %[[TANH]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[COSINE]], %[[A]]
// CHECK-NEXT:    %[[MUL_3:.*]] = stablehlo.multiply %[[COSINE]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[SINE]]
// CHECK-NEXT:    %[[ADD_2:.*]] = stablehlo.add %[[D]], %[[MUL_2]]
// CHECK-NEXT:    return %[[MUL_3]], %[[ADD]], %[[ADD_2]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<f32>, %w1: tensor<f32>, %x: tensor<f32>)
    -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %loss = %zero, %g0 = %zero, %g1 = %zero) : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.multiply %x, %w0 : tensor<f32>
    %2 = stablehlo.tanh %1 : tensor<f32>
    %3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %2 : tensor<f32>
    %4 = stablehlo.multiply %3, %w1 : tensor<f32>
    %5 = stablehlo.tanh %4 : tensor<f32>
    %7 = stablehlo.sine %5 : tensor<f32>
    %9 = stablehlo.cosine %5 : tensor<f32>
    %10 = stablehlo.multiply %9, %3 : tensor<f32>
    %11 = stablehlo.multiply %9, %w1 : tensor<f32>
    %12 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %11 : tensor<f32>
    %13 = stablehlo.multiply %12, %x : tensor<f32>
    %14 = stablehlo.add %loss, %7 : tensor<f32>
    %15 = stablehlo.add %g0, %13 : tensor<f32>
    %16 = stablehlo.add %g1, %10 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %14, %15, %16 : tensor<i32>, tensor<f32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<f32>, tensor<f32>, tensor<f32>
}
