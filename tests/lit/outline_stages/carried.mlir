// RUN: jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages | filecheck %s

// The loop carries a constant that nothing in it uses: the first task hands it on.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>) -> (tensor<f32>, tensor<f32>)
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}}, %[[LAST:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]]:2 = func.call @forward_0(%[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[F0]]#0, %[[W]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]], %[[F0]]#1
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[C7:.*]] = stablehlo.constant dense<7.000000e+00>
// CHECK-NEXT:    return %[[TANH]], %[[C7]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %sum = %zero, %last = %zero) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %4 = stablehlo.add %sum, %3 : tensor<f32>
    %seven = stablehlo.constant dense<7.0> : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %4, %seven : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<f32>, tensor<f32>
}

// -----

// The loop carries the input of the microbatch before, which stage 1 uses: stage 1 is also the one that hands it on.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[BATCH:.*]]: tensor<2xf32>) -> (tensor<f32>, tensor<f32>)
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}}, %[[BEFORE:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[BATCH]], %[[I]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]]:2 = func.call @forward_1(%[[BATCH]], %[[I]], %[[F0]], %[[BEFORE]], %[[W]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]#1, %[[F1]]#0
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2xf32>, %[[B:.*]]: tensor<i32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[SLICE:.*]] = stablehlo.dynamic_slice %[[A]], %[[B]], sizes = [1]
// CHECK-NEXT:    %[[RESHAPE:.*]] = stablehlo.reshape %[[SLICE]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[RESHAPE]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<2xf32>, %[[B:.*]]: tensor<i32>, %[[C:.*]]: tensor<f32>, %[[D:.*]]: tensor<f32>, %[[E:.*]]: tensor<f32>, %[[F:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[SLICE:.*]] = stablehlo.dynamic_slice %[[A]], %[[B]], sizes = [1]
// CHECK-NEXT:    %[[RESHAPE:.*]] = stablehlo.reshape %[[SLICE]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[C]], %[[D]]
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[MUL]], %[[E]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[F]], %[[MUL_2]]
// CHECK-NEXT:    return %[[RESHAPE]], %[[ADD]]
func.func public @main(%w: tensor<f32>, %batch: tensor<2xf32>) -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %sum = %zero, %before = %zero) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %batch, %i, sizes = [1] : (tensor<2xf32>, tensor<i32>) -> tensor<1xf32>
    %2 = stablehlo.reshape %1 : (tensor<1xf32>) -> tensor<f32>
    %3 = stablehlo.tanh %2 : tensor<f32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %3 : tensor<f32>
    %5 = stablehlo.multiply %4, %before : tensor<f32>
    %6 = stablehlo.multiply %5, %w : tensor<f32>
    %7 = stablehlo.add %sum, %6 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %7, %2 : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<f32>, tensor<f32>
}

// -----

// A running average, with a record of what it was: what depends only on carried values is computed by the stage that
// makes them.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[X:.*]]: tensor<f32>) -> (tensor<f32>, tensor<2xf32>)
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[AVERAGE:.*]] = %{{.*}}, %[[RECORD:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]]:2 = func.call @forward_1(%[[F0]], %[[W]], %[[AVERAGE]], %[[RECORD]], %[[I]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]#0, %[[F1]]#1
// CHECK:         return %[[LOOP]]#1, %[[LOOP]]#2
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>, %[[D:.*]]: tensor<2xf32>, %[[E:.*]]: tensor<i32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<2xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[CONSTANT:.*]] = stablehlo.constant dense<5.000000e-01>
// CHECK-NEXT:    %[[MUL_2:.*]] = stablehlo.multiply %[[C]], %[[CONSTANT]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[MUL_2]], %[[MUL]]
// CHECK-NEXT:    %[[RESHAPE:.*]] = stablehlo.reshape %[[C]]
// CHECK-NEXT:    %[[DYNAMIC_UPDATE_SLICE:.*]] = stablehlo.dynamic_update_slice %[[D]], %[[RESHAPE]], %[[E]]
// CHECK-NEXT:    return %[[ADD]], %[[DYNAMIC_UPDATE_SLICE]]
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<2xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<2xf32>
  %0:3 = stablehlo.while(%i = %first, %average = %zero, %record = %zeros) : tensor<i32>, tensor<f32>, tensor<2xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %half = stablehlo.constant dense<0.5> : tensor<f32>
    %4 = stablehlo.multiply %average, %half : tensor<f32>
    %5 = stablehlo.add %4, %3 : tensor<f32>
    %6 = stablehlo.reshape %average : (tensor<f32>) -> tensor<1xf32>
    %7 = stablehlo.dynamic_update_slice %record, %6, %i : (tensor<2xf32>, tensor<1xf32>, tensor<i32>) -> tensor<2xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %5, %7 : tensor<i32>, tensor<f32>, tensor<2xf32>
  }
  return %0#1, %0#2 : tensor<f32>, tensor<2xf32>
}
