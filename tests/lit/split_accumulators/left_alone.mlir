// RUN: jaxpp-opt %s --split-input-file -p assign-stages,split-accumulators | filecheck %s

// Both terms are of one stage.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           %[[H1:.*]] = stablehlo.cosine
// CHECK-NEXT:      %[[G:.*]] = stablehlo.add %[[G1]], %[[H1]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[SUM]], %[[G]]
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
    %h1 = stablehlo.cosine %m : tensor<4xf32>
    %g = stablehlo.add %g1, %h1 : tensor<4xf32>
    %r = stablehlo.add %sum, %g : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// The sum of this microbatch is used once more: here to scale it.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[G:.*]] = stablehlo.add %[[G1]], %[[G0]]
// CHECK-NEXT:      %[[H:.*]] = stablehlo.multiply %[[G]], %[[G]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[SUM]], %[[H]]
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
    %h = stablehlo.multiply %g, %g : tensor<4xf32>
    %r = stablehlo.add %sum, %h : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// The factor is another one in each microbatch.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[F:.*]] = stablehlo.exponential
// CHECK-NEXT:      %[[G:.*]] = stablehlo.add %[[G1]], %[[G0]]
// CHECK-NEXT:      %[[H:.*]] = stablehlo.multiply %[[G]], %[[F]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[SUM]], %[[H]]
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
    %f = stablehlo.exponential %m : tensor<4xf32>
    %g = stablehlo.add %g1, %g0 : tensor<4xf32>
    %h = stablehlo.multiply %g, %f : tensor<4xf32>
    %r = stablehlo.add %sum, %h : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// The factor is that of a maximum: it may be negative.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[G:.*]] = stablehlo.maximum %[[G1]], %[[G0]]
// CHECK-NEXT:      %[[H:.*]] = stablehlo.multiply %[[G]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.maximum %[[SUM]], %[[H]]
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
    %g = stablehlo.maximum %g1, %g0 : tensor<4xf32>
    %h = stablehlo.multiply %g, %w : tensor<4xf32>
    %r = stablehlo.maximum %sum, %h : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// A conversion to a narrower type: the terms would be rounded before they cancel.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[G:.*]] = stablehlo.add %[[G1]], %[[G0]]
// CHECK-NEXT:      %[[H:.*]] = stablehlo.convert %[[G]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[SUM]], %[[H]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xbf16> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xbf16>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xbf16>
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
    %h = stablehlo.convert %g : (tensor<4xf32>) -> tensor<4xbf16>
    %r = stablehlo.add %sum, %h : tensor<4xbf16>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xbf16>
  }
  return %0#1 : tensor<4xbf16>
}

// -----

// A maximum of sums is neither.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[G:.*]] = stablehlo.add %[[G1]], %[[G0]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.maximum %[[SUM]], %[[G]]
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
    %r = stablehlo.maximum %sum, %g : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// A running average: the accumulator itself has a factor.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[S:.*]] = stablehlo.multiply %[[SUM]]
// CHECK-NEXT:      %[[G:.*]] = stablehlo.add %[[G1]], %[[G0]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S]], %[[G]]
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
    %s = stablehlo.multiply %sum, %w : tensor<4xf32>
    %g = stablehlo.add %g1, %g0 : tensor<4xf32>
    %r = stablehlo.add %s, %g : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// Something else reads the accumulator.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[Q:.*]] = stablehlo.multiply %[[SUM]], %[[G0]]
// CHECK-NEXT:      %[[H:.*]] = stablehlo.add %[[G1]], %[[Q]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[SUM]], %[[H]]
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
    %q = stablehlo.multiply %sum, %g0 : tensor<4xf32>
    %h = stablehlo.add %g1, %q : tensor<4xf32>
    %r = stablehlo.add %sum, %h : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// The accumulator is in the sum twice.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[S:.*]] = stablehlo.add %[[SUM]], %[[G1]]
// CHECK-NEXT:      %[[T:.*]] = stablehlo.add %[[SUM]], %[[G0]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S]], %[[T]]
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
    %s = stablehlo.add %sum, %g1 : tensor<4xf32>
    %t = stablehlo.add %sum, %g0 : tensor<4xf32>
    %r = stablehlo.add %s, %t : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
