// RUN: jaxpp-opt %s --split-input-file -p hoist-loop-invariants | filecheck %s

// The cast of a weight is taken once, in front of the loop; that of the gradient stays.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<4x4xf32>, %[[X:.*]]: tensor<4x4xbf16>)
// CHECK:         %[[B:.*]] = stablehlo.convert %[[W]] : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:    stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[XI:.*]] = stablehlo.convert
// CHECK-NEXT:      %[[Y:.*]] = stablehlo.dot_general %[[XI]], %[[B]],
// CHECK-NEXT:      %[[G:.*]] = stablehlo.convert %[[Y]] : (tensor<4x4xbf16>) -> tensor<4x4xf32>
// CHECK-NEXT:      stablehlo.add %[[SUM]], %[[G]]
func.func public @main(%w: tensor<4x4xf32>, %x: tensor<4x4xbf16>) -> tensor<4x4xf32> {
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
    %b = stablehlo.convert %w : (tensor<4x4xf32>) -> tensor<4x4xbf16>
    %xi = stablehlo.convert %sum : (tensor<4x4xf32>) -> tensor<4x4xbf16>
    %y = stablehlo.dot_general %xi, %b, contracting_dims = [1] x [0] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
    %g = stablehlo.convert %y : (tensor<4x4xbf16>) -> tensor<4x4xf32>
    %r = stablehlo.add %sum, %g : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// A product of invariants, with all that it needs; the transposition of it is taken in the loop: no copy is kept.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>)
// CHECK:         %[[T:.*]] = stablehlo.transpose %[[B]]
// CHECK-NEXT:    %[[AB:.*]] = stablehlo.dot_general %[[A]], %[[T]],
// CHECK-NEXT:    stablehlo.while
// CHECK:           do {
// CHECK-NEXT:      %[[V:.*]] = stablehlo.transpose %[[AB]]
// CHECK-NEXT:      stablehlo.add %{{[^ ]*}}, %[[V]]
func.func public @main(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> tensor<4x4xf32> {
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
    %t = stablehlo.transpose %b, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %ab = stablehlo.dot_general %a, %t, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %v = stablehlo.transpose %ab, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %r = stablehlo.add %sum, %v : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// Arithmetic on a whole weight leaves the loop; the broadcast that it needs is cheap, and computed in the loop too,
// where that uses it.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<4x4xf32>, %[[S:.*]]: tensor<4xf32>)
// CHECK:         %[[BEFORE:.*]] = stablehlo.broadcast_in_dim %[[S]]
// CHECK-NEXT:    %[[P:.*]] = stablehlo.multiply %[[W]], %[[BEFORE]]
// CHECK-NEXT:    stablehlo.while
// CHECK:           do {
// CHECK-NEXT:      %[[INSIDE:.*]] = stablehlo.broadcast_in_dim %[[S]]
// CHECK-NEXT:      %[[Q:.*]] = stablehlo.multiply %{{[^ ]*}}, %[[INSIDE]]
// CHECK-NEXT:      stablehlo.add %[[Q]], %[[P]]
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
    %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
    %p = stablehlo.multiply %w, %b : tensor<4x4xf32>
    %q = stablehlo.multiply %sum, %b : tensor<4x4xf32>
    %r = stablehlo.add %q, %p : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// So does a weight that is rounded: all arithmetic does.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[SCALED:.*]] = stablehlo.multiply
// CHECK-NEXT:    %[[ROUNDED:.*]] = stablehlo.round_nearest_even %[[SCALED]]
// CHECK-NEXT:    stablehlo.while
// CHECK:           stablehlo.add %{{[^ ]*}}, %[[ROUNDED]]
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
    %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
    %scaled = stablehlo.multiply %w, %b : tensor<4x4xf32>
    %p = stablehlo.round_nearest_even %scaled : tensor<4x4xf32>
    %q = stablehlo.multiply %sum, %b : tensor<4x4xf32>
    %r = stablehlo.add %q, %p : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// jax.checkpoint casts the weight again behind a barrier: forward and backward share one cast.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<4x4xf32>, %{{.*}}: tensor<4x4xbf16>)
// CHECK:         %[[B:.*]] = stablehlo.convert %[[W]]
// CHECK-NEXT:    stablehlo.while
// CHECK:           stablehlo.dot_general %{{[^ ]*}}, %[[B]],
// CHECK-NOT:       stablehlo.convert %{{[^ ]*}} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK:           stablehlo.dot_general %{{[^ ]*}}, %[[B]],
func.func public @main(%w: tensor<4x4xf32>, %x: tensor<4x4xbf16>) -> tensor<4x4xf32> {
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
    %n = stablehlo.convert %i : (tensor<i32>) -> tensor<bf16>
    %scale = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<bf16>) -> tensor<4x4xbf16>
    %b = stablehlo.convert %w : (tensor<4x4xf32>) -> tensor<4x4xbf16>
    %xi = stablehlo.multiply %x, %scale : tensor<4x4xbf16>
    %y = stablehlo.dot_general %xi, %b, contracting_dims = [1] x [0] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
    %again:2 = stablehlo.optimization_barrier %w, %sum : tensor<4x4xf32>, tensor<4x4xf32>
    %c = stablehlo.convert %again#0 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
    %u = stablehlo.dot_general %y, %c, contracting_dims = [1] x [0] : (tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>
    %g = stablehlo.convert %u : (tensor<4x4xbf16>) -> tensor<4x4xf32>
    %r = stablehlo.add %again#1, %g : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// A loop inside of the loop that works on invariants alone (a power of a matrix) leaves it as a whole.

// CHECK-LABEL: func.func public @main(%[[W:.*]]: tensor<4x4xf32>)
// CHECK:         %[[P:.*]]:2 = stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %{{[^ ]*}} = %[[W]]) : tensor<i32>, tensor<4x4xf32>
// CHECK-NEXT:    cond
// CHECK:         stablehlo.while({{.*}}jaxpp.microbatch_loop
// CHECK:           do {
// CHECK-NEXT:      stablehlo.add %{{[^ ]*}}, %[[P]]#1
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
    %lo = stablehlo.constant dense<0> : tensor<i32>
    %p:2 = stablehlo.while(%k = %lo, %v = %w) : tensor<i32>, tensor<4x4xf32>
    cond {
      %three = stablehlo.constant dense<3> : tensor<i32>
      %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %3 = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %4 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %k, %4 : tensor<i32>
      stablehlo.return %5, %3 : tensor<i32>, tensor<4x4xf32>
    }
    %r = stablehlo.add %sum, %p#1 : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}
