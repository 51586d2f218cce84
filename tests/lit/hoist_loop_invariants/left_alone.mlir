// RUN: jaxpp-opt %s --split-input-file -p hoist-loop-invariants | filecheck %s

// Masks and broadcasts are cheap to compute again and big to keep, transpositions are views.

// CHECK-LABEL: func.func public @main(
// CHECK:         %{{.*}} = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
// CHECK-NEXT:    stablehlo.while
// CHECK:           stablehlo.iota
// CHECK:           stablehlo.compare
// CHECK:           stablehlo.broadcast_in_dim
// CHECK:           stablehlo.transpose
// CHECK:           stablehlo.select
func.func public @main(%w: tensor<4x4xf32>, %s: tensor<4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %rows = stablehlo.iota dim = 0 : tensor<4x4xi32>
    %columns = stablehlo.iota dim = 1 : tensor<4x4xi32>
    %mask = stablehlo.compare LT, %rows, %columns : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
    %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
    %bb = stablehlo.add %b, %b : tensor<4x4xf32>
    %t = stablehlo.transpose %w, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %p = stablehlo.dot_general %t, %sum, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %r = stablehlo.select %mask, %bb, %p : tensor<4x4xi1>, tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// XLA fuses casts to 8 bits with the product that takes them; neither they nor what leads to them moves, only the
// scale.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[MAX:.*]] = stablehlo.reduce
// CHECK-NEXT:    stablehlo.while
// CHECK:           stablehlo.broadcast_in_dim %[[MAX]]
// CHECK-NEXT:      stablehlo.divide
// CHECK-NEXT:      stablehlo.convert %{{.*}} -> tensor<4x4xf8E4M3FN>
// CHECK-NEXT:      stablehlo.convert %{{.*}} -> tensor<4x4xf32>
// CHECK-NEXT:      stablehlo.dot_general
func.func public @main(%w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %lowest = stablehlo.constant dense<0.0> : tensor<f32>
    %size = stablehlo.abs %w : tensor<4x4xf32>
    %max = stablehlo.reduce(%size init: %lowest) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    %scale = stablehlo.broadcast_in_dim %max, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %n = stablehlo.divide %w, %scale : tensor<4x4xf32>
    %e = stablehlo.convert %n : (tensor<4x4xf32>) -> tensor<4x4xf8E4M3FN>
    %v = stablehlo.convert %e : (tensor<4x4xf8E4M3FN>) -> tensor<4x4xf32>
    %p = stablehlo.dot_general %v, %sum, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %r = stablehlo.add %sum, %p : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// A side effect happens for each microbatch, and what depends on it.

// CHECK-LABEL: func.func public @main(
// CHECK:         %{{.*}} = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
// CHECK-NEXT:    stablehlo.while
// CHECK:           %[[C:.*]] = stablehlo.rng
// CHECK-NEXT:      stablehlo.sine %[[C]]
func.func public @main(%w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %low = stablehlo.constant dense<0.0> : tensor<f32>
    %high = stablehlo.constant dense<1.0> : tensor<f32>
    %shape = stablehlo.constant dense<4> : tensor<2xi64>
    %c = stablehlo.rng %low, %high, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<4x4xf32>
    %s = stablehlo.sine %c : tensor<4x4xf32>
    %none = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %t = stablehlo.multiply %s, %none : tensor<4x4xf32>
    %r = stablehlo.add %sum, %t : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// What the user sends through a mark is computed by its stage.

// CHECK-LABEL: func.func public @main(
// CHECK:         %{{.*}} = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
// CHECK-NEXT:    stablehlo.while
// CHECK:           %[[S:.*]] = stablehlo.sine
// CHECK-NEXT:      stablehlo.optimization_barrier {{.*}} %[[S]]
func.func public @main(%w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %s = stablehlo.sine %w : tensor<4x4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %s : tensor<4x4xf32>
    %r = stablehlo.add %sum, %m : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// With one microbatch there is nothing to gain.

// CHECK-LABEL: func.func public @main(
// CHECK:         %{{.*}} = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
// CHECK-NEXT:    stablehlo.while
// CHECK:           stablehlo.sine
func.func public @main(%w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 1 : i64, schedule = "", stages = 1 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %s = stablehlo.sine %w : tensor<4x4xf32>
    %r = stablehlo.add %sum, %s : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}
