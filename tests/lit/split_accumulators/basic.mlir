// RUN: jaxpp-opt %s --split-input-file -p assign-stages,split-accumulators | filecheck %s

// A weight of two stages: the sum of its two gradients is taken one after the other, each in its own stage.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %{{.*}} = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT:      %[[S:.*]] = stablehlo.add %[[SUM]], %[[G1]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S]], %[[G0]]
// CHECK-NEXT:      stablehlo.return %[[NEXT]], %[[R]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
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
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %g1 = stablehlo.sine %m : tensor<4xf32>
    %d = stablehlo.multiply %m, %w : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g0 = stablehlo.multiply %e, %x : tensor<4xf32>
    %g = stablehlo.add %g1, %g0 : tensor<4xf32>
    %r = stablehlo.add %sum, %g : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// Of three stages, however the sums are nested: in the order of the tasks, the last stage first.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G2:.*]] = stablehlo.sine
// CHECK:           phase = "backward", stage = 1
// CHECK:           %[[G1:.*]] = stablehlo.multiply
// CHECK:           phase = "backward", stage = 0
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %{{.*}} = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT:      %[[S2:.*]] = stablehlo.add %[[SUM]], %[[G2]]
// CHECK-NEXT:      %[[S1:.*]] = stablehlo.add %[[S2]], %[[G1]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S1]], %[[G0]]
// CHECK-NEXT:      stablehlo.return %[[NEXT]], %[[R]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 3 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %b = stablehlo.multiply %m, %w : tensor<4xf32>
    %n = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %b : tensor<4xf32>
    %g2 = stablehlo.sine %n : tensor<4xf32>
    %c = stablehlo.multiply %n, %w : tensor<4xf32>
    %d = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "backward", name = ""}} %c : tensor<4xf32>
    %g1 = stablehlo.multiply %d, %m : tensor<4xf32>
    %e = stablehlo.multiply %d, %w : tensor<4xf32>
    %f = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %e : tensor<4xf32>
    %g0 = stablehlo.multiply %f, %x : tensor<4xf32>
    %g = stablehlo.add %g0, %g2 : tensor<4xf32>
    %s = stablehlo.add %g1, %sum : tensor<4xf32>
    %r = stablehlo.add %g, %s : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// A maximum over two stages.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %{{.*}} = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT:      %[[S:.*]] = stablehlo.maximum %[[SUM]], %[[G1]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.maximum %[[S]], %[[G0]]
// CHECK-NEXT:      stablehlo.return %[[NEXT]], %[[R]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0xFF800000> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %g1 = stablehlo.sine %m : tensor<4xf32>
    %d = stablehlo.multiply %m, %w : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g0 = stablehlo.multiply %e, %x : tensor<4xf32>
    %g = stablehlo.maximum %g1, %g0 : tensor<4xf32>
    %r = stablehlo.maximum %sum, %g : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// A stage adds in its backward what its forward makes: the accumulator is in one task of each stage.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[F0:.*]] = stablehlo.cosine
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %{{.*}} = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT:      %[[S1:.*]] = stablehlo.add %[[SUM]], %[[G1]]
// CHECK-NEXT:      %[[S0:.*]] = stablehlo.add %[[F0]], %[[G0]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S1]], %[[S0]]
// CHECK-NEXT:      stablehlo.return %[[NEXT]], %[[R]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
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
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %f = stablehlo.cosine %a : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %g1 = stablehlo.sine %m : tensor<4xf32>
    %d = stablehlo.multiply %m, %w : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g0 = stablehlo.multiply %e, %x : tensor<4xf32>
    %s = stablehlo.add %sum, %f : tensor<4xf32>
    %g = stablehlo.add %g1, %g0 : tensor<4xf32>
    %r = stablehlo.add %s, %g : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// What no stage makes (the decay of the weight) goes last.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[DECAY:.*]] = stablehlo.multiply
// CHECK-NEXT:      %{{.*}} = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT:      %[[S1:.*]] = stablehlo.add %[[SUM]], %[[G1]]
// CHECK-NEXT:      %[[S0:.*]] = stablehlo.add %[[G0]], %[[DECAY]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S1]], %[[S0]]
// CHECK-NEXT:      stablehlo.return %[[NEXT]], %[[R]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
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
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %g1 = stablehlo.sine %m : tensor<4xf32>
    %d = stablehlo.multiply %m, %w : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g0 = stablehlo.multiply %e, %x : tensor<4xf32>
    %w2 = stablehlo.multiply %w, %w : tensor<4xf32>
    %g = stablehlo.add %w2, %g1 : tensor<4xf32>
    %h = stablehlo.add %g, %g0 : tensor<4xf32>
    %r = stablehlo.add %sum, %h : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
