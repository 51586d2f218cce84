// RUN: jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages | filecheck %s

// Both stages use one mask (JAX traces a helper once, or finds the two equal). Each makes its own; no mask crosses.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:.*]]: tensor<4xf32>, %[[W1:.*]]: tensor<4xf32>, %[[X:.*]]: tensor<4xf32>) -> tensor<4xf32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]], %[[W0]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[F0]], %[[W1]], %[[X]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<4xf32>, %[[B:.*]]: tensor<4xf32>)
// CHECK-SAME:      -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[IOTA:.*]] = stablehlo.iota dim = 0
// CHECK-NEXT:    %[[C2:.*]] = stablehlo.constant dense<2>
// CHECK-NEXT:    %[[COMPARE:.*]] = stablehlo.compare LT, %[[IOTA]], %[[C2]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[SELECT:.*]] = stablehlo.select %[[COMPARE]], %[[MUL]], %[[A]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[SELECT]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4xf32>, %[[B:.*]]: tensor<4xf32>, %[[C:.*]]: tensor<4xf32>, %[[D:.*]]: tensor<4xf32>)
// CHECK-SAME:      -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[IOTA:.*]] = stablehlo.iota dim = 0
// CHECK-NEXT:    %[[C2:.*]] = stablehlo.constant dense<2>
// CHECK-NEXT:    %[[COMPARE:.*]] = stablehlo.compare LT, %[[IOTA]], %[[C2]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[SELECT:.*]] = stablehlo.select %[[COMPARE]], %[[MUL]], %[[C]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[D]], %[[SELECT]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w0: tensor<4xf32>, %w1: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.iota dim = 0 : tensor<4xi32>
    %2 = stablehlo.constant dense<2> : tensor<4xi32>
    %mask = stablehlo.compare LT, %1, %2 : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    %3 = stablehlo.multiply %x, %w0 : tensor<4xf32>
    %4 = stablehlo.select %mask, %3, %x : tensor<4xi1>, tensor<4xf32>
    %5 = stablehlo.tanh %4 : tensor<4xf32>
    %6 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %5 : tensor<4xf32>
    %7 = stablehlo.multiply %6, %w1 : tensor<4xf32>
    %8 = stablehlo.select %mask, %7, %x : tensor<4xi1>, tensor<4xf32>
    %9 = stablehlo.add %sum, %8 : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %9 : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// The last stage compares with the input, as a loss does. Each stage takes its own slice of the batch, for which it has
// the microbatch index, and the input is not handed on.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<f32>, %[[BATCH:.*]]: tensor<2xf32>) -> tensor<f32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[BATCH]], %[[I]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[BATCH]], %[[I]], %[[F0]], %[[W]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2xf32>, %[[B:.*]]: tensor<i32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[SLICE:.*]] = stablehlo.dynamic_slice %[[A]], %[[B]], sizes = [1]
// CHECK-NEXT:    %[[RESHAPE:.*]] = stablehlo.reshape %[[SLICE]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[RESHAPE]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<2xf32>, %[[B:.*]]: tensor<i32>, %[[C:.*]]: tensor<f32>, %[[D:.*]]: tensor<f32>, %[[E:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[SLICE:.*]] = stablehlo.dynamic_slice %[[A]], %[[B]], sizes = [1]
// CHECK-NEXT:    %[[RESHAPE:.*]] = stablehlo.reshape %[[SLICE]]
// CHECK-NEXT:    %[[SUB:.*]] = stablehlo.subtract %[[C]], %[[RESHAPE]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[SUB]], %[[D]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[E]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<f32>, %batch: tensor<2xf32>) -> tensor<f32> {
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
    %1 = stablehlo.dynamic_slice %batch, %i, sizes = [1] : (tensor<2xf32>, tensor<i32>) -> tensor<1xf32>
    %2 = stablehlo.reshape %1 : (tensor<1xf32>) -> tensor<f32>
    %3 = stablehlo.tanh %2 : tensor<f32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %3 : tensor<f32>
    %5 = stablehlo.subtract %4, %2 : tensor<f32>
    %6 = stablehlo.multiply %5, %w : tensor<f32>
    %7 = stablehlo.add %sum, %6 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %7 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A weight that two stages share is cast in both of them.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<8xbf16>, %[[X:.*]]: tensor<8xf32>) -> tensor<8xf32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[W]], %[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[W]], %[[F0]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<8xbf16>, %[[B:.*]]: tensor<8xf32>)
// CHECK-SAME:      -> tensor<8xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[CONVERT:.*]] = stablehlo.convert %[[A]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[CONVERT]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[MUL]]
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<8xbf16>, %[[B:.*]]: tensor<8xf32>, %[[C:.*]]: tensor<8xf32>)
// CHECK-SAME:      -> tensor<8xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[CONVERT:.*]] = stablehlo.convert %[[A]]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[B]], %[[CONVERT]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%w: tensor<8xbf16>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<8xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<8xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.convert %w : (tensor<8xbf16>) -> tensor<8xf32>
    %2 = stablehlo.multiply %x, %1 : tensor<8xf32>
    %3 = stablehlo.tanh %2 : tensor<8xf32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %3 : tensor<8xf32>
    %5 = stablehlo.multiply %4, %1 : tensor<8xf32>
    %6 = stablehlo.add %sum, %5 : tensor<8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %6 : tensor<i32>, tensor<8xf32>
  }
  return %0#1 : tensor<8xf32>
}

// -----

// What costs something (an exponential) is computed once, and handed on.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>) -> tensor<f32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]]:2 = func.call @forward_0(%[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[F0]]#1, %[[F0]]#0, %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[EXPONENTIAL:.*]] = stablehlo.exponential %[[A]]
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[EXPONENTIAL]]
// CHECK-NEXT:    return %[[EXPONENTIAL]], %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>, %[[C:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[A]], %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
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
    %1 = stablehlo.exponential %x : tensor<f32>
    %2 = stablehlo.tanh %1 : tensor<f32>
    %3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %2 : tensor<f32>
    %4 = stablehlo.multiply %3, %1 : tensor<f32>
    %5 = stablehlo.add %sum, %4 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %5 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
