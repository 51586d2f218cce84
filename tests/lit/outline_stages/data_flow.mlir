// RUN: jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages | filecheck %s

// A skip connection: stage 2 uses what stage 0 made. It takes it from stage 0; stage 1 does not hand it through.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>) -> tensor<f32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[F0]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      %[[F2:.*]] = func.call @forward_2(%[[F1]], %[[F0]], %[[W]], %[[SUM]]) {jaxpp.stage = 2 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F2]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[SINE:.*]] = stablehlo.sine %[[A]]
// CHECK-NEXT:    return %[[SINE]]
// CHECK-LABEL: func.func private @forward_2(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>, %[[D:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 2 : i64}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[ADD]], %[[C]]
// CHECK-NEXT:    %[[ADD_2:.*]] = stablehlo.add %[[D]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD_2]]
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 3 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.sine %2 : tensor<f32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %3 : tensor<f32>
    %5 = stablehlo.add %4, %2 : tensor<f32>
    %6 = stablehlo.multiply %5, %w : tensor<f32>
    %7 = stablehlo.add %sum, %6 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %7 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A parameter that the loss does not depend on: what is computed of it and goes nowhere is in no task. The loop doesn't
// carry its gradient, which no task changes (`find-microbatch-loop` has seen to that).

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[UNUSED:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>)
// CHECK:         %[[G:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[W]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]
// CHECK:         return %[[LOOP]]#1, %[[G]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<f32>, %unused: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
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
    %1 = stablehlo.tanh %x : tensor<f32>
    %dead = stablehlo.multiply %1, %unused : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %4 = stablehlo.add %sum, %3 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %4 : tensor<i32>, tensor<f32>
  }
  return %0#1, %zero : tensor<f32>, tensor<f32>
}

// -----

// A mark of two values, one of them an integer: both are results of the stage that ends and arguments of the next.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>, %[[N:.*]]: tensor<i32>) -> tensor<f32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]]:2 = func.call @forward_0(%[[X]], %[[N]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[F0]]#1, %[[F0]]#0, %[[W]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<i32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<i32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POPCNT:.*]] = stablehlo.popcnt %[[B]]
// CHECK-NEXT:    return %[[TANH]], %[[POPCNT]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<i32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>, %[[D:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[CONVERT:.*]] = stablehlo.convert %[[A]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[CONVERT]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[MUL]], %[[C]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[D]], %[[MUL_2]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<f32>, %x: tensor<f32>, %n: tensor<i32>) -> tensor<f32> {
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
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.popcnt %n : tensor<i32>
    %3:2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1, %2 : tensor<f32>, tensor<i32>
    %4 = stablehlo.convert %3#1 : (tensor<i32>) -> tensor<f32>
    %5 = stablehlo.multiply %3#0, %4 : tensor<f32>
    %6 = stablehlo.multiply %5, %w : tensor<f32>
    %7 = stablehlo.add %sum, %6 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %7 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A stage that computes nothing has no function; its number stays free.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>) -> tensor<f32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F2:.*]] = func.call @forward_2(%[[F0]], %[[W]], %[[SUM]]) {jaxpp.stage = 2 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F2]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_2(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 2 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 3 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %2 : tensor<f32>
    %4 = stablehlo.multiply %3, %w : tensor<f32>
    %5 = stablehlo.add %sum, %4 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %5 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A value that only the next iteration could use, and that depends on no task, is computed where the loop first
// computes.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>) -> (tensor<f32>, tensor<f32>)
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[A:.*]] = %{{.*}}, %[[B:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]]:2 = func.call @forward_0(%[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[F0]]#0, %[[A]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]], %[[F0]]#1
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[A]]
// CHECK-NEXT:    return %[[TANH]], %[[EXPONENTIAL]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[SINE:.*]] = stablehlo.sine %[[A]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[B]], %[[SINE]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %a = %zero, %b = %zero) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.sine %2 : tensor<f32>
    %4 = stablehlo.add %a, %3 : tensor<f32>
    %5 = stablehlo.exponential %x : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %4, %5 : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<f32>, tensor<f32>
}
